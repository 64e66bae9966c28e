/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/compare.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "comm/api.h"
#include "comm/core/roster.h"
#include "job/environment.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "watch/progress.h"

bool ddp_compare_is_due(const ddp_model *model)
{
	const int64_t every = model->settings.options.compare_every;

	if (model->compared < 0)
		return true;
	/* Between two averages of local SGD, ranks differ. */
	return every > 0 && model->steps / every > model->compared / every &&
	       (model->strategy->is_local == NULL || model->averaged == model->steps);
}

/* ---- the checksum -------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 32;
}

/* Between two sums of squares their memory is free. */
static ddp_status add_array(const ddp_model *model, const float *x, int64_t count, uint64_t *hash)
{
	uint64_t *sums = (uint64_t *)(void *)model->squares.sums, *here = (uint64_t *)(void *)model->squares.here;
	const int64_t most = model->squares.most * DDP_PIECE_ELEMENTS;
	ddp_status status = DDP_OK;

	for (int64_t at = 0; at < count && status == DDP_OK; at += most) {
		const int64_t left = count - at < most ? count - at : most, pieces = ddp_pieces_in(left);
		dk_queue *before = dk_use(model->place.kernels);
		dk_checksum_at(sums, x + at, left, DDP_PIECE_ELEMENTS);
		dk_use(before);
		if (model->place.device != NULL)
			status = ddp_place_read(&model->place, here, sums, (size_t)pieces * sizeof(*here));
		for (int64_t i = 0; i < pieces; i++)
			*hash = mix(*hash, here[i]);
	}
	return status;
}

/* Whether each rank should have all of the optimizer's state, in the same bits. */
static bool has_same_state(const ddp_model *model)
{
	return !model->strategy->spreads && model->optim.owners == NULL &&
	       (model->strategy->is_local == NULL || model->settled == model->steps);
}

ddp_status ddp_compare_checksum(const ddp_model *model, uint32_t *sum)
{
	const ddp_optim *optim = &model->optim;
	uint64_t hash = 0;

	/* Each rank's forward writes to its own buffers, which lie behind. */
	ddp_status status = add_array(model, model->params, model->layout.buffers, &hash);
	if (model->settings.options.compare_every > 0 && has_same_state(model)) {
		for (int i = 0; i < optim->state_count && status == DDP_OK; i++)
			status = add_array(model, optim->state[i], optim->state_elements[i], &hash);
	}
	*sum = (uint32_t)hash;
	return status;
}

/* ---- who is odd ------------------------------------------------------------------------ */

static bool is_here(const ddp_comm *comm, int rank)
{
	for (int i = 0; i < ddp_comm_local_size(comm); i++) {
		if (ddp_comm_rank_at(comm, i) == rank)
			return true;
	}
	return false;
}

/* *one becomes whether all ranks that may be damaged, as this one is if `may` is true, are on the node of the first of
   them, `rank`. */
static ddp_status share_node(const ddp_model *model, bool may, int rank, bool *one)
{
	double here = !may || is_here(model->comm, rank);

	ddp_status status = ddp_all_reduce(model->comm, NULL, &here, 1, DDP_F64, DDP_MIN);
	*one = here > 0;
	return status;
}

/* SLURM may know a node by another name than its host name. The plugin tells SLURM's. */
static ddp_status ask_node(const ddp_model *model, int rank, char name[DDP_HOST_MAX])
{
	const char *own = ddp_environment("DDP_NODE_NAME");

	if (own == NULL)
		own = strstr(ddp_rank_text(model->comm, ddp_comm_rank(model->comm)), " on ") + strlen(" on ");
	memset(name, 0, DDP_HOST_MAX);
	snprintf(name, DDP_HOST_MAX, "%s", own);
	return ddp_broadcast(model->comm, name, DDP_HOST_MAX, DDP_U8, rank);
}

