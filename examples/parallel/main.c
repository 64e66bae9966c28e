/* SPDX-License-Identifier: Apache-2.0 */
/* parallel - a GPT that is split over several ranks, and trained in several copies.

     srun --ddp -n8 parallel --stages 2 --tensor 2      # two copies, each of 2 x 2 parts
     parallel --spawn 1                                  # the same losses on one rank

   Rank ((copy * stages) + stage) * tensor + slice has a slice of a stage of a copy. A step is
   GPipe's (Huang et al., NeurIPS 2019): all micro-batches go forward through the stages, then all
   go backward. libddp keeps the copies of each part alike: there is a model for each part, on
   a communicator of the ranks that have it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "models/random.h"
#include "option_table.h"
#include "parallel/part.h"
#include "rank.h"
#include "threads.h"

enum { EXIT_USAGE = 2, SAMPLES = 4096 };

typedef struct options {
	int spawn, stages, tensor, steps, layers, heads, width, length, update, micro_batches;
	double learning_rate;
	const char *checkpoint;
	bool resume;
} options;

typedef struct training {
	part_config config;
	part *part;
	ddp_comm *chain;   /* the stages of this copy that have this slice, in their order */
	ddp_comm *copies;  /* the ranks that have this part */
	ddp_model *model;
	ddp_loader *loader;
	int32_t *tokens, *targets;  /* [micro_batches, batch, length] */
	float *received;
} training;

#define AT(member) .at = offsetof(options, member)
#define MOST (1 << 20)

static const option_row rows[] = {
	{OPTION_INT, "spawn", "N", AT(spawn), "start N ranks on this host, without a launcher", 1, 1024},
	{OPTION_INT, "stages", "N", AT(stages), "stages of the pipeline", 1, MOST},
	{OPTION_INT, "tensor", "N", AT(tensor), "slices of each stage", 1, MOST},
	{OPTION_INT, "layers", "N", AT(layers), "layers of the network", 1, MOST},
	{OPTION_INT, "heads", "N", AT(heads), "heads of its attention", 1, MOST},
	{OPTION_INT, "width", "N", AT(width), "width of its layers", 1, MOST},
	{OPTION_INT, "length", "N", AT(length), "tokens of a sequence", 1, MOST},
	{OPTION_INT, "update", "N", AT(update), "sequences of a step, of all copies", 1, MOST},
	{OPTION_INT, "micro-batches", "N", AT(micro_batches), "into which a copy cuts its share of them", 1, MOST},
	{OPTION_INT, "steps", "N", AT(steps), "steps", 1, MOST},
	{OPTION_REAL, "lr", "X", AT(learning_rate), "learning rate"},
	{OPTION_TEXT, "checkpoint", "DIR", AT(checkpoint), "save at the end, each part in a directory of its own in DIR"},
	{OPTION_FLAG, "resume", NULL, AT(resume), "go on from there"},
};

static const option_form form = {.program = "parallel", .usage = "[OPTION]...",
	.about = "Trains a GPT on a made-up language. The network is split into stages, and the matrices of\n"
	         "each stage into slices; the ranks that are left over have further copies of it. Start it\n"
	         "with srun --ddp, or with --spawn.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]),
	.end = "Exit status: 0 done, 2 usage, 3 the library reports an error.\n", .wrong = EXIT_USAGE};

/* Whether the network and its samples can be split so over so many ranks. */
static int check_split(const options *o, const ddp_job *job)
{
	const int64_t parts = (int64_t)o->stages * o->tensor, copies = job->world_size / parts;
	const char *why = NULL;

	if (job->world_size % parts != 0)
		why = "their number must be a multiple of stages times tensor";
	else if (o->layers % o->stages != 0)
		why = "layers must be a multiple of stages";
	else if (o->heads % o->tensor != 0 || o->width % o->heads != 0)
		why = "heads must be a multiple of tensor, and width one of heads";
	else if (o->width / o->heads > DK_HEAD_MAX)
		why = "a head is at most 256 wide";
	else if (o->update % (copies * o->micro_batches) != 0)
		why = "update must be a multiple of copies times micro-batches";
	else if (o->update > SAMPLES)
		why = "update is at most 4096";
	if (why != NULL && job->rank == 0)
		fprintf(stderr, "parallel: %d rank%s: %s\n", job->world_size, job->world_size == 1 ? "" : "s", why);
	return why == NULL ? EXIT_SUCCESS : EXIT_USAGE;
}

static void check(ddp_status status)
{
	rank_must("parallel", status);
}

static void fail_for_memory(const char *what)
{
	fprintf(stderr, "parallel: no memory for %s\n", what);
	exit(EXIT_LIBRARY);
}

