/* SPDX-License-Identifier: Apache-2.0 */
/* What data parallelism costs on a node, or on several: a GPT's training step, in modes
   that take turns step by step, so that a machine whose speed varies slows all of
   them alike. A barrier starts each step.

     rank_modes RANKS LAYERS HEADS WIDTH VOCAB LENGTH BATCH ROUNDS [buddy]

   Starts its ranks itself, one thread each, or is a rank of those that others have started, if
   RANKS is 0; in mode "single" rank 0 computes alone. For each round and mode rank 0 prints a
   line of JSON: the seconds of the slowest rank and of the mean, and those of processor time
   of the mean; and rank 0's in forward, backward and ddp_model_step().

   With `buddy`, the modes are a sharded step without and with buddy copies. A turn has several steps, because the copy
   of a step travels while the next one computes. So the first step of a turn, beside which another mode's copy may
   travel, is not told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "ddp.h"
#include "kernels.h"
#include "models/gpt_ddp.h"
#include "rank.h"
#include "tests/support/options.h"

enum { ARGUMENTS = 8, BATCHES = 4, BUDDY_STEPS = 4 };

/* On one node the default is ZERO. */
enum mode { SINGLE, SILENT, SERIAL, OVERLAPPED, DEFAULT, ZERO, SHARDS, BUDDY, MODES };

static const struct {
	const char *name, *without; /* DDP_MEASURE */
	ddp_shard shard;
} modes[MODES] = {
	[SINGLE] = { "single", "no-communication", DDP_SHARD_AUTO },
	[SILENT] = { "silent", "no-communication", DDP_SHARD_AUTO },
	[SERIAL] = { "serial", "no-overlap", DDP_SHARD_NONE },
	[OVERLAPPED] = { "overlapped", "", DDP_SHARD_NONE },
	[DEFAULT] = { "default", "", DDP_SHARD_AUTO },
	[ZERO] = { "zero", "", DDP_SHARD_STATE },
	[SHARDS] = { "shards", "", DDP_SHARD_GRADIENTS },
	[BUDDY] = { "buddy", "", DDP_SHARD_GRADIENTS },
};

struct bench {
	gpt_config config;
	int batch, rounds;
	bool buddy;
	ddp_context *context;
	gpt *net;
	ddp_model *models[MODES]; /* SINGLE uses SILENT's */
	int32_t *tokens;      /* [BATCHES][batch][length + 1] */
};

static ddp_status make_model(struct bench *b, enum mode mode)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .shard = modes[mode].shard, .beta2 = 0.95,
	                                    .weight_decay = 0.1, .clip_norm = 1, .buddy = mode == BUDDY };
	int count;

	setenv("DDP_MEASURE", modes[mode].without, 1);
	const ddp_param *params = gpt_params(b->net, &count);
	ddp_status status = ddp_model_create(b->context, params, count, &options, &b->models[mode]);
	if (status != DDP_OK)
		return status;
	if (!gpt_bind_model(b->net, b->models[mode]))
		return DDP_ERR_NOMEM;
	gpt_initialise(b->net, 1);
	status = ddp_model_broadcast_params(b->models[mode]);
	return mode == BUDDY ? ddp_survive(b->models[mode], NULL, status, NULL) : status;
}

/* Seconds of a step and its parts, and of processor time. */
struct times {
	double all, forward, backward, step, cpu;
};

static double cpu_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The modes that take turns are [first_mode(), end_mode()). */
static int first_mode(const struct bench *b)
{
	return b->buddy ? SHARDS : SINGLE;
}

static int end_mode(const struct bench *b)
{
	if (b->buddy)
		return MODES;
	return ddp_get_job(b->context)->nnodes > 1 ? ZERO + 1 : ZERO;
}

static ddp_status train_step(struct bench *b, ddp_model *model, bool survives, int number, struct times *times)
{
	int64_t tokens = (int64_t)b->batch * b->config.length;
	const int32_t *batch = b->tokens + number % BATCHES * (tokens + b->batch);
	const double before = cpu_seconds();
	uint64_t start_ns = ddp_now_ns();

	double loss = gpt_forward(b->net, batch, b->batch, b->config.length);
	times->forward = ddp_seconds_since(start_ns);
	ddp_status status = gpt_backward(b->net, gpt_grad_ready, gpt_grad_rows, model);
	times->backward = ddp_seconds_since(start_ns) - times->forward;
	if (status == DDP_OK)
		status = ddp_model_step(model, (double)tokens, loss, NULL);
	if (survives)
		status = ddp_survive(model, NULL, status, NULL);
	times->all = ddp_seconds_since(start_ns);
	times->step = times->all - times->forward - times->backward;
	times->cpu = cpu_seconds() - before;
	return status;
}

