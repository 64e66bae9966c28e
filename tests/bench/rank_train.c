/*
 * One rank of the overlap benchmark: what a training step costs with its
 * communication hidden, with it in the open, and without it.
 *
 *   rank_train MIB SHARE ROUNDS STEPS
 *
 * The model is LAYERS equal tensors of MIB altogether. How long reducing them
 * takes is measured first; forward and backward are then arithmetic of a fixed
 * amount, such that communication is SHARE percent of backward. In each round
 * every mode makes STEPS steps. Rank 0 prints JSON lines; a step takes as long
 * as on the slowest rank.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "ddp.h"
#include "rank.h"

enum { LAYERS = 16, BLOCK = 2048, BLOCK_ROUNDS = 20, WARM_UP_STEPS = 2 };

enum mode { COMPUTE_ONLY, SERIAL, OVERLAPPED, MODES };
static const char *const mode_names[MODES] = { "compute_only", "serial", "overlapped" };

enum figure { STEP, EXPOSED, COMMUNICATION, OPTIMIZER, FIGURES };
static const char *const figure_names[FIGURES] = {
	"step_seconds", "exposed_seconds", "communication_seconds", "optimizer_seconds"
};

struct bench {
	ddp_context *context;
	int64_t layer_elements;
	int steps; /* of each mode, all rounds together */
	int rounds;
	double share;
	uint64_t layer_blocks; /* of arithmetic in a layer's backward; forward: half */
	float numbers[BLOCK];
	ddp_model *models[MODES];
	double *figures[MODES][FIGURES]; /* [steps] */
};

/* Fills a core's arithmetic units and touches only its first cache. */
static void compute(struct bench *bench, uint64_t blocks)
{
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
		.optimizer = DDP_SGD, .no_overlap = mode == SERIAL,
		.no_communication = mode == COMPUTE_ONLY,
	};
	char names[LAYERS][16];
	ddp_param params[LAYERS];

	for (int l = 0; l < LAYERS; l++) {
		snprintf(names[l], sizeof(names[l]), "layer%d", l);
		params[l] = (ddp_param){ .name = names[l], .ndim = 1, .shape = { bench->layer_elements } };
	}
	return ddp_model_create(bench->context, params, LAYERS, &options, &bench->models[mode]);
}

static ddp_status train_step(struct bench *bench, enum mode mode, uint64_t layer_blocks,
                             ddp_step_stats *stats)
{
	ddp_model *model = bench->models[mode];
	ddp_status status = DDP_OK;

	ddp_set_phase(model, DDP_PHASE_FORWARD);
	compute(bench, LAYERS * layer_blocks / 2);
	ddp_set_phase(model, DDP_PHASE_BACKWARD);
	for (int l = LAYERS - 1; l >= 0 && status == DDP_OK; l--) {
		compute(bench, layer_blocks);
		status = ddp_grad_ready(model, l);
	}
	return status == DDP_OK ? ddp_step(model, 1, 0, stats) : status;
}

static ddp_status slowest(struct bench *bench, double *values, size_t count)
{
	return ddp_all_reduce(ddp_world(bench->context), NULL, values, count, DDP_F64, DDP_MAX);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), compare);
	return values[count / 2];
}

/* How many blocks take as long as SHARE wants, with all ranks computing. */
static ddp_status calibrate(struct bench *bench)
{
	enum { TRIALS = 5, TRIAL_BLOCKS = 2000 };
	double communication[TRIALS], block[TRIALS], both[2];
	ddp_step_stats stats;
	ddp_status status = DDP_OK;

	for (int i = -1; i < TRIALS && status == DDP_OK; i++) {
		status = train_step(bench, SERIAL, 0, &stats);
		if (i >= 0)
			communication[i] = stats.exposed_seconds;
	}
	for (int i = 0; i < TRIALS && status == DDP_OK; i++) {
		status = ddp_barrier(ddp_world(bench->context));
		uint64_t start_ns = ddp_now_ns();
		compute(bench, TRIAL_BLOCKS);
		block[i] = ddp_seconds_since(start_ns) / TRIAL_BLOCKS;
	}
	if (status != DDP_OK)
		return status;
	both[0] = median(communication, TRIALS);
	both[1] = median(block, TRIALS);
	status = slowest(bench, both, 2);
	bench->layer_blocks = (uint64_t)(both[0] / bench->share / LAYERS / both[1]);
	return status;
}

