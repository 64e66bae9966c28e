/* SPDX-License-Identifier: Apache-2.0 */
#include "train/survive.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/api.h"
#include "data/loader.h"
#include "reduce/buddy.h"
#include "reduce/fit.h"
#include "reduce/join.h"
#include "reduce/level.h"
#include "reduce/model_state.h"
#include "reduce/survival.h"
#include "renewal.h"
#include "state/save.h"
#include "watch/page.h"
#include "watch/watch.h"

enum { ATTEMPTS = 16 };

/* Keeps the error that the caller returns. */
static void free_comm(ddp_comm *comm)
{
	ddp_kept_error why;

	ddp_error_keep(&why, DDP_ERR_STATE);
	if (ddp_comm_free(comm) == DDP_OK)
		return;
	ddp_log(DDP_LOG_DEBUG, "%s", ddp_last_error());
	(void)ddp_error_return(&why);
}

/* Where the next step begins. */
static void note_place(ddp_model *model, const ddp_loader *loader)
{
	const ddp_loader_state at = loader != NULL ? ddp_loader_get_state(loader) : (ddp_loader_state){ 0 };

	ddp_survival_note(model, at.epoch, at.samples);
}

static ddp_status begin(ddp_model *model, const ddp_loader *loader)
{
	int rank, ranks;

	if (loader != NULL)
		ddp_loader_place(loader, &rank, &ranks);
	if (loader != NULL && (rank != ddp_comm_rank(model->comm) || ranks != ddp_comm_size(model->comm)))
		return ddp_fail(DDP_ERR_INVALID, "ddp_survive(): the loader has the share of rank %d of %d, and the model is "
		                "trained by rank %d of %d: give both the same option comm", rank, ranks,
		                ddp_comm_rank(model->comm), ddp_comm_size(model->comm));
	return ddp_survival_open(model);
}

/* ---- after a failure ------------------------------------------------------------------- */

/* A rank that is left says this. The step that ended may be one that the loop has not seen yet. */
static ddp_survivor describe(ddp_model *model, const ddp_loader *loader, ddp_status able, const int64_t done[DDP_DONE])
{
	if (model->survival->now.attempts != ddp_survival_attempts(model))
		note_place(model, loader);
	ddp_survivor own = {
		.steps = model->steps, .attempts = model->survival->now.attempts,
		.epoch = model->survival->now.epoch, .samples = model->survival->now.samples,
		.copied = ddp_buddy_copied(model), .fitted = ddp_comm_size(model->comm),
		.sharded = model->buddy != NULL,
		.whole = !model->survival->updating, .learned = model->uses.learned,
		.able = able == DDP_OK, .saves = model->saves,
	};

	memcpy(own.done, done, sizeof(own.done));
	return own;
}

/* The first of the ranks that have ended the last step; -1: each rank has only a part of it. */
static int leader_of(const ddp_survivor *all, int ranks)
{
	int root = -1;

	for (int r = 0; r < ranks; r++) {
		if (all[r].whole != 0 && (root < 0 || all[r].attempts > all[root].attempts))
			root = r;
	}
	return root;
}

static ddp_status fail_unable(const ddp_comm *left, const ddp_survivor *all, int ranks)
{
	for (int r = 0; r < ranks; r++) {
		if (all[r].able == 0)
			return ddp_fail(DDP_ERR_STATE, "rank %d cannot go on: its own error says why",
			                ddp_comm_world_rank(left, r));
	}
	return ddp_fail(DDP_ERR_STATE, "each rank that is left has updated only a part of the parameters");
}

static ddp_status seek(ddp_loader *loader, const ddp_comm *comm, const ddp_survivor *root)
{
	ddp_status status = DDP_OK;
	int rank, ranks;

	if (loader == NULL)
		return DDP_OK;
	ddp_loader_place(loader, &rank, &ranks);
	if (rank != ddp_comm_rank(comm) || ranks != ddp_comm_size(comm))
		status = ddp_loader_refit(loader, ddp_comm_rank(comm), ddp_comm_size(comm));
	if (status != DDP_OK)
		return status;
	ddp_loader_state to = ddp_loader_get_state(loader);
	to.epoch = root->epoch;
	to.samples = root->samples;
	return ddp_loader_seek(loader, &to);
}

