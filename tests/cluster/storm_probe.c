/* SPDX-License-Identifier: Apache-2.0 */
/* storm_probe: a training with checkpoints, which tests/cluster/storm and tests/cluster/failures hurt.

     storm_probe DIR STATE [ACTION RANK NUMBER]

   It trains 60 steps, from the newest checkpoint in DIR if there is one, and saves each
   10 steps and at the end. A step takes 5 ms at least. The variables STORM_STEPS, STORM_EVERY and
   STORM_STEP_US overrule these numbers, and STORM_SHARD is the model's option shard. With STORM_SURVIVE=1 it trains by
   ddp_train() with the option survive, so that others join those that are left, and prints libddp's warnings. In STATE
   each rank keeps a `struct state` that says where it is.
   Ranks write each step's loss to the file STORM_LOSSES, if it is set.
   RANK does the ACTION: never: exits with NUMBER before ddp_init(); exit: exits with code
   NUMBER % 256 in forward of step NUMBER / 256; linger: sleeps NUMBER milliseconds between
   ddp_finalize() and its exit; flip: flips a bit of a parameter after step NUMBER, unless the step was restarted. With `stop`, all ranks end by a checkpoint after SIGTERM, with
   code EXIT_STOPPED. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ddp.h>
#include "tests/support/options.h"

enum { EXIT_USAGE = 2, EXIT_LIBRARY = 3, EXIT_STOPPED = 75 };
/* 2, 4 or 8 ranks repeat no samples at the end of an epoch; fewer ones that go on for them never do. */
enum { SAMPLES = 704, BATCH = 4, VALUES = 64, CODES = 256 };
enum { WEIGHT, BIAS, TABLE, OUT, PARAMS };
enum place { PLACE_NONE, PLACE_STARTED, PLACE_TRAINING, PLACE_SAVING, PLACE_FINALIZED, PLACE_EXITS };

struct state {
	int32_t place, step;
};

struct probe {
	const char *dir, *action;
	int state_fd, losses_fd, rank, acting_rank, number;
	int steps, every, step_us;
	ddp_context *context;
	ddp_model *model;
	ddp_loader *loader;
};

static const ddp_param params[PARAMS] = {
	[WEIGHT] = { .name = "weight", .ndim = 2, .shape = { VALUES, VALUES } },
	[BIAS] = { .name = "bias", .ndim = 1, .shape = { VALUES } },
	[TABLE] = { .name = "table", .ndim = 2, .shape = { 99, VALUES } },
	[OUT] = { .name = "out", .ndim = 2, .shape = { 7, VALUES } },
};

static ddp_model *stopped_model; /* for the signal handler */

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "storm_probe: %s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(EXIT_LIBRARY);
}

static void tell(const struct probe *p, enum place place, int64_t step)
{
	const struct state state = { (int32_t)place, (int32_t)step };

	if (pwrite(p->state_fd, &state, sizeof(state), (off_t)sizeof(state) * p->rank) != sizeof(state)) {
		perror("storm_probe: the state's file");
		exit(EXIT_USAGE);
	}
}

/* All ranks have the same loss. */
static void note_loss(const struct probe *p, const ddp_step_stats *stats)
{
	const off_t at = (off_t)sizeof(stats->loss) * stats->step;

	if (p->losses_fd < 0 || pwrite(p->losses_fd, &stats->loss, sizeof(stats->loss), at) == sizeof(stats->loss))
		return;
	perror("storm_probe: the file of losses");
	exit(EXIT_USAGE);
}

static int number_or(const char *variable, int otherwise)
{
	const char *text = getenv(variable);

	return text != NULL ? atoi(text) : otherwise;
}

static bool acts(const struct probe *p, const char *action)
{
	return p->rank == p->acting_rank && strcmp(p->action, action) == 0;
}

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	float *values = sample;
	unsigned seed = (unsigned)index + 1;

	(void)self;
	for (int i = 0; i < VALUES; i++)
		values[i] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
	return DDP_OK;
}

/* Draws each parameter towards the samples; what it learns does not matter. */
static ddp_status compute(ddp_model *model, const ddp_batch *batch, double *loss)
{
	const float *samples = batch->data;
	ddp_status status = DDP_OK;

	for (int param = PARAMS - 1; param >= 0 && status == DDP_OK; param--) {
		const float *data = ddp_model_param_data(model, param);
		float *grad = ddp_model_param_grad(model, param);
		for (int64_t i = 0; i < ddp_model_param_count(model, param); i++) {
			for (int64_t s = 0; s < batch->samples; s++) {
				const float error = data[i] - samples[s * VALUES + i % VALUES] * (float)(1 + param);
				grad[i] += error;
				*loss += error * error;
			}
		}
		status = ddp_model_grad_ready(model, param);
	}
	return status;
}

static void on_signal(int number)
{
	(void)number;
	ddp_model_request_stop(stopped_model);
}