static ddp_status take_step(struct bench *b, enum mode mode, int number, bool told)
{
	ddp_comm *world = ddp_world(b->context);
	ddp_model *model = b->models[mode == SINGLE ? SILENT : mode];
	int ranks = mode == SINGLE ? 1 : ddp_comm_size(world);
	bool computes = ddp_comm_rank(world) < ranks;
	struct times times = { 0 };

	ddp_status status = gpt_bind_model(b->net, model) ? ddp_barrier(world) : DDP_ERR_NOMEM;
	if (status == DDP_OK && computes)
		status = train_step(b, model, mode == BUDDY, number, &times);
	double slowest = times.all, means[] = { times.all / ranks, times.cpu / ranks };
	if (status == DDP_OK)
		status = ddp_all_reduce(world, NULL, &slowest, 1, DDP_F64, DDP_MAX);
	if (status == DDP_OK)
		status = ddp_all_reduce(world, NULL, means, 2, DDP_F64, DDP_SUM);
	if (status != DDP_OK || !told || ddp_comm_rank(world) != 0)
		return status;
	printf("{\"mode\": \"%s\", \"slowest\": %.6f, \"mean\": %.6f, \"cpu\": %.6f, \"forward\": %.6f, "
	       "\"backward\": %.6f, \"step\": %.6f}\n", modes[mode].name, slowest, means[0], means[1],
	       times.forward, times.backward, times.step);
	fflush(stdout);
	return DDP_OK;
}

/* Prints nothing for round 0, which warms up. */
static ddp_status turn(struct bench *b, enum mode mode, int round)
{
	const int steps = b->buddy ? BUDDY_STEPS : 1;
	ddp_status status = DDP_OK;

	for (int s = 0; s < steps && status == DDP_OK; s++)
		status = take_step(b, mode, round * steps + s, round > 0 && (s > 0 || steps == 1));
	return status;
}

static bool allocate(struct bench *b)
{
	size_t tokens = (size_t)BATCHES * (size_t)b->batch * (size_t)(b->config.length + 1);
	unsigned int seed = 1 + (unsigned int)ddp_get_job(b->context)->rank;

	b->net = gpt_create(&b->config, b->batch, 1);
	b->tokens = malloc(tokens * sizeof(*b->tokens));
	if (b->net == NULL || b->tokens == NULL)
		return false;
	for (size_t i = 0; i < tokens; i++)
		b->tokens[i] = rand_r(&seed) % b->config.vocab;
	return true;
}

static ddp_status measure(struct bench *b)
{
	ddp_status status = ddp_init(NULL, &b->context);

	if (status != DDP_OK)
		return status;
	dk_flush_denormals();
	dk_set_threads(1);
	if (!allocate(b)) {
		ddp_comm_abort(ddp_world(b->context), "out of memory");
		return ddp_barrier(ddp_world(b->context));
	}
	const int first = first_mode(b), count = end_mode(b) - first;
	for (int m = 0; m < count && status == DDP_OK; m++)
		status = first + m == SINGLE ? DDP_OK : make_model(b, (enum mode)(first + m));
	for (int r = 0; r <= b->rounds; r++) {
		for (int m = 0; m < count && status == DDP_OK; m++)
			status = turn(b, (enum mode)(first + (m + r) % count), r);
	}
	return status;
}

static void release(struct bench *b)
{
	for (int m = 0; m < MODES; m++)
		ddp_model_free(b->models[m]);
	gpt_free(b->net);
	free(b->tokens);
	ddp_finalize(b->context);
}

int main(int argc, char **argv)
{
	static const char *const names[ARGUMENTS] = {
		"RANKS", "LAYERS", "HEADS", "WIDTH", "VOCAB", "LENGTH", "BATCH", "ROUNDS"
	};
	struct bench b = { 0 };
	int ranks;
	int *const numbers[ARGUMENTS] = {
		&ranks, &b.config.layers, &b.config.heads, &b.config.width, &b.config.vocab,
		&b.config.length, &b.batch, &b.rounds,
	};
	ddp_spawn_result spawned = { .is_rank = true };
	char why[160];

	b.buddy = argc == ARGUMENTS + 2 && strcmp(argv[ARGUMENTS + 1], "buddy") == 0;
	if (argc != ARGUMENTS + 1 && !b.buddy) {
		fprintf(stderr, "usage: %s RANKS LAYERS HEADS WIDTH VOCAB LENGTH BATCH ROUNDS [buddy]\n", argv[0]);
		return 2;
	}
	for (int i = 0; i < ARGUMENTS; i++)
		*numbers[i] = (int)rank_number(names[i], argv[i + 1], i == 0 ? 0 : 1, 1 << 20);
	if (!gpt_config_valid(&b.config, why, sizeof(why))) {
		fprintf(stderr, "rank_modes: %s\n", why);
		return 2;
	}
	ddp_status status = ranks > 0 ? ddp_spawn(ranks, &spawned) : DDP_OK;
	if (status == DDP_OK && !spawned.is_rank)
		return spawned.exit_code;
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	if (status == DDP_OK)
		status = measure(&b);
	if (status != DDP_OK)
		fprintf(stderr, "rank_modes: %s\n", ddp_last_error());
	release(&b);
	return status == DDP_OK ? 0 : 1;
}
