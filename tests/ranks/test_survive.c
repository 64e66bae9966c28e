/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit; takes: 25 */
/* survive: ranks die in the middle of a training, and those that are left go on in their processes. From the step on
   that they take up, losses and parameters have the bits of a training with so many ranks that goes on from a checkpoint
   of the step before. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "optim/rule.h"
#include "reduce/buddy.h"
#include "reduce/model_state.h"
#include "reduce/outbox.h"
#include "reduce/survival.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/folder.h"
#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"
#include "tests/support/training.h"

enum { LAST = 12, FATAL = 5, EVERY = 4, ROUNDS = 6, BUFFER = MLP_PARAMS };

/* Where a rank dies, in step FATAL. */
typedef enum point {
	NOWHERE, BEFORE, FORWARD, BACKWARD, UPDATE, AFTER, SAVING, EVALUATING, ANYWHERE, POINTS
} point;

typedef struct world {
	const char *name;
	int ranks;
	const int *node_of;
	ddp_shard shard;
	ddp_compression compress;
	bool buddy, late, clips, device;
} world;

static const int four_nodes[] = { 0, 1, 2, 3 }, node_by_node[] = { 0, 0, 1, 1 };

/* What the ranks and the test share. */
typedef struct shared {
	world world;
	unsigned int dying;      /* bits: ranks that die, */
	unsigned int lagging;    /* ranks that miss the end of step FATAL, after which those that die do; 0: none */
	unsigned int unable;     /* ranks that have no memory for the program's state while they recover */
	bool transfer_fails;     /* on rank 1 alone */
	bool resume_fails;       /* when the model is fitted to those that are left */
	unsigned int later;      /* these ranks die 3 steps later; ANYWHERE: `pause` later; */
	bool evaluates;          /* or, if this is set, when they evaluate step FATAL - 1 */
	point point;
	int64_t steps;           /* of this run */
	int batch;               /* of a rank */
	bool survives, resumes, own_loop;
	bool records;            /* metrics */
	bool goes_back;          /* own_loop: to the end of step FATAL - 1, and then changes parameters and the buffer */
	atomic_int step;         /* that a rank that dies has begun */
	atomic_int arrived;      /* ranks that die, where they do */
	useconds_t delay, pause; /* ANYWHERE: how long after that */
	double loss[LAST + 1], evaluation[LAST + 1], norm[RANKS_MAX][LAST + 1];
	int ranks_of[LAST + 1];  /* that have done the step; the last ones count */
	int ended[RANKS_MAX][LAST + 1]; /* calls of on_step */
	atomic_int evaluated;    /* the last step whose evaluation a rank has had */
	float params[MLP_ELEMENTS], buffer;
	ddp_status status[RANKS_MAX];
	char message[RANKS_MAX][512], warning[RANKS_MAX][512]; /* the last ones */
} shared;

static shared *run;
static ddp_model *model_of_rank; /* these are each rank's own */
static int own_rank;
static bool went_back;
static ddp_device_queue *queue; /* of the device; NULL: the model is the host's */

static bool dies_here(point where)
{
	return run->point == where && (run->dying >> own_rank & 1) != 0 && model_of_rank->steps + 1 == FATAL && run->survives &&
	       went_back == run->goes_back;
}

/* Ranks that die wait for each other, up to 2 s: a rank that sees another one dead would go on, and not die. */
static void die(void)
{
	atomic_fetch_add(&run->arrived, 1);
	for (int i = 0; i < 2000 && atomic_load(&run->arrived) < __builtin_popcount(run->dying); i++)
		usleep(1000);
	kill(getpid(), SIGKILL);
}

static void die_here(point where)
{
	if (dies_here(where))
		die();
}

/* In the place of the system's: a checkpoint is not complete yet. */
int fsync(int fd)
{
	if (model_of_rank != NULL)
		die_here(SAVING);
	return (int)syscall(SYS_fsync, fd);
}

/* ---- a rank ---------------------------------------------------------------------------- */

ddp_status __real_ddp_survival_begin_update(ddp_model *model);
ddp_status __wrap_ddp_survival_begin_update(ddp_model *model);

/* A rank that lags has all gradients, and hears of a death before it uses them. */
ddp_status __wrap_ddp_survival_begin_update(ddp_model *model)
{
	const ddp_status status = __real_ddp_survival_begin_update(model);

	if (status != DDP_OK || !run->survives || (run->lagging >> own_rank & 1) == 0 || model->steps + 1 != FATAL)
		return status;
	model->survival->updating = false;
	while (atomic_load(&run->arrived) == 0)
		usleep(1000);
	usleep(10000);
	return ddp_fail(DDP_ERR_PEER, "this rank lags");
}

ddp_status __real_ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes);
ddp_status __wrap_ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes);

ddp_status __wrap_ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes)
{
	if ((run->unable >> own_rank & 1) != 0 && model->failed)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the state");
	return __real_ddp_model_set_user_state(model, state, bytes);
}

ddp_status __real_ddp_level_resume(ddp_model *model, bool learned, bool clears);
ddp_status __wrap_ddp_level_resume(ddp_model *model, bool learned, bool clears);

