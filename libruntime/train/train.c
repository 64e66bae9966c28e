/* SPDX-License-Identifier: Apache-2.0 */
/* train: the loop over steps. A rank whose callback or data fails aborts the
   communicator with the reason, so that all ranks end with an error that
   names it, and none waits. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/path.h"
#include "data/loader.h"
#include "reduce/buddy.h"
#include "reduce/model_state.h"
#include "reduce/survival.h"
#include "state/save.h"
#include "train/survive.h"

typedef struct training {
	ddp_model *model;
	ddp_loader *loader;
	ddp_batch_fn compute;
	const ddp_train_options *options;
	int accumulate;
	bool stops;   /* a rank was asked to: the same on all */
	bool refused; /* the last step, for what all ranks saw alike */
	bool skipped; /* the last step, which was none then */
	bool survives; /* see ddp_survive() */
	int64_t ended;   /* the last step that on_step has had */
	int64_t done[DDP_DONE]; /* this rank has done, by: */
} training;

/* The last steps that were saved and evaluated; and the epoch of evaluate_loader that is next. */
enum { SAVED, EVALUATED, EVALUATION };

/* Signals have no argument: the loops of a process share these. */
static atomic_bool signal_caught;
static int caught_signal;              /* 0: no handler of a loop is set */
static struct sigaction before_caught; /* what that signal did otherwise */

static void catch_signal(int number)
{
	(void)number;
	atomic_store(&signal_caught, true);
}

/* Ranks that do not communicate could not stop together. */
static bool catches(const training *loop)
{
	return loop->options->stop_signal != 0 &&
	       (loop->model->reducer.communicates || ddp_comm_size(loop->model->comm) == 1);
}

static ddp_status set_handler(const training *loop)
{
	struct sigaction action = { .sa_handler = catch_signal, .sa_flags = SA_RESTART };

	if (!catches(loop))
		return DDP_OK;
	/* Before the handler is there: what comes then is heard. */
	atomic_store(&signal_caught, false);
	/* A loop that was stopped has left its own. */
	if (caught_signal == loop->options->stop_signal)
		return DDP_OK;
	if (caught_signal != 0)
		sigaction(caught_signal, &before_caught, NULL);
	caught_signal = 0;
	sigemptyset(&action.sa_mask);
	if (sigaction(loop->options->stop_signal, &action, &before_caught) != 0)
		return ddp_fail_errno(DDP_ERR_INVALID, errno,
		                      "training option stop_signal is %d, which cannot be caught",
		                      loop->options->stop_signal);
	caught_signal = loop->options->stop_signal;
	return DDP_OK;
}

/* Not after a stop: the launcher signals one rank after another, and this one's may come
   only now, when another's has stopped all. It would kill a rank that is about to report. */
static void restore_handler(const training *loop)
{
	if (!catches(loop) || loop->stops)
		return;
	sigaction(caught_signal, &before_caught, NULL);
	caught_signal = 0;
	/* It came behind the last step's end; a loop of this model that follows stops. */
	if (atomic_exchange(&signal_caught, false))
		ddp_model_request_stop(loop->model);
}

/* Ranks that share out the samples otherwise than they train would miss some samples, and train on
   others twice. */
static ddp_status check_loader(const training *loop, const char *which, const ddp_loader *loader)
{
	const ddp_comm *comm = loop->model->comm;
	int rank, ranks;

	ddp_loader_place(loader, &rank, &ranks);
	/* A newcomer's loader has the share that the rank is to have. */
	if (loop->model->context->renewal.joins)
		return DDP_OK;
	if (rank == ddp_comm_rank(comm) && ranks == ddp_comm_size(comm))
		return DDP_OK;
	return ddp_fail(DDP_ERR_INVALID, "ddp_train(): the %s has the share of rank %d of %d, and the model is trained by rank "
	                "%d of %d: give both the same option comm", which, rank, ranks, ddp_comm_rank(comm),
	                ddp_comm_size(comm));
}