static void *allocate(size_t count, size_t bytes)
{
	void *memory = calloc(count, bytes);

	if (memory == NULL)
		fail_for_memory("samples and activations");
	return memory;
}

/* ---- samples: of a language in which most words follow from the one before ------------------- */

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	const options *o = self;
	uint64_t state = (uint64_t)index + 1;
	int32_t *words = sample, word = (int32_t)(next_random(&state) % PART_VOCAB);

	for (int i = 0; i <= o->length; i++) {
		words[i] = word;
		const uint64_t draw = next_random(&state);
		word = draw % 8 == 0 ? (int32_t)(draw / 8 % PART_VOCAB) : (5 * word + 17) % PART_VOCAB;
	}
	return DDP_OK;
}

static void read_batch(const training *t, int m)
{
	const size_t length = (size_t)t->config.length, at = (size_t)(m * t->config.batch) * length;
	ddp_batch batch;

	check(ddp_loader_next(t->loader, &batch));
	for (size_t i = 0; i < (size_t)batch.samples; i++) {
		const int32_t *sample = (const int32_t *)batch.data + i * (length + 1);
		memcpy(t->tokens + at + i * length, sample, length * sizeof(*sample));
		memcpy(t->targets + at + i * length, sample + 1, length * sizeof(*sample));
	}
}

/* ---- a step ------------------------------------------------------------------------------------ */

static const int32_t *of_batch(const training *t, const int32_t *words, int m)
{
	return words + (size_t)m * (size_t)(t->config.batch * t->config.length);
}

static double forward(const training *t, int m)
{
	const part_config *c = &t->config;
	const size_t elements = part_elements(c);
	const float *out;
	double loss = 0;

	if (!part_is_first(c))
		check(ddp_recv(t->chain, t->received, elements, DDP_F32, c->stage - 1, m));
	check(part_forward(t->part, m, of_batch(t, t->tokens, m), of_batch(t, t->targets, m), t->received, &out, &loss));
	if (!part_is_last(c))
		check(ddp_send(t->chain, out, elements, DDP_F32, c->stage + 1, m));
	return loss;
}

static void backward(const training *t, int m)
{
	const part_config *c = &t->config;
	const size_t elements = part_elements(c);
	const float *din;

	if (!part_is_last(c))
		check(ddp_recv(t->chain, t->received, elements, DDP_F32, c->stage + 1, m));
	check(part_backward(t->part, m, of_batch(t, t->tokens, m), of_batch(t, t->targets, m), t->received, m == 0, &din));
	if (!part_is_first(c))
		check(ddp_send(t->chain, din, elements, DDP_F32, c->stage - 1, m));
}

static void step(const training *t, ddp_step_stats *stats)
{
	const part_config *c = &t->config;
	double loss = 0;

	ddp_model_set_phase(t->model, DDP_PHASE_DATA);
	for (int m = 0; m < c->micro_batches; m++)
		read_batch(t, m);
	ddp_model_set_phase(t->model, DDP_PHASE_FORWARD);
	for (int m = 0; m < c->micro_batches; m++)
		loss += forward(t, m);
	ddp_model_set_phase(t->model, DDP_PHASE_BACKWARD);
	for (int m = c->micro_batches - 1; m >= 0; m--) {
		check(ddp_model_set_sync(t->model, m == 0));
		backward(t, m);
	}
	/* The last stage knows the loss; the other stages' models have none. */
	check(ddp_model_step(t->model, (double)c->micro_batches * c->batch * c->length, loss, stats));
}

/* ---- the program --------------------------------------------------------------------------------- */