ddp_status __wrap_ddp_level_resume(ddp_model *model, bool learned, bool clears)
{
	return run->resume_fails ? ddp_fail(DDP_ERR_IO, "the device fails late") : __real_ddp_level_resume(model, learned, clears);
}

ddp_status __real_ddp_outbox_end(ddp_outbox *outbox);
ddp_status __wrap_ddp_outbox_end(ddp_outbox *outbox);

ddp_status __wrap_ddp_outbox_end(ddp_outbox *outbox)
{
	const bool fails = run->transfer_fails && own_rank == 1 && outbox->sends[0] != NULL;
	const ddp_status status = __real_ddp_outbox_end(outbox);

	return fails ? ddp_fail(DDP_ERR_IO, "the device fails") : status;
}

/* What the program keeps with the model: the ranks that have done the last step. */
static int64_t state_after(int64_t step)
{
	return 100 * step + run->ranks_of[step];
}

static void check_state(ddp_model *model)
{
	size_t bytes;
	const int64_t *state = ddp_model_user_state(model, &bytes);

	CHECK(model->steps == 0 || (bytes == sizeof(*state) && *state == state_after(model->steps)));
}

static ddp_status batch_of(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	if ((run->dying >> own_rank & 1) != 0)
		atomic_store(&run->step, (int)model->steps + 1);
	die_here(BEFORE);
	if (run->point != ANYWHERE && !run->evaluates && (run->later >> own_rank & 1) != 0 && model->steps + 1 == FATAL + 3)
		kill(getpid(), SIGKILL);
	if (!run->own_loop)
		check_state(model);
	ddp_status status = ddp_model_param_wait(model, DDP_ALL_PARAMS);
	if (status != DDP_OK)
		return status;
	return mlp_batch(user, model, batch, weight, loss_sum);
}

static ddp_status gradient_of(void *user, int param, float *grad, int64_t count)
{
	if (param == MLP_PARAMS - 1)
		die_here(FORWARD);
	if (param == MLP_PARAMS / 2)
		die_here(BACKWARD);
	return DDP_OK;
}

/* Changes a half of the span, which only a kernel could do on a device, and dies. */
static void die_in_update(const ddp_optim_span *span)
{
	for (int64_t i = 0; i < span->count / 2 && queue == NULL; i++)
		span->params[i] += 1, span->state[0][i] += 1;
	die();
}

/* The next update is the last that the rank begins. */
static void prepare_to_die(ddp_model *model)
{
	static ddp_optim_rule deadly;

	if (dies_here(UPDATE)) {
		deadly = *model->optim.rule;
		deadly.update = die_in_update;
		model->optim.rule = &deadly;
	}
}

static ddp_status after_step(void *user, const ddp_step_stats *stats)
{
	/* A step that was evaluated is not taken back. */
	CHECK(!run->survives || run->goes_back || stats->step > atomic_load(&run->evaluated));
	/* All ranks get the same. */
	run->loss[stats->step] = stats->loss;
	run->ranks_of[stats->step] = stats->active_ranks;
	const int64_t state = state_after(stats->step);
	CHECK_OK(ddp_model_set_user_state(model_of_rank, &state, sizeof(state)));
	run->norm[own_rank][stats->step] = stats->grad_norm;
	run->ended[own_rank][stats->step]++;
	prepare_to_die(model_of_rank);
	die_here(AFTER);
	if (run->lagging != 0 && (run->dying >> own_rank & 1) != 0 && run->survives && stats->step == FATAL)
		die();
	return DDP_OK;
}

static ddp_status evaluate_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight, double *loss_sum)
{
	die_here(EVALUATING);
	if (run->evaluates && (run->later >> own_rank & 1) != 0 && model->steps + 1 == FATAL && run->survives)
		kill(getpid(), SIGKILL);
	*weight += (double)batch->samples;
	*loss_sum += (double)batch->samples * mlp_first(model, 0);
	return DDP_OK;
}

static ddp_status evaluated(void *user, int64_t step, double loss, double weight)
{
	CHECK(weight == SAMPLES);
	atomic_store(&run->evaluated, (int)step);
	run->evaluation[step] = loss;
	return DDP_OK;
}

static void change(ddp_model *model)
{
	CHECK_OK(ddp_model_param_wait(model, DDP_ALL_PARAMS));
	if (own_rank == 0) {
		mlp_start(model);
		mlp_set_first(model, BUFFER, mlp_first(model, BUFFER) + 1);
	}
	CHECK_OK(ddp_model_broadcast_params(model));
}

/* Makes step FATAL, and takes it back. */
static void go_back(ddp_model *model, ddp_loader *loader)
{
	int64_t step;

	if (model->steps == FATAL - 1)
		CHECK_OK(ddp_checkpoint_save(model, loader, test_folder, 3));
	if (model->steps != FATAL)
		return;
	CHECK_OK(ddp_checkpoint_load(model, loader, test_folder, &step));
	/* Copies are made that the change then makes stale. */
	CHECK_OK(ddp_survive(model, loader, DDP_OK, &step));
	change(model);
	run->ended[own_rank][FATAL] = 0;
	went_back = true;
	CHECK_OK(ddp_survive(model, loader, DDP_OK, &step));
}