/* The model is fitted to a communicator that was made for it. */
static void own_comm(ddp_model *model, ddp_comm *former)
{
	if (model->survival->owns_comm)
		free_comm(former);
	model->survival->owns_comm = true;
}

/* Fits model and loader to those that are left. */
static ddp_status fit(ddp_model *model, ddp_loader *loader, ddp_comm *left, const ddp_survivor *all, int root,
                      bool learned)
{
	ddp_comm *const former = model->comm;
	const bool same_first = ddp_comm_world_rank(left, 0) == ddp_comm_world_rank(former, 0);

	/* Nobody can tell any more whether a rank 0 that is lost has written its checkpoint. */
	ddp_save_follow(model, same_first && all[0].saves != 0);
	ddp_status status = ddp_comm_agree(left, seek(loader, left, &all[root]), "set its loader to the step");
	if (status == DDP_OK)
		status = ddp_model_refit(model, left, ddp_buddy_holders(model));
	if (status != DDP_OK)
		return status;
	own_comm(model, former);
	return ddp_level_resume(model, learned, true);
}

static bool all_able(const ddp_survivor *all, int ranks)
{
	bool able = true;

	for (int r = 0; r < ranks; r++)
		able = able && all[r].able != 0;
	return able;
}

/* Which rank of those that are left leads the others to its step; -1: none. `able`: whether this rank can go on. */
static ddp_status hear(ddp_model *model, const ddp_loader *loader, ddp_comm *left, ddp_status able, ddp_survivor *all,
                       int64_t done[DDP_DONE], int *root)
{
	const ddp_survivor own = describe(model, loader, able, done);
	ddp_status status = ddp_all_gather(left, &own, all, sizeof(own), DDP_U8);

	*root = status == DDP_OK ? leader_of(all, ddp_comm_size(left)) : -1;
	return status;
}

/* The last step is taken back where a rank that is lost has not left a copy of it. */
static ddp_status find_step(ddp_model *model, const ddp_loader *loader, ddp_comm *left, ddp_survivor *all,
                            int64_t done[DDP_DONE], int *root)
{
	int64_t steps = all[*root].steps;
	ddp_status status = ddp_buddy_find_step(model, left, all, &steps);

	if (status != DDP_OK || steps == all[*root].steps)
		return status;
	ddp_survival_go_back(model, steps);
	return hear(model, loader, left, DDP_OK, all, done, root);
}

/* Brings all that are left to one step. If srun starts ranks again, they wait for these; otherwise they go on alone. */
static ddp_status regroup(ddp_model *model, ddp_loader *loader, ddp_comm *left, ddp_survivor *all, int64_t done[DDP_DONE])
{
	const int ranks = ddp_comm_size(left);
	bool *dead = calloc((size_t)ddp_comm_local_size(model->comm), sizeof(*dead));
	ddp_status status = dead != NULL ? ddp_comm_lost(model->comm, left, dead)
	                                 : ddp_fail(DDP_ERR_NOMEM, "no memory for a list of ranks");
	bool learned = true;
	int root;

	ddp_kept_error why;
	ddp_error_keep(&why, status);
	status = hear(model, loader, left, status, all, done, &root);
	if (status == DDP_OK && root >= 0 && all_able(all, ranks))
		status = find_step(model, loader, left, all, done, &root);
	const bool able = root >= 0 && all_able(all, ranks);
	for (int r = 0; r < ranks && status == DDP_OK; r++) {
		learned = learned && all[r].learned != 0;
		for (int i = 0; i < DDP_DONE; i++)
			done[i] = all[r].done[i] < done[i] ? all[r].done[i] : done[i];
	}
	if (status == DDP_OK && !able)
		status = why.status != DDP_OK ? ddp_error_return(&why) : fail_unable(left, all, ranks);
	if (status == DDP_OK)
		status = ddp_level_with(model, left, all, root, dead);
	free(dead);
	if (status != DDP_OK)
		return status;
	/* If more ranks die before the loaders are there, the next attempt begins here. */
	ddp_survival_note(model, all[root].epoch, all[root].samples);
	return model->context->renewal.possible ? DDP_OK : fit(model, loader, left, all, root, learned);
}

