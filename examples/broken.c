/* SPDX-License-Identifier: Apache-2.0 */
/* broken - programs with the classic mistakes of data-parallel training, and what the
   library says to each.

     srun --ddp -n4 broken no-broadcast
     broken --spawn 4 no-broadcast
     broken --list */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "option_table.h"
#include "rank.h"

enum { SAMPLES = 64, BATCH = 4, WIDTH = 8, EXIT_UNNOTICED = 1, EXIT_USAGE = 2, TIMEOUT_MS = 5000 };

static ddp_context *context;
static const ddp_job *job;

/* The last rank makes the mistake, where not all do. */
static bool last_rank(void)
{
	return job->rank == job->world_size - 1;
}

static void check(ddp_status status)
{
	rank_must("broken", status);
}

/* ---- a training that is right ---------------------------------------------------------- */

struct training {
	ddp_model *model;
	ddp_loader *loader;
};

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	const float value = (float)index / SAMPLES;

	(void)self;
	memcpy(sample, &value, sizeof(value));
	return DDP_OK;
}

static ddp_model *make_model(int width)
{
	const ddp_param params[] = {{.name = "weight", .ndim = 1, .shape = {width}}};
	ddp_model_options options = DDP_MODEL_OPTIONS;
	options.optimizer = DDP_SGD;
	options.learning_rate = 0.1;
	ddp_model *model;

	check(ddp_model_create(context, params, 1, &options, &model));
	return model;
}

static ddp_loader *make_loader(int64_t samples)
{
	const ddp_dataset dataset = {.size = samples, .sample_bytes = sizeof(float), .read = read_sample};
	ddp_loader_options options = DDP_LOADER_OPTIONS;
	options.batch_size = BATCH;
	ddp_loader *loader;

	check(ddp_loader_create(context, &dataset, &options, &loader));
	return loader;
}

static struct training make_training(void)
{
	const struct training t = {.model = make_model(WIDTH), .loader = make_loader(SAMPLES)};

	check(ddp_model_broadcast_params(t.model));
	return t;
}

static void add_gradients(ddp_model *model, const float *samples, int64_t count)
{
	const float *weight = ddp_model_param_data(model, 0);
	float *grad = ddp_model_param_grad(model, 0);

	for (int64_t n = 0; n < count; n++) {
		for (int i = 0; i < WIDTH; i++)
			grad[i] += weight[i] - samples[n];
	}
}

/* Adds this rank's gradients; returns how many samples they are of. */
static int64_t backward(const struct training *t)
{
	ddp_batch batch;

	check(ddp_loader_next(t->loader, &batch));
	add_gradients(t->model, batch.data, batch.samples);
	return batch.samples;
}

static void step(const struct training *t)
{
	const int64_t samples = backward(t);

	check(ddp_model_grad_ready(t->model, 0));
	check(ddp_model_step(t->model, (double)samples, 0, NULL));
}

/* ---- mistakes ------------------------------------------------------------------------------ */

static void no_broadcast(void)
{
	const struct training t = {.model = make_model(WIDTH), .loader = make_loader(SAMPLES)};

	for (int i = 0; i < WIDTH; i++)
		ddp_model_param_data(t.model, 0)[i] = (float)(job->rank + i);
	step(&t);
}

static void other_shapes(void)
{
	(void)make_model(last_rank() ? WIDTH + 1 : WIDTH);
}

/* Each rank reads the data set from its beginning on. */
static void no_sampler(void)
{
	const struct training t = make_training();
	float samples[BATCH];

	for (int64_t step = 0; step < SAMPLES / BATCH; step++) {
		for (int64_t i = 0; i < BATCH; i++)
			check(read_sample(NULL, step * BATCH + i, &samples[i]));
		add_gradients(t.model, samples, BATCH);
		check(ddp_model_grad_ready(t.model, 0));
		check(ddp_model_step(t.model, BATCH, 0, NULL));
	}
}

static void forgotten_zero_grad(void)
{
	const struct training t = make_training();

	for (int n = 0; n < 3; n++) {
		step(&t);
		for (int i = 0; i < WIDTH; i++) {
			if (ddp_model_param_grad(t.model, 0)[i] == 0)
				continue;
			fprintf(stderr, "broken: rank %d: a gradient is left of step %d\n", job->rank, n + 1);
			exit(EXIT_UNNOTICED);
		}
	}
	if (job->rank == 0)
		printf("After each step all gradients were 0: ddp_model_step() had cleared them.\n");
}

static void other_data(void)
{
	(void)make_loader(last_rank() ? SAMPLES / 2 : SAMPLES);
}

static void other_world(void)
{
	ddp_comm *part;
	int ranks[2] = {0, 1};

	if (last_rank())
		ranks[0] = 1, ranks[1] = 0;
	check(ddp_comm_group(ddp_world(context), ranks, 2, &part));
}

static void skipped_collective(void)
{
	float loss = 1;

	if (!last_rank())
		check(ddp_all_reduce(ddp_world(context), &loss, &loss, 1, DDP_F32, DDP_SUM));
	check(ddp_barrier(ddp_world(context)));
}