static ddp_status own_loop(ddp_model *model, ddp_loader *loader)
{
	int64_t done;
	ddp_batch batch;
	ddp_step_stats stats;

	ddp_status status = run->survives ? ddp_survive(model, loader, DDP_OK, &done) : DDP_OK;
	while (status == DDP_OK && model->steps < run->steps) {
		const int batches = ddp_loader_accumulation(loader);
		double weight = 0, loss = 0;
		for (int i = 0; i < batches && status == DDP_OK; i++) {
			CHECK_OK(ddp_loader_next(loader, &batch));
			status = ddp_model_set_sync(model, i == batches - 1);
			if (status == DDP_OK)
				status = batch_of(NULL, model, &batch, &weight, &loss);
		}
		if (status == DDP_OK)
			status = ddp_model_step(model, weight, loss, &stats);
		const bool ended = status == DDP_OK;
		const int64_t before = model->steps;
		if (run->survives)
			status = ddp_survive(model, loader, status, &done);
		/* A rank that lagged has got the step from another one. */
		if (ended || model->steps > before)
			after_step(NULL, ended ? &stats : &model->stats);
		if (run->goes_back && run->survives && !went_back)
			go_back(model, loader);
	}
	if (run->goes_back && !run->survives && model->steps == FATAL - 1)
		change(model);
	return status == DDP_OK ? ddp_model_param_wait(model, DDP_ALL_PARAMS) : status;
}

static ddp_loader *loader_of(ddp_context *context, int batch)
{
	const ddp_dataset dataset = mlp_dataset(SAMPLES);
	const ddp_loader_options options = {
		DDP_LOADER_OPTIONS_FIELDS, .batch_size = batch, .seed = SEED, .tail = DDP_TAIL_UNEVEN,
		.global_batch = GLOBAL_BATCH,
	};
	ddp_loader *loader;

	CHECK_OK(ddp_loader_create(context, &dataset, &options, &loader));
	return loader;
}

static ddp_model *model_made(ddp_context *context)
{
	const ddp_model_options options = {
		DDP_MODEL_OPTIONS_FIELDS, .learning_rate = 0.01, .weight_decay = 0.1, .bucket_mb = 1024.0 / (1 << 20),
		.shard = run->world.shard, .compress = run->world.compress, .buddy = run->world.buddy,
		.late_gather = run->world.late, .clip_norm = run->world.clips ? 0.01 : 0,
		.memory = queue != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST, .stream = queue,
	};
	ddp_param params[MLP_PARAMS + 1];
	ddp_model *model;

	memcpy(params, mlp_params, sizeof(mlp_params));
	params[BUFFER] = (ddp_param){ .name = "mean", .ndim = 1, .shape = { 1 }, .kind = DDP_BUFFER_MEAN };
	CHECK_OK(ddp_model_create(context, params, MLP_PARAMS + 1, &options, &model));
	if (own_rank == 0)
		mlp_start(model);
	CHECK_OK(ddp_model_broadcast_params(model));
	for (int p = 0; p < MLP_PARAMS; p++)
		CHECK_OK(ddp_model_set_grad_hook(model, p, gradient_of, NULL));
	return model;
}

static const char *metrics_path(void)
{
	static char path[sizeof(test_folder) + 16];

	snprintf(path, sizeof(path), "%s/metrics", test_folder);
	return path;
}

static void keep_warning(void *user, ddp_log_level level, const char *message)
{
	snprintf(run->warning[own_rank], sizeof(run->warning[own_rank]), "%s", message);
}

static void open_device(ddp_context *context)
{
	CHECK_OK(ddp_device_open("cuda", &context->device));
	test_nccl_standin()->polls = 1;
	ddp_comm_use_device(context->world, context->device);
	CHECK_OK(ddp_device_queue_create(context->device, DDP_DEVICE_NORMAL, &queue));
}

static void close_device(ddp_context *context)
{
	CHECK_OK(ddp_device_queue_free(context->device, queue));
	side_all_freed(context);
}

static int rank_body_of(ddp_comm *comm, void *argument)
{
	ddp_context context = test_context_of(comm);
	ddp_loader *loader, *evaluation;
	int64_t step;

	own_rank = context.job.rank;
	ddp_set_log(keep_warning, NULL, DDP_LOG_WARN);
	if (run->records)
		CHECK_OK(ddp_watch_record(context.watch, &context.job, metrics_path(), NULL));
	if (run->world.device)
		open_device(&context);
	model_of_rank = model_made(&context);
	loader = loader_of(&context, run->batch);
	evaluation = loader_of(&context, run->batch);
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS, .steps = run->steps, .checkpoint_dir = test_folder, .resume = run->resumes,
		.checkpoint_every = run->survives && run->point != SAVING ? 0 : EVERY, .on_step = after_step,
		.evaluate_loader = evaluation, .evaluate = evaluate_batch, .on_evaluate = evaluated, .evaluate_every = EVERY,
		.survive = run->survives,
	};
	if (run->own_loop && run->resumes)
		CHECK_OK(ddp_checkpoint_load(model_of_rank, loader, test_folder, &step));
	ddp_status status = run->own_loop ? own_loop(model_of_rank, loader)
	                                  : ddp_train(model_of_rank, loader, batch_of, &options, NULL);
	run->status[own_rank] = status;
	snprintf(run->message[own_rank], sizeof(run->message[own_rank]), "%s", ddp_last_error());
	if (status == DDP_OK && run->own_loop && !run->survives)
		CHECK_OK(ddp_checkpoint_save(model_of_rank, loader, test_folder, 3));
	if (ddp_comm_rank(ddp_model_comm(model_of_rank)) == 0) {
		mlp_pack(model_of_rank, run->params);
		run->buffer = mlp_first(model_of_rank, BUFFER);
	}
	ddp_loader_free(loader);
	ddp_loader_free(evaluation);
	/* Whatever has failed, a communicator of those that are left is the model's own. */
	CHECK(ddp_model_comm(model_of_rank) == comm || model_of_rank->survival->owns_comm);
	ddp_model_free(model_of_rank);
	if (queue != NULL)
		close_device(&context);
	ddp_watch_close(context.watch);
	return 0;
}