/* Forms a communicator of the ranks that are left of `comm`, and fits the model to it. */
static ddp_status try_once(ddp_model *model, ddp_loader *loader, ddp_comm *comm, int64_t done[DDP_DONE], ddp_comm **left)
{
	ddp_status status = ddp_comm_shrink(comm, left);

	if (status != DDP_OK) {
		*left = NULL;
		return status;
	}
	if (ddp_comm_size(*left) == ddp_comm_size(model->comm))
		return ddp_fail(DDP_ERR_STATE, "all ranks are still there");
	ddp_survivor *all = calloc((size_t)ddp_comm_size(*left), sizeof(*all));
	status = ddp_comm_agree(*left, all != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for the ranks that are left"),
	                        "go on");
	if (status == DDP_OK)
		status = regroup(model, loader, *left, all, done);
	free(all);
	return status;
}

/* Ranks may die meanwhile: then those that are left of the ranks that were left try again. */
static ddp_status go_on(ddp_model *model, ddp_loader *loader, int64_t done[DDP_DONE])
{
	ddp_comm *from = model->comm, *left;
	ddp_status status = DDP_OK;

	for (int i = 0; i < ATTEMPTS; i++) {
		const ddp_comm *const of_model = model->comm;
		status = try_once(model, loader, from, done, &left);
		if (left == NULL)
			break;
		if (from != of_model)
			free_comm(from);
		from = left;
		if (status == DDP_OK || !ddp_comm_broken(left))
			break;
	}
	if (from != model->comm)
		free_comm(from);
	return status;
}

/* ---- with newcomers --------------------------------------------------------------------- */

/* Whose step all take up; -1: all are newcomers. done[] becomes what each rank that has stayed has done. */
static int find_stayed(const ddp_survivor *all, int ranks, int64_t done[DDP_DONE], bool *learned)
{
	const int root = leader_of(all, ranks);

	*learned = true;
	for (int i = 0; i < DDP_DONE && root >= 0; i++)
		done[i] = all[root].done[i];
	for (int r = 0; r < ranks; r++) {
		*learned = *learned && all[r].learned != 0;
		for (int i = 0; i < DDP_DONE && all[r].whole != 0; i++)
			done[i] = all[r].done[i] < done[i] ? all[r].done[i] : done[i];
	}
	return root;
}

/* Where each rank is that has stayed. */
static ddp_status hear_stayed(ddp_model *model, const ddp_loader *loader, ddp_comm *world, ddp_survivor *all,
                              const int64_t done[DDP_DONE])
{
	const ddp_survivor newcomer = { .able = 1 };
	const ddp_survivor own = model->survival != NULL ? describe(model, loader, DDP_OK, done) : newcomer;

	return ddp_all_gather(world, &own, all, sizeof(own), DDP_U8);
}

/* More ranks may have died since those that are left agreed on a step. So the last step may have to be taken back now,
   or a shard and its copy are lost. */
static ddp_status find_step_again(ddp_model *model, const ddp_loader *loader, ddp_comm *world, ddp_survivor *all,
                                  const int64_t done[DDP_DONE])
{
	const int root = leader_of(all, ddp_comm_size(world));
	int64_t steps = root >= 0 ? all[root].steps : 0;

	if (root < 0 || all[root].sharded == 0)
		return DDP_OK;
	ddp_status status = model->survival != NULL ? ddp_buddy_find_step(model, world, all, &steps) : DDP_OK;
	status = ddp_comm_agree(world, status, "find the step that all take up");
	if (status != DDP_OK)
		return status;
	if (model->survival != NULL) {
		ddp_survival_go_back(model, steps);
		ddp_buddy_undo(model, steps + 1, NULL);
		status = ddp_survival_restore(model);
	}
	status = ddp_comm_agree(world, status, "put back its buffers and the program's state");
	return status == DDP_OK ? hear_stayed(model, loader, world, all, done) : status;
}

