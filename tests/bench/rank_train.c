/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the overlap benchmark: what a training step costs with its
   communication hidden, with it in the open, and without it; and, of gradients and
   parameters that are sharded, with new parameters in the open or hidden in the next forward.
   `first_cut` is `overlapped` with buckets as they are cut first, by a cap that is given.

     rank_train MIB SHARE ROUNDS LAYERS GROWTH

   The model is LAYERS tensors of MIB altogether, of which each has GROWTH percent of the
   elements of the one before; forward and backward are as much arithmetic for each. How much
   of it makes communication SHARE percent of backward is measured first, and followed up. A
   round is a step of each mode, of which rank 0 prints a JSON line; each figure is the slowest
   rank's. `tail` is the time from the end of backward to that of the step. With BENCH_PIN, a rank
   has one core for all it does. With BENCH_WAIT, forward and backward are waits, as for a GPU,
   which leave the core to communication. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "ddp.h"
#include "rank.h"
#include "tests/support/options.h"

/* In the rounds that warm up, buckets are cut anew, too. */
enum { LAYERS_MAX = 512, BLOCK = 2048, BLOCK_ROUNDS = 20, WARM_UP_ROUNDS = 9, GUESS_BLOCKS = 4000,
       WAIT_NS = 7000 /* for a block */ };

enum mode { COMPUTE_ONLY, SERIAL, OVERLAPPED, FIRST_CUT, SHARDED, LATE, MODES };
static const char *const mode_names[MODES] = {
	"compute_only", "serial", "overlapped", "first_cut", "sharded", "late"
};

enum figure { STEP, BACKWARD, TAIL, COMMUNICATION, CPU, FIGURES };
static const char *const figure_names[FIGURES] = {
	"step_seconds", "backward_seconds", "tail_seconds", "communication_seconds", "cpu_seconds"
};

struct bench {
	ddp_context *context;
	int layers;
	int64_t elements[LAYERS_MAX]; /* of each layer */
	double bucket_mb;      /* as the library has it where none is given */
	double share;
	uint64_t layer_blocks; /* of arithmetic in a layer's backward; forward: half */
	float numbers[BLOCK];
	bool waits;            /* instead of arithmetic */
	ddp_model *models[MODES];
};

/* Fills a core's arithmetic units and touches only its first cache. */
static void compute(struct bench *bench, uint64_t blocks)
{
	if (bench->waits) {
		const uint64_t ns = blocks * WAIT_NS;
		const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL); /* a signal ends the program */
		return;
	}
	for (uint64_t b = 0; b < blocks; b++) {
		for (int round = 0; round < BLOCK_ROUNDS; round++) {
			for (int i = 0; i < BLOCK; i++)
				bench->numbers[i] = bench->numbers[i] * 0.999f + 0.001f;
		}
	}
}

static ddp_status make_model(struct bench *bench, enum mode mode)
{
	const ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS,
		.optimizer = DDP_SGD,
		.bucket_mb = mode == FIRST_CUT ? bench->bucket_mb : DDP_AUTO,
		.shard = mode >= SHARDED ? DDP_SHARD_GRADIENTS : DDP_SHARD_NONE, .late_gather = mode == LATE,
	};
	char names[LAYERS_MAX][16];
	ddp_param params[LAYERS_MAX];

	for (int l = 0; l < bench->layers; l++) {
		snprintf(names[l], sizeof(names[l]), "layer%d", l);
		params[l] = (ddp_param){ .name = names[l], .ndim = 1, .shape = { bench->elements[l] } };
	}
	setenv("DDP_MEASURE", mode == SERIAL ? "no-overlap" : mode == COMPUTE_ONLY ? "no-communication" : "", 1);
	return ddp_model_create(bench->context, params, bench->layers, &options, &bench->models[mode]);
}

/* CPU seconds of this process. On a core that it keeps busy, they hold what
   the kernel does for its messages, too. */
static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static ddp_status train_step(struct bench *bench, enum mode mode, double *figures)
{
	ddp_model *model = bench->models[mode];
	ddp_status status = DDP_OK;
	ddp_step_stats stats;
	double cpu_before = cpu_seconds();
	uint64_t start_ns = ddp_now_ns();

	for (int l = 0; l < bench->layers && status == DDP_OK; l++) {
		status = ddp_model_param_wait(model, l);
		compute(bench, bench->layer_blocks / 2);
	}
	double forward = ddp_seconds_since(start_ns);
	for (int l = bench->layers - 1; l >= 0 && status == DDP_OK; l--) {
		compute(bench, bench->layer_blocks);
		status = ddp_model_grad_ready(model, l);
	}
	double computed = ddp_seconds_since(start_ns);
	if (status == DDP_OK)
		status = ddp_model_step(model, 1, 0, &stats);
	if (status != DDP_OK)
		return status;
	figures[STEP] = ddp_seconds_since(start_ns);
	figures[BACKWARD] = computed - forward;
	figures[TAIL] = figures[STEP] - computed;
	figures[COMMUNICATION] = stats.communication_seconds;
	figures[CPU] = cpu_seconds() - cpu_before;
	return DDP_OK;
}