static ddp_status run_mode(struct bench *bench, enum mode mode, int first, int count)
{
	ddp_status status = ddp_barrier(ddp_world(bench->context));
	ddp_step_stats stats;

	for (int i = -WARM_UP_STEPS; i < count && status == DDP_OK; i++) {
		status = train_step(bench, mode, bench->layer_blocks, &stats);
		if (status != DDP_OK || i < 0)
			continue;
		bench->figures[mode][STEP][first + i] = stats.seconds;
		bench->figures[mode][EXPOSED][first + i] = stats.exposed_seconds;
		bench->figures[mode][COMMUNICATION][first + i] = stats.communication_seconds;
		bench->figures[mode][OPTIMIZER][first + i] = stats.optimizer_seconds;
	}
	return status;
}

static ddp_status report(struct bench *bench, enum mode mode)
{
	double figures[FIGURES];

	for (int f = 0; f < FIGURES; f++)
		figures[f] = median(bench->figures[mode][f], bench->steps);
	ddp_status status = slowest(bench, figures, FIGURES);
	if (status != DDP_OK || ddp_get_job(bench->context)->rank != 0)
		return status;
	printf("{\"mode\": \"%s\"", mode_names[mode]);
	for (int f = 0; f < FIGURES; f++)
		printf(", \"%s\": %.6f", figure_names[f], figures[f]);
	printf("}\n");
	return DDP_OK;
}

static ddp_status measure(struct bench *bench)
{
	ddp_status status = DDP_OK;
	int per_round = bench->steps / bench->rounds;

	for (int m = 0; m < MODES && status == DDP_OK; m++)
		status = make_model(bench, (enum mode)m);
	if (status == DDP_OK)
		status = calibrate(bench);
	for (int r = 0; r < bench->rounds; r++) {
		for (int m = 0; m < MODES && status == DDP_OK; m++)
			status = run_mode(bench, (enum mode)m, r * per_round, per_round);
	}
	for (int m = 0; m < MODES && status == DDP_OK; m++)
		status = report(bench, (enum mode)m);
	return status;
}

int main(int argc, char **argv)
{
	struct bench bench = { 0 };

	if (argc != 5) {
		fprintf(stderr, "usage: %s MIB SHARE ROUNDS STEPS\n", argv[0]);
		return 2;
	}
	bench.layer_elements = (int64_t)rank_number("MIB", argv[1], 1, 4096) * (1 << 18) / LAYERS;
	bench.share = (double)rank_number("SHARE", argv[2], 1, 10000) / 100;
	bench.rounds = (int)rank_number("ROUNDS", argv[3], 1, 1000);
	bench.steps = bench.rounds * (int)rank_number("STEPS", argv[4], 1, 1000);
	for (int m = 0; m < MODES; m++) {
		for (int f = 0; f < FIGURES; f++) {
			bench.figures[m][f] = calloc((size_t)bench.steps, sizeof(double));
			if (bench.figures[m][f] == NULL) {
				fprintf(stderr, "rank_train: no memory\n");
				return 1;
			}
		}
	}
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	ddp_status status = ddp_init(NULL, &bench.context);
	if (status == DDP_OK)
		status = measure(&bench);
	if (status != DDP_OK)
		fprintf(stderr, "rank_train: %s\n", ddp_last_error());
	for (int m = 0; m < MODES; m++) {
		ddp_model_free(bench.models[m]);
		for (int f = 0; f < FIGURES; f++)
			free(bench.figures[m][f]);
	}
	ddp_finalize(bench.context);
	return status == DDP_OK ? 0 : 1;
}