static void open_training(ddp_context *context, const options *o, training *t)
{
	const ddp_job *job = ddp_get_job(context);
	ddp_comm *world = ddp_world(context);
	const int tensor = o->tensor, stages = o->stages, parts = stages * tensor;
	const int place = job->rank % parts, copy = job->rank / parts, slice = place % tensor, stage = place / tensor;
	const int copies = job->world_size / parts, micro = o->micro_batches;
	const ddp_dataset dataset = {.size = SAMPLES, .sample_bytes = (size_t)(o->length + 1) * sizeof(int32_t),
		.read = read_sample, .self = (void *)(uintptr_t)o};
	int count;

	t->config = (part_config){.layers = o->layers, .heads = o->heads, .width = o->width, .length = o->length,
		.stages = stages, .slices = tensor, .micro_batches = micro,
		.batch = o->update / (copies * micro), .stage = stage, .slice = slice};
	check(ddp_comm_split(world, copy * stages + stage, slice, &t->config.slice_comm));
	check(ddp_comm_split(world, copy * tensor + slice, stage, &t->chain));
	check(ddp_comm_split(world, place, copy, &t->copies));
	t->part = part_make(&t->config);
	if (t->part == NULL)
		fail_for_memory("a part of the network");
	t->received = allocate(part_elements(&t->config), sizeof(float));
	t->tokens = allocate((size_t)(micro * t->config.batch * t->config.length), sizeof(*t->tokens));
	t->targets = allocate((size_t)(micro * t->config.batch * t->config.length), sizeof(*t->targets));
	const ddp_param *params = part_params(t->part, &count);
	ddp_model_options model_options = DDP_MODEL_OPTIONS;
	model_options.learning_rate = o->learning_rate;
	model_options.weight_decay = 0.1;
	model_options.comm = t->copies;
	check(ddp_model_create(context, params, count, &model_options, &t->model));
	part_begin(t->part, t->model);
	check(ddp_model_broadcast_params(t->model));
	ddp_loader_options loader_options = DDP_LOADER_OPTIONS;
	loader_options.batch_size = t->config.batch;
	loader_options.seed = 1;
	loader_options.tail = DDP_TAIL_DROP;
	loader_options.accumulate = micro;
	loader_options.comm = t->copies;
	check(ddp_loader_create(context, &dataset, &loader_options, &t->loader));
}

static void close_training(training *t)
{
	ddp_loader_free(t->loader);
	ddp_model_free(t->model);
	part_free(t->part);
	free(t->received);
	free(t->tokens);
	free(t->targets);
	check(ddp_comm_free(t->copies));
	check(ddp_comm_free(t->chain));
	check(ddp_comm_free(t->config.slice_comm));
}

/* A part that was not saved in the end, as on a full disk, would go on from an earlier step than the others. */
static void check_steps(ddp_context *context, int64_t done)
{
	int64_t least = done, most = done;

	check(ddp_all_reduce(ddp_world(context), NULL, &least, 1, DDP_I64, DDP_MIN));
	check(ddp_all_reduce(ddp_world(context), NULL, &most, 1, DDP_I64, DDP_MAX));
	if (least == most)
		return;
	if (ddp_get_job(context)->rank == 0)
		fprintf(stderr, "parallel: the parts' checkpoints are of steps %lld to %lld: remove what is later than step "
		        "%lld, if each part has that\n", (long long)least, (long long)most, (long long)least);
	check(ddp_finalize(context));
	exit(EXIT_LIBRARY);
}

static void run(ddp_context *context, const options *o, training *t)
{
	/* One rank tells: the first that has the last stage. */
	const bool tells = part_is_last(&t->config) && t->config.slice == 0 && ddp_comm_rank(t->copies) == 0;
	ddp_step_stats stats = {0};
	int64_t done = 0;
	char dir[4096];

	if (o->checkpoint != NULL)
		snprintf(dir, sizeof(dir), "%s/stage-%d-slice-%d", o->checkpoint, t->config.stage, t->config.slice);
	if (o->resume) {
		check(ddp_checkpoint_load(t->model, t->loader, dir, &done));
		check_steps(context, done);
	}
	if (tells && done > 0)
		printf("resumed after step %lld\n", (long long)done);
	for (int64_t s = done; s < o->steps; s++) {
		step(t, &stats);
		if (tells) {
			printf("step %lld: loss %.6f\n", (long long)stats.step, stats.loss);
			fflush(stdout);
		}
	}
	if (o->checkpoint != NULL)
		check(ddp_checkpoint_save(t->model, t->loader, dir, 0));
}

int main(int argc, char **argv)
{
	options o = {.stages = 1, .tensor = 1, .steps = 20, .layers = 4, .heads = 4, .width = 64, .length = 32,
		.update = 32, .micro_batches = 4, .learning_rate = 1e-3};
	ddp_context *context;
	training t = {0};

	options_read(&form, argc, argv, &o);
	if (!(o.learning_rate > 0))
		options_wrong(&form, "--lr %g: must be above 0", o.learning_rate);
	if (o.resume && o.checkpoint == NULL)
		options_wrong(&form, "--resume needs --checkpoint DIR");
	rank_spawn(form.program, o.spawn);
	check(ddp_init(NULL, &context));
	const int split = check_split(&o, ddp_get_job(context));
	if (split == EXIT_SUCCESS) {
		dk_set_threads(choose_threads(0, ddp_get_job(context)));
		open_training(context, &o, &t);
		run(context, &o, &t);
		close_training(&t);
	}
	check(ddp_finalize(context));
	return split;
}