static void missing_rank(void)
{
	const struct training t = make_training();

	step(&t);
	if (last_rank())
		check(ddp_finalize(context)), exit(EXIT_SUCCESS);
	step(&t);
}

static void other_order(void)
{
	float a = 1, b[2] = {1, 1};
	ddp_comm *world = ddp_world(context);

	if (last_rank())
		check(ddp_all_reduce(world, b, b, 2, DDP_F32, DDP_SUM));
	check(ddp_all_reduce(world, &a, &a, 1, DDP_F32, DDP_SUM));
	if (!last_rank())
		check(ddp_all_reduce(world, b, b, 2, DDP_F32, DDP_SUM));
}

static void announced_too_often(void)
{
	const struct training t = make_training();

	(void)backward(&t);
	check(ddp_model_grad_ready(t.model, 0));
	check(ddp_model_grad_ready(t.model, 0));
}

static void not_finite(void)
{
	const struct training t = make_training();
	const int64_t samples = backward(&t);

	if (last_rank())
		ddp_model_param_grad(t.model, 0)[3] = NAN;
	check(ddp_model_grad_ready(t.model, 0));
	check(ddp_model_step(t.model, (double)samples, 0, NULL));
}

/* ---- which ------------------------------------------------------------------------------------- */

static const struct mistake {
	const char *name, *what;
	void (*make)(void);
	bool trains; /* the program ends well: the library warns, or there is nothing to forget */
} mistakes[] = {
	{"no-broadcast", "parameters start otherwise on each rank, and nobody calls ddp_model_broadcast_params()", no_broadcast, false},
	{"other-shapes", "one rank's model has another shape", other_shapes, false},
	{"other-data", "one rank sees half of the data set, as of a file still being copied", other_data, false},
	{"other-world", "one rank lists the ranks of a group otherwise", other_world, false},
	{"skipped-collective", "one rank skips an all-reduce that the others call", skipped_collective, false},
	{"other-order", "one rank calls two all-reduces in the other order", other_order, false},
	{"missing-rank", "one rank ends a step before the others", missing_rank, false},
	{"announced-too-often", "a gradient is announced twice in a step", announced_too_often, false},
	{"not-finite", "one rank's gradient has a NaN", not_finite, false},
	{"no-sampler", "each rank reads all samples itself, in the same order", no_sampler, true},
	{"forgotten-zero-grad", "nobody clears the gradients between steps", forgotten_zero_grad, true},
};

static void list_mistakes(void)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++)
		printf("  %-22s%s\n", mistakes[i].name, mistakes[i].what);
}

struct options {
	int spawn;
	bool list;
};

#define AT(member) .at = offsetof(struct options, member)

static const option_row rows[] = {
	{OPTION_INT, "spawn", "N", AT(spawn), "start N ranks on this host, without a launcher", 2, 1024},
	{OPTION_FLAG, "list", NULL, AT(list), "list the mistakes"},
};

static const option_form form = {.program = "broken", .usage = "[--spawn N] MISTAKE | --list",
	.about = "Makes one of the classic mistakes of data-parallel training, to show what the library\n"
	         "says to it. Start it with srun --ddp and two ranks or more, or with --spawn.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]),
	.end = "MISTAKE is one of those that --list shows.\n\n"
	       "Exit status: 3 the library reported an error, as it should; 1 it did not; 0 of the last\n"
	       "two, with which a program ends well: the library warns (ddp_set_log()), or clears the\n"
	       "gradients itself; 2 usage.\n",
	.operand = true, .wrong = EXIT_USAGE};

static const struct mistake *find(const char *name)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		if (strcmp(name, mistakes[i].name) == 0)
			return &mistakes[i];
	}
	options_wrong(&form, "\"%s\" is no mistake that it knows; see broken --list", name);
}

static int run(const struct mistake *mistake)
{
	ddp_options options = DDP_OPTIONS;
	options.timeout_ms = TIMEOUT_MS;

	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	check(ddp_init(&options, &context));
	job = ddp_get_job(context);
	if (job->world_size < 2) {
		fprintf(stderr, "broken: it takes two ranks; see broken --help\n");
		return EXIT_USAGE;
	}
	if (job->rank == 0)
		printf("The mistake: %s.\n", mistake->what), fflush(stdout);
	mistake->make();
	if (mistake->trains) {
		check(ddp_finalize(context));
		return EXIT_SUCCESS;
	}
	fprintf(stderr, "broken: rank %d: the library noticed nothing\n", job->rank);
	check(ddp_finalize(context));
	return EXIT_UNNOTICED;
}

int main(int argc, char **argv)
{
	struct options o = {0};

	const char *name = options_read(&form, argc, argv, &o);
	if (o.list) {
		list_mistakes();
		return EXIT_SUCCESS;
	}
	if (name == NULL)
		options_wrong(&form, "name one mistake; see broken --list");
	const struct mistake *mistake = find(name);
	rank_spawn(form.program, o.spawn);
	return run(mistake);
}