static void create(struct probe *p)
{
	static const ddp_dataset dataset = { .size = SAMPLES, .sample_bytes = VALUES * sizeof(float),
		                             .read = read_sample };
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0.01, .bucket_mb = 0.01,
		                            .shard = (ddp_shard)number_or("STORM_SHARD", DDP_SHARD_AUTO) };
	const ddp_loader_options loader = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = BATCH, .seed = 7 };

	check(ddp_init(NULL, &p->context));
	check(ddp_model_create(p->context, params, PARAMS, &options, &p->model));
	for (int param = 0; param < PARAMS; param++)
		for (int64_t i = 0; i < ddp_model_param_count(p->model, param); i++)
			ddp_model_param_data(p->model, param)[i] = (float)(i % 11 + param) / 100;
	check(ddp_model_broadcast_params(p->model));
	check(ddp_loader_create(p->context, &dataset, &loader, &p->loader));
	stopped_model = p->model;
	if (strcmp(p->action, "stop") == 0)
		signal(SIGTERM, on_signal);
}

static void flip_bit(ddp_model *model)
{
	float *value = ddp_model_param_data(model, TABLE) + 1;
	uint32_t bits;

	memcpy(&bits, value, sizeof(bits));
	bits ^= 1u << 18;
	memcpy(value, &bits, sizeof(bits));
}

/* Returns whether it was stopped. */
static bool train(const struct probe *p)
{
	ddp_step_stats stats = { 0 };
	ddp_batch batch;
	int64_t step;

	check(ddp_checkpoint_load(p->model, p->loader, p->dir, &step));
	while (step < p->steps && !stats.stop) {
		step++;
		tell(p, PLACE_TRAINING, step);
		ddp_model_set_phase(p->model, DDP_PHASE_FORWARD);
		if (acts(p, "exit") && step == p->number / CODES)
			_exit(p->number % CODES);
		check(ddp_loader_next(p->loader, &batch));
		usleep((useconds_t)p->step_us);
		ddp_model_set_phase(p->model, DDP_PHASE_BACKWARD);
		double loss = 0;
		check(compute(p->model, &batch, &loss));
		check(ddp_model_step(p->model, (double)batch.samples, loss, &stats));
		note_loss(p, &stats);
		if (acts(p, "flip") && step == p->number && number_or("DDP_RESTART_COUNT", 0) == 0)
			flip_bit(p->model);
		if (step % p->every == 0 || step == p->steps || stats.stop) {
			tell(p, PLACE_SAVING, step);
			check(ddp_checkpoint_save(p->model, p->loader, p->dir, 0));
		}
	}
	return step < p->steps;
}

static ddp_status survivor_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	const struct probe *p = user;
	ddp_summary summary;

	ddp_model_summary(model, &summary);
	tell(p, PLACE_TRAINING, summary.last_step + 1);
	usleep((useconds_t)p->step_us);
	*weight += (double)batch->samples;
	return compute(model, batch, loss_sum);
}

static ddp_status survivor_step(void *user, const ddp_step_stats *stats)
{
	const struct probe *p = user;

	note_loss(p, stats);
	if (stats->step % p->every == 0 || stats->step == p->steps)
		tell(p, PLACE_SAVING, stats->step);
	return DDP_OK;
}

/* Lines of the plugin's begin in another way. */
static void warn(void *user, ddp_log_level level, const char *message)
{
	(void)user;
	(void)level;
	fprintf(stderr, "storm_probe: %s\n", message);
}

static void train_and_survive(struct probe *p)
{
	ddp_train_options options = DDP_TRAIN_OPTIONS;

	ddp_set_log(warn, NULL, DDP_LOG_WARN);
	options.steps = p->steps;
	options.checkpoint_dir = p->dir;
	options.checkpoint_every = p->every;
	options.resume = options.survive = true;
	options.on_step = survivor_step;
	options.user = p;
	check(ddp_train(p->model, p->loader, survivor_batch, &options, NULL));
}

int main(int argc, char **argv)
{
	const struct rlimit no_core = { 0, 0 };
	const char *rank = getenv("RANK"), *losses = getenv("STORM_LOSSES");

	if ((argc != 3 && argc != 6) || rank == NULL) {
		fprintf(stderr, "usage: srun --ddp storm_probe DIR STATE [never|exit|flip|linger|stop RANK NUMBER]\n");
		return EXIT_USAGE;
	}
	struct probe p = { .dir = argv[1], .action = "", .rank = atoi(rank), .acting_rank = -1 };
	p.steps = number_or("STORM_STEPS", 60);
	p.every = number_or("STORM_EVERY", 10);
	p.step_us = number_or("STORM_STEP_US", 5000);
	p.state_fd = open(argv[2], O_WRONLY | O_CLOEXEC);
	p.losses_fd = losses != NULL ? open(losses, O_WRONLY | O_CLOEXEC) : -1;
	if (argc == 6) {
		p.action = argv[3];
		p.acting_rank = atoi(argv[4]);
		p.number = atoi(argv[5]);
	}
	setrlimit(RLIMIT_CORE, &no_core);
	tell(&p, PLACE_STARTED, 0);
	if (acts(&p, "never"))
		return p.number;
	create(&p);
	const bool survives = number_or("STORM_SURVIVE", 0) != 0;
	if (survives)
		train_and_survive(&p);
	const bool stopped = !survives && train(&p);
	ddp_loader_free(p.loader);
	ddp_model_free(p.model);
	check(ddp_finalize(p.context));
	tell(&p, PLACE_FINALIZED, p.steps);
	if (acts(&p, "linger"))
		usleep(1000 * (useconds_t)p.number);
	tell(&p, PLACE_EXITS, p.steps);
	return stopped ? EXIT_STOPPED : EXIT_SUCCESS;
}