static void say_majority(const ddp_model *model, const ddp_outlier *o, bool one_node, char *text, size_t bytes)
{
	const char *odd = ddp_rank_text(model->comm, o->odd);
	const int more = o->ranks - o->usual_count - 1;
	char who[DDP_OUTLIER_TEXT + DDP_HOST_MAX];

	if (more == 0)
		snprintf(who, sizeof(who), "%s has", odd);
	else
		snprintf(who, sizeof(who), "%s and %d more rank%s%s have", odd, more, more > 1 ? "s" : "",
		         one_node ? " there" : "");
	snprintf(text, bytes, "%s other parameters than %d of %d ranks after step %lld: %s memory or processor is damaged",
	         who, o->usual_count, o->ranks, (long long)model->steps, more == 0 ? "its" : "their");
}

/* Fewer than most have the same, as with two ranks. */
static void say_one_of(const ddp_model *model, const ddp_outlier *o, char *text, size_t bytes)
{
	const char *first = ddp_rank_text(model->comm, o->usual), *second = ddp_rank_text(model->comm, o->odd);
	const bool in_order = o->usual < o->odd;

	snprintf(text, bytes, "one of %s and %s has wrong parameters after step %lld, and too few of %d ranks agree to tell "
	         "which: its memory or processor is damaged", in_order ? first : second, in_order ? second : first,
	         (long long)model->steps, o->ranks);
}

/* Ranks that have had the same parameters differ. */
static ddp_status name_damage(ddp_model *model, const ddp_outlier *o, bool usual)
{
	const bool majority = 2 * o->usual_count > o->ranks;
	char text[768], node[DDP_HOST_MAX];
	bool one;

	ddp_status status = share_node(model, !majority || !usual, o->odd, &one);
	if (status == DDP_OK && one)
		status = ask_node(model, o->odd, node);
	if (status != DDP_OK)
		return status;
	if (majority)
		say_majority(model, o, one, text, sizeof(text));
	else
		say_one_of(model, o, text, sizeof(text));
	if (one)
		ddp_fail(DDP_ERR_MISMATCH, "%s; " DDP_PROGRESS_WITHOUT "%s" DDP_PROGRESS_FROM, text, node);
	else
		ddp_fail(DDP_ERR_MISMATCH, "%s; go back to the last checkpoint", text);
	return majority ? ddp_error_about(DDP_ERR_MISMATCH, ddp_comm_world_rank(model->comm, o->odd)) : DDP_ERR_MISMATCH;
}

static ddp_status name_other_start(const ddp_model *model, const ddp_outlier *o)
{
	char odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];

	ddp_comm_outlier_names(model->comm, o, odd_ranks, usual_ranks);
	return ddp_fail(DDP_ERR_MISMATCH, "%s %s other parameters than %s: each step would train another model; call "
	                "ddp_model_broadcast_params() once they are initialised, and change them on all ranks alike",
	                odd_ranks, o->odd_count == 1 ? "has" : "have", usual_ranks);
}

ddp_status ddp_compare_name(ddp_model *model, uint32_t own)
{
	ddp_outlier outlier;
	double odd, usual;

	ddp_status status = ddp_comm_outlier(model->comm, own, &outlier, &odd, &usual);
	if (status == DDP_OK && outlier.odd < 0)
		return DDP_OK;
	if (status == DDP_OK)
		status = model->compared < 0 ? name_other_start(model, &outlier) : name_damage(model, &outlier, own == usual);
	if (status != DDP_ERR_MISMATCH)
		return ddp_fail_context(status, "while comparing parameters");
	return ddp_error_told(status, ddp_comm_rank(model->comm) != 0);
}

ddp_status ddp_model_compare(ddp_model *model)
{
	uint32_t own;

	if (!model->reducer.communicates)
		return DDP_OK;
	ddp_status status = ddp_comm_agree(model->comm, ddp_compare_checksum(model, &own), "read its parameters");
	if (status != DDP_OK)
		return ddp_fail_context(status, "while comparing parameters");
	status = ddp_compare_name(model, own);
	if (status == DDP_OK && model->compared >= 0)
		model->compared = model->steps;
	return status;
}