/* Where newcomers may join, one model of the world survives. Metrics belong to the world's first rank. */
static int models_body_of(ddp_comm *comm, void *argument)
{
	ddp_context context = test_context_of(comm);
	int64_t steps;

	own_rank = context.job.rank;
	context.renewal.possible = true;
	ddp_model *one = model_made(&context), *other = model_made(&context);
	const ddp_status several = ddp_survive(one, NULL, DDP_OK, &steps);
	snprintf(run->message[own_rank], sizeof(run->message[own_rank]), "%s", ddp_last_error());
	ddp_model_free(other);
	CHECK_OK(ddp_survive(one, NULL, DDP_OK, &steps));
	run->status[own_rank] = one->survival->of_writer ? several : DDP_ERR_STATE;
	ddp_model_free(one);
	ddp_watch_close(context.watch);
	return 0;
}

/* No rank waits for the deadline, although rank 1 stays. */
static int copies_body_of(ddp_comm *comm, void *argument)
{
	ddp_context context = test_context_of(comm);

	own_rank = context.job.rank;
	ddp_model *model = model_made(&context);
	CHECK_OK(ddp_buddy_open(model));
	run->status[own_rank] = ddp_buddy_renew(model);
	atomic_fetch_add(&run->arrived, 1);
	while (atomic_load(&run->arrived) < run->world.ranks)
		usleep(1000);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

/* Rank 0 writes a checkpoint, of which rank 1 has not heard when rank 2 dies. */
static int saves_body_of(ddp_comm *comm, void *argument)
{
	ddp_context context = test_context_of(comm);
	int64_t steps;

	own_rank = context.job.rank;
	ddp_model *model = model_made(&context);
	ddp_set_log(keep_warning, NULL, DDP_LOG_WARN);
	CHECK_OK(ddp_survive(model, NULL, DDP_OK, &steps));
	CHECK_OK(ddp_checkpoint_save_async(model, NULL, test_folder, 3));
	if (own_rank != 0) {
		model->saves = false;
		ddp_model_attach(model, NULL, NULL);
	}
	atomic_fetch_add(&run->arrived, 1);
	while (own_rank == 2 && atomic_load(&run->arrived) < 3)
		usleep(1000);
	if (own_rank == 2)
		kill(getpid(), SIGKILL);
	CHECK_OK(ddp_survive(model, NULL, ddp_barrier(comm), &steps));
	/* Both ranks wait for the end of the save. */
	CHECK(model->saves && model->attached != NULL);
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

/* Rank 0 still has its shard; rank 1 was fitted to the ranks that are left, on one node, and has no shard any more. */
static int fitted_body_of(ddp_comm *comm, void *argument)
{
	ddp_context context = test_context_of(comm);
	ddp_survivor all[2] = { { .fitted = 3, .sharded = true, .whole = true }, { .fitted = 2, .whole = true } };
	int64_t steps = FATAL;

	own_rank = context.job.rank;
	ddp_model *model = model_made(&context);
	run->status[own_rank] = ddp_buddy_find_step(model, comm, all, &steps);
	snprintf(run->message[own_rank], sizeof(run->message[own_rank]), "%s", ddp_last_error());
	/* Without shards, each rank finds all that it needs with the others. */
	all[0].sharded = false;
	CHECK_OK(ddp_buddy_find_step(model, comm, all, &steps));
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

/* ---- the test -------------------------------------------------------------------------- */

static void kill_ranks(const pid_t *pids, unsigned int which)
{
	for (int r = 0; r < run->world.ranks; r++) {
		if (which >> r & 1)
			kill(pids[r], SIGKILL);
	}
}

static void kill_anywhere(const pid_t *pids, void *argument)
{
	if (run->point != ANYWHERE || !run->survives)
		return;
	while (atomic_load(&run->step) < FATAL)
		usleep(50);
	usleep(run->delay);
	kill_ranks(pids, run->dying);
	usleep(run->pause);
	kill_ranks(pids, run->later);
}

static void start_run(const world *of, const int *node_of, int64_t steps)
{
	const test_world started = { .ranks = of->ranks, .node_of = node_of, .body = rank_body_of,
	                             .at_start = kill_anywhere, .expect_deaths = true };

	run->world = *of;
	run->steps = steps;
	assert_int_equal(test_world_run(&started), 0);
}

static void expect_success(unsigned int dying)
{
	for (int r = 0; r < run->world.ranks; r++) {
		if ((dying >> r & 1) == 0 && run->status[r] != DDP_OK)
			fail_msg("rank %d: %s: %s; %s", r, ddp_status_name(run->status[r]), run->message[r], run->warning[r]);
	}
}

/* The number of ranks in a world without a set; node_of becomes where these are, by the first rank of each node. So it is
   the same for all sets that leave the same ranks on the same nodes. */
static int count_left(const world *of, unsigned int without, int node_of[RANKS_MAX])
{
	int left = 0, first[RANKS_MAX];

	memset(first, -1, sizeof(first));
	for (int r = 0; r < of->ranks; r++) {
		const int node = of->node_of != NULL ? of->node_of[r] : 0;
		if ((without >> r & 1) != 0)
			continue;
		if (first[node] < 0)
			first[node] = left;
		node_of[left++] = first[node];
	}
	return left;
}

/* A training of the ranks that were there in these steps, from the last checkpoint on. */
static void run_part(const world *of, unsigned int without, int64_t last)
{
	int node_of[RANKS_MAX];
	world part = *of;

	part.ranks = count_left(of, without, node_of);
	start_run(&part, node_of, last);
	expect_success(0);
	run->resumes = true;
}

/* The last step that so many ranks have done, or fewer did none before. */
static int64_t last_with(const shared *seen, int ranks)
{
	int64_t step = 0;

	while (step < LAST && seen->ranks_of[step + 1] >= ranks)
		step++;
	return step;
}

enum { PARTS = 3, REFERENCES = 96 };

/* All that a training depends on which goes on from checkpoints with fewer ranks */
typedef struct course {
	const world *of;
	bool own_loop, goes_back;
	int64_t last[PARTS];
	int ranks[PARTS], node_of[PARTS][RANKS_MAX];
} course;

static void plan_course(const world *of, const shared *seen, const unsigned int *without, course *plan)
{
	memset(plan, 0, sizeof(*plan)); /* its padding is compared, too */
	plan->of = of;
	plan->own_loop = seen->own_loop;
	plan->goes_back = seen->goes_back;
	for (int i = 0; i < PARTS; i++) {
		plan->ranks[i] = count_left(of, without[i], plan->node_of[i]);
		plan->last[i] = last_with(seen, plan->ranks[i]);
	}
	assert_int_equal(plan->last[PARTS - 1], LAST);
}

/* Trains in each step with as many ranks as were left in `seen`, unless a reference of the same course has run. */
static void run_reference(const world *of, const shared *seen)
{
	static struct { course plan; shared ran; } kept[REFERENCES];
	static int count;
	const unsigned int without[PARTS] = { 0, seen->dying, seen->dying | seen->later };
	course plan;

	plan_course(of, seen, without, &plan);
	for (int i = 0; i < count; i++) {
		if (memcmp(&kept[i].plan, &plan, sizeof(plan)) == 0) {
			*run = kept[i].ran;
			return;
		}
	}
	memset(run->status, 0, sizeof(run->status));
	run->survives = run->resumes = false;
	folder_empty(NULL);
	for (int i = 0; i < PARTS; i++) {
		if (plan.last[i] > (i > 0 ? plan.last[i - 1] : 0))
			run_part(of, without[i], plan.last[i]);
	}
	assert_true(count < REFERENCES);
	kept[count].plan = plan;
	kept[count++].ran = *run;
}

static void expect_same(const shared *seen)
{
	for (int64_t step = 1; step <= LAST; step++) {
		if (memcmp(&run->loss[step], &seen->loss[step], sizeof(double)) != 0)
			fail_msg("step %lld: loss %.17g, not %.17g", (long long)step, seen->loss[step], run->loss[step]);
		if (step % EVERY == 0)
			assert_memory_equal(&run->evaluation[step], &seen->evaluation[step], sizeof(double));
	}
	assert_memory_equal(run->params, seen->params, sizeof(run->params));
	assert_true(run->buffer == seen->buffer);
}

/* Runs what the test has put into `run`, and holds it against the reference. */
static void survive_as(const world *of)
{
	shared *seen = malloc(sizeof(*seen));
	const unsigned int dying = run->dying | run->later;

	folder_empty(NULL);
	run->batch = GLOBAL_BATCH / of->ranks;
	run->survives = true;
	start_run(of, of->node_of, LAST);
	expect_success(dying);
	memcpy(seen, run, sizeof(*seen));
	const int64_t last = last_with(seen, of->ranks);
	print_message("# %s: ranks %#x, %#x die (%d, %u us): %lld steps with all\n", of->name, run->dying, run->later,
	              (int)run->point, (unsigned int)run->delay, (long long)last);
	/* If the copy of a step was not whole, the step is taken back. From FORWARD to UPDATE, it is whole. */
	const bool at_end = run->point == AFTER || run->point == EVALUATING || (of->device && run->point == BEFORE);
	const bool shares = of->buddy && !of->late && !of->device && of->node_of == NULL;
	const bool copies = of->buddy && !shares, incomplete = copies && at_end;
	assert_true(run->point == ANYWHERE || last == FATAL - 1 || last == FATAL || (incomplete && last == FATAL - 2));
	for (int64_t step = 1; step <= LAST; step++) {
		const bool again = run->point == ANYWHERE || (incomplete && step == FATAL - 1) || (run->later != 0 && step == FATAL + 2);
		const int most = copies && again ? 2 : 1;
		for (int r = 0; r < of->ranks; r++)
			assert_true((seen->ended[r][step] >= 1 && seen->ended[r][step] <= most && seen->norm[r][step] > 0) ||
			            (dying >> r & 1) != 0);
	}
	if (last < LAST) {
		run_reference(of, seen);
		expect_same(seen);
	}
	free(seen);
}

static void survive(const world *of, unsigned int dying, point where, useconds_t delay, bool own)
{
	memset(run, 0, sizeof(*run));
	run->point = where;
	run->dying = dying;
	run->delay = delay;
	run->own_loop = own;
	survive_as(of);
}

static const world worlds[] = {
	{ "one node", 4, NULL, .shard = DDP_SHARD_AUTO },
	{ "one node, nothing shared", 3, NULL, .shard = DDP_SHARD_NONE },
	{ "two nodes", 4, node_by_node, .shard = DDP_SHARD_AUTO },
	{ "two nodes, mixed", 4, two_nodes, .shard = DDP_SHARD_AUTO },
	{ "four nodes", 4, four_nodes, .shard = DDP_SHARD_AUTO },
	{ "in 16 bits", 4, two_nodes, .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16 },
	{ "a device each", 3, NULL, .shard = DDP_SHARD_NONE, .device = true },
	{ "a device each, in 16 bits", 4, two_nodes, .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16,
	  .device = true, .clips = true },
	{ "a device each, shards", 4, NULL, .shard = DDP_SHARD_STATE, .buddy = true, .device = true },
	{ "a device each, gradients' shards", 4, two_nodes, .shard = DDP_SHARD_GRADIENTS, .buddy = true, .late = true,
	  .clips = true, .device = true },
	{ "shards on two nodes", 4, node_by_node, .shard = DDP_SHARD_STATE, .buddy = true, .clips = true },
	{ "shards on four nodes", 4, four_nodes, .shard = DDP_SHARD_STATE, .buddy = true, .late = true, .clips = true },
	{ "gradients' shards on a node", 4, NULL, .shard = DDP_SHARD_GRADIENTS, .buddy = true },
	{ "gradients' shards on two nodes", 4, two_nodes, .shard = DDP_SHARD_GRADIENTS, .buddy = true, .late = true },
};
enum { WORLDS = sizeof(worlds) / sizeof(worlds[0]), SHARDED = 4 };

TEST(one_rank_dies_at_each_point)
{
	int turn = 0;

	for (int w = 0; w < WORLDS; w++) {
		/* The ways are: shared memory; that and the network; the network. Others differ in little. */
		const bool all = w == 0 || worlds[w].node_of == node_by_node || worlds[w].node_of == four_nodes ||
		                 ((worlds[w].buddy || worlds[w].device) && worlds[w].node_of == NULL);
		/* Under a sanitizer each point comes in every third one of these. */
		turn += all;
		for (point where = all ? BEFORE : UPDATE; where <= (all ? EVALUATING : AFTER); where++) {
			if ((SANITIZER && all && (turn + (int)where) % 3 != 0) || (!all && !test_takes((size_t)w + where)))
				continue;
			/* Rank 0 writes checkpoints. */
			const int victim = where == SAVING ? 0 : (w + (int)where) % worlds[w].ranks;
			survive(&worlds[w], 1u << victim, where, 0, false);
		}
	}
}

/* Others have ended the step, so they send it to the ranks that lag. */
TEST(ranks_that_lag_get_the_step)
{
	size_t turn = 0;

	for (int w = 0; w < WORLDS; w++) {
		/* Other strategies meet at the end of an update. */
		if (worlds[w].shard != DDP_SHARD_NONE || !test_takes(turn++))
			continue;
		memset(run, 0, sizeof(*run));
		run->dying = 0x1;
		run->lagging = 0x2;
		survive_as(&worlds[w]);
		assert_int_equal(run->ranks_of[FATAL], worlds[w].ranks);
	}
}

TEST(some_ranks_die_at_once)
{
	survive(&worlds[2], 0xc, UPDATE, 0, false);   /* a whole node */
	survive(&worlds[2], 0x3, BACKWARD, 0, false); /* that of rank 0 */
	survive(&worlds[0], 0xd, UPDATE, 0, false);   /* all but one */
	survive(&worlds[3], 0x3, FORWARD, 0, false);  /* one of each node */
}

/* The first of the worlds in which each rank's shard has a copy. */
static const world *with_buddies(int i)
{
	return &worlds[WORLDS - SHARDED + i];
}

/* A whole node, whose shards have copies on the other one; two ranks that are not each other's buddies; and all ranks but
   one. */
TEST(shards_of_some_ranks_survive)
{
	static const world two = { "shards of two ranks", 2, NULL, .shard = DDP_SHARD_GRADIENTS, .buddy = true, .late = true };
	static const world there = { "shards of two ranks on devices", 2, NULL, .shard = DDP_SHARD_STATE, .buddy = true,
		                     .device = true };

	survive(&two, 0x1, UPDATE, 0, false);
	survive(&there, 0x2, UPDATE, 0, true);
	/* In shared memory, a rank finds the shards of all others. */
	survive(with_buddies(2), 0xb, UPDATE, 0, false);
	survive(with_buddies(2), 0x7, AFTER, 0, true);
	survive(with_buddies(0), 0x3, UPDATE, 0, false);
	survive(with_buddies(0), 0xc, BEFORE, 0, false);
	survive(with_buddies(3), 0x5, AFTER, 0, true);
	survive(with_buddies(1), 0x5, UPDATE, 0, true);
}

/* Those that are left have made new copies: the second rank was the buddy of the first. */
TEST(buddies_are_made_anew)
{
	static const int first[SHARDED] = { 0, 1, 2, 3 }, second[SHARDED] = { 2, 2, 3, 2 };

	for (int i = 0; i < SHARDED; i++) {
		if (!test_takes((size_t)i / 2))
			continue;
		memset(run, 0, sizeof(*run));
		run->point = i % 2 == 0 ? AFTER : UPDATE;
		run->dying = 1u << first[i];
		run->later = 1u << second[i];
		run->own_loop = i % 2 == 0;
		survive_as(with_buddies(i));
	}
}

/* A step that was taken back is done again, and then a rank dies in its evaluation: the program's state is that of the
   second time. */
TEST(a_step_is_done_again_and_evaluated)
{
	memset(run, 0, sizeof(*run));
	run->point = AFTER;
	run->dying = 0x1;
	run->later = 0x4;
	run->evaluates = true;
	survive_as(with_buddies(1));
}

/* Each rank that is left returns the error, and says why it cannot go on. */
TEST(a_shard_and_its_copy_are_lost)
{
	for (int i = 0; i < SHARDED; i++) {
		const world *of = with_buddies(i);
		if (of->node_of == NULL)
			continue;
		memset(run, 0, sizeof(*run));
		folder_empty(NULL);
		run->point = i % 2 == 0 ? UPDATE : BEFORE;
		run->dying = of->node_of == node_by_node || of->node_of == two_nodes ? 0x7 : 0x3;
		run->batch = GLOBAL_BATCH / of->ranks;
		run->survives = true;
		start_run(of, of->node_of, LAST);
		for (int r = 0; r < of->ranks; r++) {
			if (run->dying >> r & 1)
				continue;
			assert_int_equal(run->status[r], DDP_ERR_PEER);
			assert_non_null(strstr(run->warning[r], "are both lost; go back to the last checkpoint"));
		}
	}
}

/* One rank lacks memory, or all fail when their model is fitted. Nobody goes on. */
TEST(all_end_if_one_cannot_recover)
{
	for (int late = 0; late < 2; late++) {
		memset(run, 0, sizeof(*run));
		folder_empty(NULL);
		run->point = BACKWARD;
		run->dying = 0x1;
		run->unable = late ? 0 : 0x2;
		run->resume_fails = late;
		run->batch = GLOBAL_BATCH / worlds[1].ranks;
		run->survives = true;
		start_run(&worlds[1], worlds[1].node_of, LAST);
		for (int r = 1; r < worlds[1].ranks; r++) {
			assert_int_equal(run->status[r], DDP_ERR_PEER);
			assert_non_null(strstr(run->warning[r], late ? "the device fails late" : r == 1 ? "no memory for the state"
			                                        : "could not put back its buffers and the program's state"));
		}
	}
}

TEST(one_rank_cannot_send_its_copy)
{
	const world *of = with_buddies(0);
	const test_world started = { .ranks = of->ranks, .node_of = of->node_of, .body = copies_body_of, .timeout_ms = 60000 };

	memset(run, 0, sizeof(*run));
	run->world = *of;
	run->transfer_fails = true;
	assert_int_equal(test_world_run(&started), 0);
	for (int r = 0; r < of->ranks; r++)
		assert_int_equal(run->status[r], r == 1 ? DDP_ERR_IO : DDP_ERR_ABORTED);
}

TEST(a_save_goes_on_with_those_that_are_left)
{
	const test_world started = { .ranks = 3, .body = saves_body_of, .expect_deaths = true };

	memset(run, 0, sizeof(*run));
	folder_empty(NULL);
	run->world = worlds[1];
	assert_int_equal(test_world_run(&started), 0);
	assert_non_null(strstr(run->warning[0], "2 of 3 ranks go on"));
}

TEST(buddies_are_on_other_nodes)
{
	static const int of_ranks[][7] = { { 0, 0, 0, 0, 0, 0, 0 }, { 0, 1, 2, 3, 4, 5, 6 }, { 0, 1, 0, 1, 2, 2, 1 },
	                                   { 0, 0, 0, 1, 1, 1, 2 }, { 0, 1, 1, 1, 1, 0, 1 }, { 1, 0, 0, 0, 0, 0, 0 } };

	for (size_t i = 0; i < sizeof(of_ranks) / sizeof(of_ranks[0]); i++) {
		const int *nodes = of_ranks[i];
		int order[7], buddies[7], wards[7] = { 0 }, most = 0;
		ddp_buddy_choose(nodes, 7, order, buddies);
		for (int r = 0; r < 7; r++) {
			assert_int_not_equal(buddies[r], r);
			assert_true(i == 0 || nodes[buddies[r]] != nodes[r]);
			most = ++wards[buddies[r]] > most ? wards[buddies[r]] : most;
		}
		/* Only if a node has more ranks than all others do some of these have more wards than one. */
		assert_int_equal(most, i == 5 ? 6 : i == 4 ? 3 : 1);
	}
}

TEST(the_environment_asks_for_copies)
{
	static const struct {
		const char *text;
		bool own, buddy, refused;
	} given[] = { { "1", false, true, false }, { "0", true, false, false }, { "", true, true, false }, { "", false, false, false }, { "yes", false, false, true } };
	ddp_model_settings settings;

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .buddy = given[i].own };
		assert_int_equal(setenv("DDP_BUDDY", given[i].text, 1), 0);
		const ddp_status status = ddp_model_settings_make(&options, &settings);
		if (given[i].refused)
			assert_true(status == DDP_ERR_INVALID && strstr(ddp_last_error(), "DDP_BUDDY is \"yes\"") != NULL);
		else
			assert_true(status == DDP_OK && settings.options.buddy == given[i].buddy);
	}
	unsetenv("DDP_BUDDY");
}

TEST(own_loops_survive)
{
	survive(with_buddies(1), 0x1, AFTER, 0, true);
	survive(&worlds[0], 0x2, UPDATE, 0, true);
	survive(&worlds[4], 0x1, BACKWARD, 0, true);
}

/* What was kept of the steps that were taken back is of no use. */
TEST(own_loops_go_back)
{
	for (int w = 0; w < WORLDS; w++) {
		/* Other worlds have the strategies of these two. */
		if ((worlds[w].node_of == two_nodes && worlds[w].compress == DDP_COMPRESS_NONE) || !test_takes((size_t)w))
			continue;
		memset(run, 0, sizeof(*run));
		run->point = FORWARD;
		run->dying = 0x4;
		run->own_loop = run->goes_back = true;
		survive_as(&worlds[w]);
	}
}

TEST(metrics_go_on_without_rank_0)
{
	char line[2048];
	long long step = 0, said;

	memset(run, 0, sizeof(*run));
	run->point = FORWARD;
	run->dying = 0x1;
	run->records = run->survives = true;
	run->batch = GLOBAL_BATCH / worlds[0].ranks;
	folder_empty(NULL);
	start_run(&worlds[0], worlds[0].node_of, LAST);
	expect_success(run->dying);
	FILE *file = fopen(metrics_path(), "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file) != NULL) {
		assert_int_equal(sscanf(strstr(line, "\"step\":"), "\"step\":%lld", &said), 1);
		assert_int_equal(said, ++step);
	}
	fclose(file);
	assert_int_equal(step, LAST);
}

TEST(one_model_survives_with_newcomers)
{
	const test_world started = { .ranks = 2, .body = models_body_of };

	memset(run, 0, sizeof(*run));
	run->world = worlds[1];
	assert_int_equal(test_world_run(&started), 0);
	for (int r = 0; r < 2; r++) {
		assert_int_equal(run->status[r], DDP_ERR_UNSUPPORTED);
		assert_non_null(strstr(run->message[r], "the program trains several on all ranks"));
	}
}

TEST(ranks_that_are_fitted_unlike_do_not_go_on)
{
	const test_world started = { .ranks = 2, .body = fitted_body_of };

	memset(run, 0, sizeof(*run));
	run->world = worlds[1];
	assert_int_equal(test_world_run(&started), 0);
	for (int r = 0; r < 2; r++) {
		assert_int_equal(run->status[r], DDP_ERR_STATE);
		assert_non_null(strstr(run->message[r], "rank 0 has a shard of 3 ranks, and rank 1 a shard of 2"));
	}
}

TEST(ranks_die_at_any_time)
{
	srand(7);
	for (int i = 0; i < ROUNDS; i++) {
		const world *of = &worlds[3 * i % WORLDS];
		const unsigned int dying = 1u << rand() % of->ranks, delay = (unsigned)rand() % 3000;
		if (test_takes((size_t)i / 2))
			survive(of, dying, ANYWHERE, delay, false);
	}
}

/* The second one dies while the others go on without the first, or a little later. */
TEST(a_rank_dies_while_others_recover)
{
	for (int i = 0; i < ROUNDS; i++) {
		const world *of = &worlds[3 * i % WORLDS];
		const int first = rand() % of->ranks;
		memset(run, 0, sizeof(*run));
		run->point = ANYWHERE;
		run->dying = 1u << first;
		const int others = 1 + rand() % (of->ranks - 1);
		/* The second one is not the buddy of the first, nor the other way round. */
		run->later = 1u << (of->buddy ? of->node_of == node_by_node ? first ^ 1 : (first + 2) % of->ranks
		                              : (first + others) % of->ranks);
		run->delay = (useconds_t)(rand() % 2000);
		run->pause = (useconds_t)(rand() % 6000);
		if (test_takes((size_t)i / 2 + 1))
			survive_as(of);
	}
}

int main(void)
{
	run = test_share(sizeof(*run));
	if (folder_make(NULL) != 0)
		return 1;
	int failed = test_run(NULL, NULL);
	folder_remove(NULL);
	return failed;
}