/* A step whose forward begins with what the step before has left to it. */
static ddp_status measure_step(struct bench *bench, enum mode mode, double *figures)
{
	ddp_status status = ddp_barrier(ddp_world(bench->context));

	if (status == DDP_OK && mode >= SHARDED)
		status = train_step(bench, mode, figures);
	if (status == DDP_OK)
		status = train_step(bench, mode, figures);
	if (status == DDP_OK)
		status = ddp_model_param_wait(bench->models[mode], DDP_ALL_PARAMS);
	return status != DDP_OK ? status : ddp_all_reduce(ddp_world(bench->context), NULL, figures, FIGURES, DDP_F64, DDP_MAX);
}

static void report(int round, enum mode mode, const double *figures)
{
	printf("{\"round\": %d, \"mode\": \"%s\"", round, mode_names[mode]);
	for (int f = 0; f < FIGURES; f++)
		printf(", \"%s\": %.6f", figure_names[f], figures[f]);
	printf("}\n");
}

/* Lets backward take as long as SHARE wants. */
static void adjust(struct bench *bench, double communication, double backward, double weight)
{
	double blocks = (double)bench->layer_blocks;
	double wanted = blocks * communication / bench->share / backward;

	bench->layer_blocks = 1 + (uint64_t)(blocks + weight * (wanted - blocks));
}

static ddp_status run_round(struct bench *bench, int round)
{
	double figures[MODES][FIGURES];

	for (int m = 0; m < MODES; m++) {
		ddp_status status = measure_step(bench, (enum mode)m, figures[m]);
		if (status != DDP_OK)
			return status;
		if (round >= 0 && ddp_get_job(bench->context)->rank == 0)
			report(round, (enum mode)m, figures[m]);
	}
	adjust(bench, figures[SERIAL][TAIL] - figures[COMPUTE_ONLY][TAIL],
	       figures[COMPUTE_ONLY][BACKWARD], round < 0 ? 1 : 0.25);
	return DDP_OK;
}

static ddp_status measure(struct bench *bench, int rounds)
{
	ddp_status status = DDP_OK;

	for (int m = 0; m < MODES && status == DDP_OK; m++)
		status = make_model(bench, (enum mode)m);
	for (int r = -WARM_UP_ROUNDS; r < rounds && status == DDP_OK; r++)
		status = run_round(bench, r);
	return status;
}

/* Each has `growth` times the elements of the one before. */
static void size_layers(struct bench *bench, double elements, double growth)
{
	double size = 1, all = 0;

	for (int l = 0; l < bench->layers; l++, size *= growth)
		all += size;
	size = elements / all;
	for (int l = 0; l < bench->layers; l++, size *= growth)
		bench->elements[l] = size > 1 ? (int64_t)size : 1;
	bench->bucket_mb = elements / (1 << 18) / 32;
	bench->bucket_mb = bench->bucket_mb < 1 ? 1 : bench->bucket_mb > 25 ? 25 : bench->bucket_mb;
}

int main(int argc, char **argv)
{
	struct bench bench = { .layer_blocks = GUESS_BLOCKS, .waits = getenv("BENCH_WAIT") != NULL };

	if (argc != 6) {
		fprintf(stderr, "usage: %s MIB SHARE ROUNDS LAYERS GROWTH\n", argv[0]);
		return 2;
	}
	bench.layers = (int)rank_number("LAYERS", argv[4], 1, LAYERS_MAX);
	size_layers(&bench, (double)rank_number("MIB", argv[1], 1, 4096) * (1 << 18),
	            (double)rank_number("GROWTH", argv[5], 1, 10000) / 100);
	bench.share = (double)rank_number("SHARE", argv[2], 1, 10000) / 100;
	int rounds = (int)rank_number("ROUNDS", argv[3], 1, 1000);
	const char *task = getenv("SLURM_PROCID");
	if (!rank_pin(task != NULL ? atoi(task) : 0)) {
		perror("rank_train: cannot stay on one core");
		return 1;
	}
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	ddp_status status = ddp_init(NULL, &bench.context);
	if (status == DDP_OK)
		status = measure(&bench, rounds);
	if (status != DDP_OK)
		fprintf(stderr, "rank_train: %s\n", ddp_last_error());
	for (int m = 0; m < MODES; m++)
		ddp_model_free(bench.models[m]);
	ddp_finalize(bench.context);
	return status == DDP_OK ? 0 : 1;
}