/* A rank that died may have been the only one that could lead others to the last step. */
static ddp_status check_steps(const ddp_survivor *all, int ranks, int root)
{
	if (root < 0)
		return ddp_fail(DDP_ERR_STATE, "no rank is left that has the training's state");
	for (int r = 0; r < ranks; r++) {
		if (all[r].whole != 0 && all[r].steps != all[root].steps)
			return ddp_fail(DDP_ERR_STATE, "rank %d is at step %lld, and rank %d at step %lld", root,
			                (long long)all[root].steps, r, (long long)all[r].steps);
	}
	return DDP_OK;
}

static ddp_status join_with(ddp_model *model, ddp_loader *loader, ddp_comm *world, ddp_survivor *all,
                            int64_t done[DDP_DONE], bool *leads)
{
	const int ranks = ddp_comm_size(world);
	bool learned;

	ddp_status status = hear_stayed(model, loader, world, all, done);
	if (status == DDP_OK)
		status = find_step_again(model, loader, world, all, done);
	if (status != DDP_OK)
		return status;
	const int root = find_stayed(all, ranks, done, &learned);
	status = check_steps(all, ranks, root);
	if (status != DDP_OK)
		return status;
	*leads = root == ddp_comm_rank(world);
	ddp_save_follow(model, all[0].whole != 0 && all[0].saves != 0);
	status = ddp_join(model, world, all, root);
	if (status == DDP_OK)
		status = ddp_comm_agree(world, seek(loader, world, &all[root]), "set its loader to the step");
	if (status != DDP_OK)
		return status;
	note_place(model, loader);
	return ddp_level_resume(model, learned, false);
}

/* Meets all ranks of the generation in a new world, and brings newcomers to the step of the others. While it does so, a
   failure is that of all: srun begins a generation from the last checkpoint. *leads becomes whether this rank is the
   one that tells of it. */
static ddp_status join(ddp_model *model, ddp_loader *loader, int64_t done[DDP_DONE], bool *leads)
{
	ddp_context *context = model->context;
	const int ranks = context->job.world_size;
	ddp_survivor *all = calloc((size_t)ranks, sizeof(*all));

	ddp_page_survives(ddp_watch_page(context->watch), false);
	ddp_status status = all != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", ranks);
	/* The world that it would be left with ends. */
	if (status == DDP_OK && ddp_comm_models(context->world) > 1)
		status = ddp_fail(DDP_ERR_UNSUPPORTED, "the program trains several models on all ranks, and only one can go on "
		                  "with ranks that srun has started again");
	if (status == DDP_OK)
		status = ddp_renewal_meet(context);
	if (status == DDP_OK)
		status = join_with(model, loader, context->world, all, done, leads);
	free(all);
	if (status != DDP_OK)
		return status;
	ddp_renewal_forget(context);
	/* Communicators of the former world may have broken after those that are left had met. */
	if (!ddp_comm_broken(context->world))
		ddp_page_forget_error(ddp_watch_page(context->watch), DDP_ERROR_FINAL);
	ddp_page_survives(ddp_watch_page(context->watch), true);
	return DDP_OK;
}

/* A rank that has stayed waits for the new identity first. */
static ddp_status rejoin(ddp_model *model, ddp_loader *loader, int64_t done[DDP_DONE], bool *leads)
{
	ddp_status status = ddp_renewal_await(model->context);

	return status == DDP_OK ? join(model, loader, done, leads) : status;
}