static ddp_status check_arguments(const training *loop)
{
	const ddp_train_options *options = loop->options;

	if (loop->loader == NULL || loop->compute == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_train(): the %s is NULL", loop->loader == NULL ? "loader" : "callback");
	if (options->steps <= 0)
		return ddp_fail(DDP_ERR_INVALID, "training option steps is %lld; it must be above 0",
		                (long long)options->steps);
	if ((options->accumulate < 1 && options->accumulate != DDP_AUTO) || options->checkpoint_every < 0 ||
	    options->checkpoint_keep < 1)
		return ddp_fail(DDP_ERR_INVALID, "training options: accumulate is %d, checkpoint_every %lld and "
		                "checkpoint_keep %d; they must be 1 or more (or DDP_AUTO), 0 or more, and 1 or more",
		                options->accumulate, (long long)options->checkpoint_every, options->checkpoint_keep);
	if (options->checkpoint_dir == NULL && (options->resume || options->checkpoint_every > 0))
		return ddp_fail(DDP_ERR_INVALID,
		                "training option %s needs checkpoint_dir",
		                options->resume ? "resume" : "checkpoint_every");
	if (options->evaluate_every < 0)
		return ddp_fail(DDP_ERR_INVALID, "training option evaluate_every must not be negative");
	if ((options->evaluate != NULL) != (options->evaluate_loader != NULL) ||
	    (options->evaluate == NULL && (options->evaluate_every > 0 || options->on_evaluate != NULL)))
		return ddp_fail(DDP_ERR_INVALID, "training option %s is missing, for an evaluation",
		                options->evaluate == NULL ? "evaluate" : "evaluate_loader");
	if (options->evaluate_loader == loop->loader)
		return ddp_fail(DDP_ERR_INVALID, "training option evaluate_loader is the training's loader, whose place an "
		                "evaluation would move; make a loader of its own");
	if (options->schedule != NULL && options->schedule_fn != NULL)
		return ddp_fail(DDP_ERR_INVALID, "training options schedule and schedule_fn are two learning rates; give one "
		                "of them");
	ddp_status status = options->schedule != NULL ? ddp_schedule_check(options->schedule) : DDP_OK;
	if (status == DDP_OK)
		status = check_loader(loop, "loader", loop->loader);
	if (status == DDP_OK && options->evaluate_loader != NULL)
		status = check_loader(loop, "evaluate_loader", options->evaluate_loader);
	return status;
}

/* Has epochs end with a step. */
static ddp_status choose_accumulate(training *loop)
{
	const int own = loop->options->accumulate, loaders = ddp_loader_accumulate(loop->loader);

	loop->accumulate = own > 0 ? own : loaders > 0 ? loaders : 1;
	ddp_status status = ddp_loader_set_accumulate(loop->loader, loop->accumulate);
	/* With global_batch, the loader chooses. */
	loop->accumulate = ddp_loader_accumulation(loop->loader);
	return status;
}

/* Says who failed at what; the callback may have left no message. `step`: to which it belongs. */
static ddp_status name_failure(const training *loop, int64_t step, ddp_status status, const char *what)
{
	char reason[512];

	snprintf(reason, sizeof(reason), "%s",
	         ddp_last_error()[0] != '\0' ? ddp_last_error() : "it gave no reason (ddp_set_error())");
	return ddp_fail(status, "step %lld: %s failed on rank %d with %s: %s",
	                (long long)step, what,
	                loop->model->context->job.rank, ddp_status_name(status), reason);
}

static ddp_status micro_batch(const training *loop, bool last, double *weight, double *loss_sum)
{
	ddp_batch batch;

	ddp_status status = ddp_model_set_sync(loop->model, last);
	if (status != DDP_OK)
		return status;
	ddp_model_set_phase(loop->model, DDP_PHASE_DATA);
	status = ddp_loader_next(loop->loader, &batch);
	if (status != DDP_OK)
		return name_failure(loop, loop->model->steps + 1, status, "reading a batch");
	ddp_model_set_phase(loop->model, DDP_PHASE_FORWARD);
	ddp_forget_error();
	status = loop->compute(loop->options->user, loop->model, &batch, weight, loss_sum);
	/* If it was a collective that failed, the error says all there is. */
	if (status != DDP_OK && !loop->model->failed)
		return name_failure(loop, loop->model->steps + 1, status, "the batch callback");
	return status;
}

static void pass_signal_on(const training *loop)
{
	if (!atomic_exchange(&signal_caught, false))
		return;
	ddp_log(DDP_LOG_INFO, "rank %d: signal %d (%s): all ranks stop after step %lld",
	        loop->model->context->job.rank, loop->options->stop_signal,
	        ddp_signal_text(loop->options->stop_signal), (long long)loop->model->steps + 1);
	ddp_model_request_stop(loop->model);
}

/* All ranks know the step's results. */
static ddp_status end_step(training *loop, const ddp_step_stats *stats)
{
	const ddp_train_options *options = loop->options;

	loop->stops = stats->stop;
	loop->skipped = stats->skipped;
	loop->ended = stats->step;
	if (options->on_step == NULL)
		return DDP_OK;
	ddp_forget_error();
	ddp_status status = options->on_step(options->user, stats);
	/* If it was a collective that failed, the error says all there is. */
	return status == DDP_OK || ddp_comm_broken(loop->model->comm)
	               ? status : name_failure(loop, loop->model->steps, status, "the step callback");
}

static ddp_status one_step(training *loop)
{
	const ddp_train_options *options = loop->options;
	double weight = 0, loss_sum = 0;
	ddp_status status = DDP_OK;
	ddp_step_stats stats;

	if (options->schedule_fn != NULL)
		ddp_model_set_learning_rate(loop->model,
		                      options->schedule_fn(options->user, loop->model->steps + 1));
	if (options->schedule != NULL)
		ddp_model_set_learning_rate(loop->model, ddp_schedule_rate(options->schedule, loop->model->steps + 1));
	for (int i = 0; i < loop->accumulate && status == DDP_OK; i++)
		status = micro_batch(loop, i == loop->accumulate - 1, &weight, &loss_sum);
	pass_signal_on(loop);
	if (status == DDP_OK) {
		status = ddp_model_step(loop->model, weight, loss_sum, &stats);
		loop->refused = status != DDP_OK && loop->model->refused;
	}
	return status == DDP_OK ? end_step(loop, &stats) : status;
}

/* ---- evaluation ---------------------------------------------------------------------- */

enum { BATCHES_APART = 64 }; /* ranks are at most, lest a slow one be taken for one that hangs */

static bool evaluation_is_due(const training *loop)
{
	const ddp_train_options *options = loop->options;
	const int64_t steps = loop->model->steps;

	if (options->evaluate == NULL || loop->skipped)
		return false;
	return steps == options->steps ||
	       (!loop->stops && options->evaluate_every > 0 && steps % options->evaluate_every == 0);
}

/* Adds to sums of weight and loss. A rank's failure here is that of all. */
static ddp_status evaluate_batch(const training *loop, double *sums)
{
	const ddp_train_options *options = loop->options;
	ddp_batch batch;

	ddp_status status = ddp_loader_next(options->evaluate_loader, &batch);
	if (status != DDP_OK)
		return name_failure(loop, loop->model->steps, status, "reading a batch of the evaluation");
	ddp_model_set_phase(loop->model, DDP_PHASE_EVAL);
	ddp_forget_error();
	status = options->evaluate(options->user, loop->model, &batch, &sums[0], &sums[1]);
	return status == DDP_OK ? DDP_OK : name_failure(loop, loop->model->steps, status, "the evaluation callback");
}

static ddp_status evaluate_epoch(const training *loop, double *sums)
{
	ddp_comm *world = loop->model->comm;
	const int64_t batches = ddp_loader_batches_per_epoch(loop->options->evaluate_loader);
	ddp_status status = ddp_model_average_params(loop->model);

	if (status == DDP_OK)
		status = ddp_model_param_wait(loop->model, DDP_ALL_PARAMS);
	/* A step that was evaluated is not taken back. */
	if (status == DDP_OK)
		status = ddp_buddy_settle(loop->model);
	ddp_model_set_phase(loop->model, DDP_PHASE_EVAL);
	for (int64_t i = 0; i < batches && status == DDP_OK; i++) {
		if (i % BATCHES_APART == BATCHES_APART - 1)
			status = ddp_barrier(world);
		if (status == DDP_OK)
			status = evaluate_batch(loop, sums);
	}
	return status == DDP_OK ? ddp_all_reduce(world, sums, sums, 2, DDP_F64, DDP_SUM) : status;
}

static ddp_status evaluate(const training *loop)
{
	const ddp_train_options *options = loop->options;
	double sums[2] = { 0 };

	ddp_status status = evaluate_epoch(loop, sums);
	ddp_model_set_phase(loop->model, DDP_PHASE_EVAL);
	if (status == DDP_OK) {
		loop->model->summary.evaluation_loss = sums[1] / sums[0];
		ddp_forget_error();
		status = options->on_evaluate == NULL ? DDP_OK :
		         options->on_evaluate(options->user, loop->model->steps, sums[1] / sums[0], sums[0]);
		if (status != DDP_OK)
			status = name_failure(loop, loop->model->steps, status, "on_evaluate");
	}
	ddp_model_set_phase(loop->model, DDP_PHASE_IDLE);
	return status;
}

/* ---- checkpoints --------------------------------------------------------------------- */

static bool checkpoint_is_due(const training *loop)
{
	const ddp_train_options *options = loop->options;
	int64_t steps = loop->model->steps;

	if (options->checkpoint_dir == NULL)
		return false;
	return steps == options->steps || loop->stops ||
	       (options->checkpoint_every > 0 && steps % options->checkpoint_every == 0 && !loop->skipped);
}

/* Whether a checkpoint will be due before the last one, and be written beside the steps. */
static bool will_save_beside(const training *loop)
{
	const ddp_train_options *options = loop->options;
	const int64_t steps = loop->model->steps, every = options->checkpoint_every;

	return options->checkpoint_async && every > 0 && every - steps % every < options->steps - steps;
}

/* A disk that is full, or gone for a while, costs a checkpoint, and not the training, as long
   as there is one to come, after step `next`. All ranks see it alike. */
static ddp_status forgive(const training *loop, ddp_status status, int64_t next)
{
	const int64_t steps = loop->options->steps;

	if (status != DDP_ERR_IO)
		return status;
	if (ddp_comm_rank(loop->model->comm) == 0)
		ddp_log(DDP_LOG_WARN, "%s; training goes on, and tries again after step %lld: make room",
		        ddp_last_error(), (long long)(next < steps ? next : steps));
	return DDP_OK;
}

static ddp_status save(const training *loop)
{
	const ddp_train_options *options = loop->options;
	ddp_model *model = loop->model;
	const bool last = model->steps >= options->steps || loop->stops, beside = options->checkpoint_async && !last;

	/* The status of the checkpoint before. The last one waits for it, too, and is written even if it failed. */
	ddp_status status = beside ? forgive(loop, ddp_checkpoint_wait(model), model->steps) : DDP_OK;
	if (status == DDP_OK)
		status = (beside ? ddp_checkpoint_save_async : ddp_checkpoint_save)(
			model, loop->loader, options->checkpoint_dir, options->checkpoint_keep);
	if (!last)
		status = forgive(loop, status, model->steps + options->checkpoint_every);
	if (status != DDP_OK)
		ddp_watch_error(model->context->watch, status);
	return status;
}

/* Saves and evaluates, unless that is not due, or was done before ranks were lost. */
static ddp_status between_steps(training *loop)
{
	ddp_model *model = loop->model;
	ddp_status status = DDP_OK;

	/* A skipped step leaves the number of steps as it was, and a stop in it saves what no checkpoint may hold yet. */
	const bool stops_here = loop->skipped && loop->stops;
	if ((loop->done[SAVED] < model->steps || stops_here) && checkpoint_is_due(loop))
		status = save(loop);
	if (status != DDP_OK)
		return status;
	loop->done[SAVED] = model->steps;
	if (loop->done[EVALUATED] < model->steps && evaluation_is_due(loop)) {
		status = evaluate(loop);
		if (status != DDP_OK && !model->failed)
			ddp_model_fail(model, status);
	}
	if (status != DDP_OK)
		return status;
	loop->done[EVALUATED] = model->steps;
	if (loop->options->evaluate_loader != NULL)
		loop->done[EVALUATION] = ddp_loader_get_state(loop->options->evaluate_loader).epoch;
	return DDP_OK;
}

static ddp_status step_and_after(training *loop)
{
	ddp_model *model = loop->model;
	ddp_status status = one_step(loop);

	/* All ranks saw this alike: they can go back to a checkpoint together. */
	if (loop->refused)
		ddp_watch_error(model->context->watch, status);
	else if (status != DDP_OK && !model->failed)
		ddp_model_fail(model, status);
	return status == DDP_OK ? between_steps(loop) : status;
}

/* An evaluation in the middle of which ranks were lost begins again. */
static ddp_status take_up_evaluation(const training *loop)
{
	ddp_loader *loader = loop->options->evaluate_loader;
	const ddp_comm *comm = loop->model->comm;

	if (loader == NULL)
		return DDP_OK;
	ddp_status status = ddp_loader_refit(loader, ddp_comm_rank(comm), ddp_comm_size(comm));
	if (status != DDP_OK)
		return status;
	ddp_loader_state state = ddp_loader_get_state(loader);
	state.epoch = loop->done[EVALUATION];
	state.samples = 0;
	return ddp_loader_seek(loader, &state);
}

/* Ranks were lost, and this one goes on. It may have missed the end of a step that others saw. */
static ddp_status take_up(training *loop)
{
	loop->accumulate = ddp_loader_accumulation(loop->loader);
	/* The last step may have been taken back. Others may have missed a skipped step, and with either the stop: the next
	   step tells it again. */
	if (loop->skipped || loop->ended > loop->model->steps)
		loop->stops = false;
	if (loop->ended > loop->model->steps)
		loop->ended = loop->model->steps;
	ddp_status status = take_up_evaluation(loop);
	if (status == DDP_OK && loop->model->steps > loop->ended)
		status = end_step(loop, &loop->model->survival->now.stats);
	/* This rank's own failure is that of all. */
	if (status != DDP_OK && !loop->model->failed)
		ddp_model_fail(loop->model, status);
	return status == DDP_OK ? between_steps(loop) : status;
}

/* Goes on without ranks that were lost. Others may be lost meanwhile. */
static ddp_status survive(training *loop, ddp_status status)
{
	bool left = loop->survives;

	while (left) {
		status = ddp_survive_with(loop->model, loop->loader, status, loop->done, &left);
		if (left)
			status = take_up(loop);
		left = left && status != DDP_OK;
	}
	return status;
}

static ddp_status begin_to_survive(training *loop)
{
	bool left;

	loop->done[SAVED] = loop->done[EVALUATED] = loop->ended = loop->model->steps;
	if (loop->options->evaluate_loader != NULL)
		loop->done[EVALUATION] = ddp_loader_get_state(loop->options->evaluate_loader).epoch;
	if (!loop->options->survive)
		return DDP_OK;
	ddp_status status = ddp_survive_with(loop->model, loop->loader, DDP_OK, loop->done, &left);
	loop->survives = loop->model->survival != NULL;
	/* It has joined others, which do the same. */
	if (left) {
		loop->ended = loop->model->steps;
		status = take_up(loop);
		return status == DDP_OK ? DDP_OK : survive(loop, status);
	}
	if (status != DDP_ERR_UNSUPPORTED)
		return status;
	if (ddp_comm_rank(loop->model->comm) == 0)
		ddp_log(DDP_LOG_WARN, "training option survive has no effect: %s; if a rank dies, the training ends, and goes on "
		        "from the last checkpoint", ddp_last_error());
	return DDP_OK;
}

static ddp_status run_steps(training *loop)
{
	ddp_model *model = loop->model;
	ddp_status status = begin_to_survive(loop);

	ddp_model_start_clock(model);
	while (status == DDP_OK && model->steps < loop->options->steps && !loop->stops)
		status = survive(loop, step_and_after(loop));
	if (status == DDP_OK)
		status = ddp_model_average_params(model);
	if (status == DDP_OK)
		status = ddp_model_param_wait(model, DDP_ALL_PARAMS);
	/* It was heard; a loop that comes after this one is not to stop. */
	if (loop->stops)
		atomic_store(&model->stop_requested, false);
	return status;
}

ddp_status ddp_train(ddp_model *model, ddp_loader *loader, ddp_batch_fn compute,
                     const ddp_train_options *given, ddp_summary *summary)
{
	ddp_train_options options = DDP_TRAIN_OPTIONS;
	training loop = { .model = model, .loader = loader, .compute = compute, .options = &options };
	char *dir = NULL;
	int64_t step;

	ddp_status status = ddp_model_check(model);
	if (status == DDP_OK)
		status = ddp_options_copy("ddp_train_options", given, &options, sizeof(options));
	if (status == DDP_OK)
		status = check_arguments(&loop);
	if (status == DDP_OK)
		status = choose_accumulate(&loop);
	if (status == DDP_OK)
		status = set_handler(&loop);
	if (status != DDP_OK)
		return status;
	/* Callbacks may chdir(). Where this fails, saving says so to all ranks. */
	if (options.checkpoint_dir != NULL &&
	    ddp_path_absolute("checkpoint directory", options.checkpoint_dir, &dir) == DDP_OK)
		options.checkpoint_dir = dir;
	/* A checkpoint that fails, fails on all ranks, and leaves the model good. */
	if (options.resume)
		status = ddp_checkpoint_load(model, loader, options.checkpoint_dir, &step);
	if (status == DDP_OK && options.resume && model->steps > options.steps &&
	    ddp_comm_rank(model->comm) == 0)
		ddp_log(DDP_LOG_WARN, "the checkpoint in %s is of step %lld, beyond the %lld steps that the training is "
		        "to have in all: nothing is trained", options.checkpoint_dir, (long long)model->steps,
		        (long long)options.steps);
	if (status == DDP_OK && options.checkpoint_dir != NULL && model->steps < options.steps)
		status = ddp_checkpoint_prepare(model, options.checkpoint_dir);
	/* From a device, a save copies to memory of its own. */
	if (status == DDP_OK && will_save_beside(&loop) && model->place.device == NULL)
		ddp_save_reserve(model);
	if (status == DDP_OK) {
		ddp_watch_last_step(model->context->watch, options.steps);
		status = run_steps(&loop);
	}
	restore_handler(&loop);
	free(dir);
	if (status == DDP_OK && summary != NULL) {
		ddp_model_summary(model, summary);
		summary->stopped = loop.stops && model->steps < options.steps;
	}
	return status;
}