/* This process was started in place of a rank that has died. */
static ddp_status come(ddp_model *model, ddp_loader *loader, int64_t done[DDP_DONE], bool *left)
{
	bool leads;
	ddp_status status = join(model, loader, done, &leads);

	*left = status == DDP_OK;
	if (status == DDP_OK)
		return DDP_OK;
	if (!model->failed)
		(void)ddp_model_fail(model, status);
	return ddp_fail_context(status, "rank %d was started to join the other ranks", model->context->job.rank);
}

/* Errors that a rank gets because of another one. */
static bool is_of_peer(ddp_status status)
{
	return status == DDP_ERR_PEER || status == DDP_ERR_TIMEOUT || status == DDP_ERR_ABORTED;
}

static void tell(const ddp_model *model, const char *why, int before, double seconds)
{
	if (model->context->renewal.possible) {
		ddp_log(DDP_LOG_WARN, "%s; all %d ranks go on with step %lld, after %.2f s", why, before,
		        (long long)model->steps + 1, seconds);
	} else {
		if (model->survival->of_writer)
			ddp_watch_lead(model->context->watch, &model->context->job);
		ddp_log(DDP_LOG_WARN, "%s; %d of %d ranks go on with step %lld, after %.2f s", why, ddp_comm_size(model->comm),
		        before, (long long)model->steps + 1, seconds);
	}
}

static ddp_status recover(ddp_model *model, ddp_loader *loader, ddp_status status, int64_t done[DDP_DONE], bool *left)
{
	const int before = ddp_comm_size(model->comm);
	const uint64_t start_ns = ddp_now_ns();
	ddp_kept_error why;

	ddp_error_keep(&why, status);
	if (!model->failed)
		(void)ddp_model_fail(model, status);
	ddp_status failed = go_on(model, loader, done);
	bool leads = ddp_comm_rank(model->comm) == 0;
	if (failed == DDP_OK && model->context->renewal.possible)
		failed = rejoin(model, loader, done, &leads);
	if (failed == DDP_OK) {
		if (!model->context->renewal.possible)
			ddp_page_survived(ddp_watch_page(model->context->watch));
		if (leads)
			tell(model, why.text, before, ddp_seconds_since(start_ns));
		*left = true;
		return DDP_OK;
	}
	/* From now on the job ends as if nobody had survived. */
	ddp_page_survives(ddp_watch_page(model->context->watch), false);
	ddp_log(DDP_LOG_WARN, "rank %d cannot go on without the ranks that are lost: %s; go back to the last checkpoint",
	        model->context->job.rank, ddp_last_error());
	ddp_status returned = ddp_error_return(&why);
	ddp_watch_error(model->context->watch, returned);
	return returned;
}

/* The program may have changed anything between two steps. */
static ddp_status keep_all(ddp_model *model, const ddp_loader *loader)
{
	note_place(model, loader);
	ddp_survival_keep_buffers(model);
	return ddp_buddy_renew(model);
}

ddp_status ddp_survive_with(ddp_model *model, ddp_loader *loader, ddp_status status, int64_t done[DDP_DONE], bool *left)
{
	*left = false;
	if (model->context->renewal.joins && model->survival == NULL)
		return status == DDP_OK ? come(model, loader, done, left) : status;
	/* A rank that is alone, or the last that is left, has nobody to lose. */
	if (!model->reducer.communicates)
		return status;
	if (model->survival == NULL && status == DDP_OK)
		status = begin(model, loader);
	if (status == DDP_OK)
		status = keep_all(model, loader);
	if (status == DDP_OK || model->survival == NULL || !is_of_peer(status) || !ddp_comm_broken(model->comm))
		return status;
	status = recover(model, loader, status, done, left);
	return status == DDP_OK ? keep_all(model, loader) : status;
}

ddp_status ddp_survive(ddp_model *model, ddp_loader *loader, ddp_status status, int64_t *steps)
{
	int64_t done[DDP_DONE] = { 0 };
	bool left;

	if (model == NULL)
		return ddp_fail_null("ddp_survive", "model");
	status = ddp_survive_with(model, loader, status, done, &left);
	if (steps != NULL)
		*steps = model->steps;
	return status;
}
