/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/buddy.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "comm/p2p/match.h"
#include "comm/request.h"
#include "reduce/model_state.h"
#include "reduce/outbox.h"
#include "reduce/undo.h"

/* AT_ONCE is 64 MiB, as each broadcast has a deadline of its own. */
enum { AT_ONCE = 1 << 24, PARTS = 1 + DDP_OPTIM_STATES_MAX };

/* A rank owns these values after `step` steps: parameters, then each state. A ward's are in the host's memory. */
typedef struct copy {
	int64_t step; /* -1: it is not whole */
	float *values[PARTS];
} copy;

/* A rank whose buddy this one is. */
typedef struct ward {
	int rank;
	int64_t count;   /* elements that it owns */
	copy copies[2];  /* the newer one first; what is under way goes to the other */
	ddp_request *requests[DDP_OPTIM_STATES_MAX];
} ward;

typedef struct ddp_buddy {
	int *buddies;    /* [ranks] */
	int *holders;    /* [ranks]: see ddp_buddy_holders() */
	ward *wards;     /* none if ranks share memory */
	int ward_count;
	int64_t count;   /* elements that this rank owns */
	ddp_undo undo;   /* with states: ranks share what they own */
	ddp_outbox outbox;
	int64_t sent;    /* the step whose copy was sent last; -1: none that counts */
	bool under_way;
	bool read;       /* and a device copies parameters of the wards, too */
} ddp_buddy;

/* ---- who keeps whose copies ------------------------------------------------------------------- */

/* Ranks of `node` follow in order[from ..]. Returns where the next node's begin. */
static int append(const int *nodes, int ranks, int node, int *order, int from)
{
	for (int r = 0; r < ranks; r++) {
		if (nodes[r] == node)
			order[from++] = r;
	}
	return from;
}

/* order[ranks] becomes the ranks of one node after the other, the largest node first. Returns that node's number of
   ranks. */
static int order_ranks(const int *nodes, int ranks, int *order)
{
	int most = 0, largest = 0, end;

	for (int node = 0, at = 0; at < ranks; node++, at = end) {
		end = append(nodes, ranks, node, order, at);
		largest = end - at > most ? node : largest;
		most = end - at > most ? end - at : most;
	}
	end = append(nodes, ranks, largest, order, 0);
	for (int node = 0; end < ranks; node++)
		end = node != largest ? append(nodes, ranks, node, order, end) : end;
	return most;
}

void ddp_buddy_choose(const int *nodes, int ranks, int *order, int *buddies)
{
	const int most = order_ranks(nodes, ranks, order);

	/* So many places further is another node, and each rank has one ward, if others have as many ranks as the largest. */
	for (int at = 0; at < ranks; at++) {
		int to = most == ranks ? (at + 1) % ranks : (at + most) % ranks;
		if (most < ranks && 2 * most > ranks)
			to = at < most ? most + at % (ranks - most) : at - most;
		buddies[order[at]] = order[to];
	}
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t owned_by(const ddp_units *units, int rank)
{
	int64_t begin, end, count = 0;

	for (int u = 0; u < units->count; u++) {
		ddp_unit_slice(units, &units->list[u], rank, &begin, &end);
		count += end - begin;
	}
	return count;
}

static bool make_copy(const ddp_model *model, int64_t count, copy *made)
{
	bool complete = true;

	made->step = -1;
	for (int i = 0; i <= model->optim.state_count; i++) {
		void *memory = NULL;
		complete = complete && ddp_place_alloc_host(&model->place, ((size_t)count + 1) * sizeof(float), &memory) == DDP_OK;
		made->values[i] = memory;
	}
	return complete;
}

static void free_copy(const ddp_place *place, copy *freed)
{
	for (int i = 0; i < PARTS; i++)
		ddp_place_free_host(place, freed->values[i]);
}

static bool make_ward(const ddp_model *model, int rank, ward *made)
{
	made->rank = rank;
	made->count = owned_by(&model->units, rank);
	return make_copy(model, made->count, &made->copies[0]) && make_copy(model, made->count, &made->copies[1]);
}

bool ddp_buddy_shares(const ddp_model *model)
{
	const ddp_model_options *options = &model->settings.options;

	/* Parameters that arrive late may never come from a rank that has died. */
	return options->buddy && !options->late_gather && model->place.device == NULL && ddp_comm_nodes(model->comm) == 1;
}

/* Ranks share no memory. This can fail on this rank alone. */
static ddp_status make(const ddp_model *model, ddp_buddy *b)
{
	const int ranks = model->units.ranks;
	bool complete;

	b->wards = calloc((size_t)ranks, sizeof(*b->wards));
	complete = b->wards != NULL;
	for (int r = 0; r < ranks && complete; r++) {
		if (b->buddies[r] == model->units.rank)
			complete = make_ward(model, r, &b->wards[b->ward_count++]);
	}
	if (!complete)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of another rank's optimizer state");
	const ddp_status status = ddp_outbox_open(model->comm, &model->place, &model->optim, b->buddies[model->units.rank], b->count,
	                                          &b->outbox);
	return status == DDP_OK ? ddp_undo_open(model, model->units.most, false, &b->undo) : status;
}

ddp_status ddp_buddy_open(ddp_model *model)
{
	static const char what[] = "keep a copy of another rank's optimizer state";
	ddp_comm *comm = model->comm;
	const int node = ddp_comm_node(comm), ranks = model->units.ranks;
	ddp_buddy *made = calloc(1, sizeof(*made));
	int *nodes = calloc(2 * (size_t)ranks, sizeof(*nodes));

	model->buddy = made;
	if (made != NULL)
		made->buddies = calloc(2 * (size_t)ranks, sizeof(*made->buddies));
	const bool complete = made != NULL && made->buddies != NULL && nodes != NULL;
	if (complete)
		made->holders = made->buddies + ranks;
	ddp_status status = complete ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for a list of %d ranks", ranks);
	status = ddp_comm_agree(comm, status, what);
	if (status == DDP_OK)
		status = ddp_all_gather(comm, &node, nodes, sizeof(node), DDP_U8);
	if (status == DDP_OK) {
		ddp_buddy_choose(nodes, ranks, nodes + ranks, made->buddies);
		made->count = owned_by(&model->units, model->units.rank);
		status = ddp_buddy_shares(model) ? ddp_undo_open(model, model->units.most, true, &made->undo)
		                                 : ddp_comm_agree(comm, make(model, made), what);
	}
	free(nodes);
	if (status == DDP_OK)
		made->sent = -1;
	else
		ddp_buddy_close(model);
	return status;
}

void ddp_buddy_bytes(const ddp_model *model, size_t *sent, size_t *kept)
{
	const size_t states = (size_t)model->optim.state_count, parts = states + 1;
	const ddp_buddy *b = model->buddy;

	*sent = b->undo.states == NULL ? (size_t)b->count * states * sizeof(float) : 0;
	*kept = (size_t)b->count * parts * sizeof(float) + (model->place.device != NULL ? *sent : 0);
	for (int w = 0; w < b->ward_count; w++)
		*kept += 2 * (size_t)b->wards[w].count * parts * sizeof(float);
}

/* ---- between steps --------------------------------------------------------------------------- */

/* Copies `rank`'s slices of the parameters, one behind the other, to the host's memory. */
static ddp_status read_params(const ddp_model *model, int rank, float *to)
{
	ddp_outbox *outbox = &model->buddy->outbox;
	int64_t begin, end;

	ddp_status status = ddp_outbox_begin_copies(outbox);
	for (int u = 0; u < model->units.count && status == DDP_OK; u++) {
		ddp_unit_slice(&model->units, &model->units.list[u], rank, &begin, &end);
		status = ddp_outbox_copy(outbox, to, model->params + begin, (size_t)(end - begin) * sizeof(*to));
		to += end - begin;
	}
	return status;
}

static ddp_status read_wards(ddp_model *model)
{
	ddp_buddy *b = model->buddy;
	ddp_status status = DDP_OK;

	for (int i = 0; i < b->ward_count && status == DDP_OK; i++)
		status = read_params(model, b->wards[i].rank, b->wards[i].copies[1].values[0]);
	b->read = status == DDP_OK;
	return status;
}

/* If this function does not read the parameters, end_transfer() does. */
void ddp_buddy_read(ddp_model *model)
{
	if (model->buddy != NULL && model->place.device != NULL && model->buddy->under_way && !model->buddy->read)
		(void)read_wards(model);
}

ddp_status ddp_buddy_rest(ddp_model *model)
{
	return model->buddy != NULL ? ddp_outbox_rest(&model->buddy->outbox) : DDP_OK;
}

/* `whole`: all parameters of the step are there, so that what has come is a copy. */
static ddp_status end_transfer(ddp_model *model, bool whole)
{
	ddp_buddy *b = model->buddy;
	const bool keeps = whole && b->under_way;
	const ddp_status read = keeps && !b->read ? read_wards(model) : DDP_OK;
	const ddp_status went = ddp_outbox_end(&b->outbox);
	ddp_status status = read == DDP_OK ? went : read;

	for (int i = 0; i < b->ward_count; i++) {
		ward *w = &b->wards[i];
		const ddp_status came = ddp_outbox_end_requests(w->requests);
		status = status == DDP_OK ? came : status;
		if (came != DDP_OK || read != DDP_OK || !keeps)
			continue;
		copy newer = w->copies[1];
		newer.step = b->sent;
		w->copies[1] = w->copies[0];
		w->copies[0] = newer;
	}
	b->under_way = b->read = false;
	return status;
}

static ddp_status issue_transfer(ddp_model *model)
{
	ddp_buddy *b = model->buddy;
	ddp_operation message = { .kind = DDP_RECV, .type = DDP_F32, .tag = ddp_match_own_tag(DDP_BUDDY_NUMBER) };
	ddp_status status = end_transfer(model, false);

	for (int i = 0; i < model->optim.state_count && b->undo.states == NULL && status == DDP_OK; i++) {
		for (int w = 0; w < b->ward_count && status == DDP_OK; w++) {
			message.root = b->wards[w].rank;
			message.recv = b->wards[w].copies[1].values[1 + i];
			message.count = (size_t)b->wards[w].count;
			status = ddp_comm_issue_own(model->comm, &message, &b->wards[w].requests[i]);
		}
	}
	return status == DDP_OK && b->undo.states == NULL ? ddp_outbox_send(&b->outbox) : status;
}

/* This rank's failure is that of all, who wait for its messages. */
static ddp_status fail_all(const ddp_model *model, ddp_status status)
{
	ddp_kept_error why;

	ddp_error_keep(&why, status);
	(void)ddp_comm_abort(model->comm, why.text);
	return ddp_error_return(&why);
}

/* After a failure, a copy would get later messages in the place of lost ones. */
static ddp_status begin_transfer(ddp_model *model)
{
	ddp_buddy *b = model->buddy;

	for (int w = 0; w < b->ward_count; w++)
		b->wards[w].copies[1].step = -1;
	const ddp_status status = issue_transfer(model);
	if (status != DDP_OK)
		return fail_all(model, status);
	b->sent = model->steps;
	b->under_way = true;
	return DDP_OK;
}

void ddp_buddy_send(ddp_model *model)
{
	if (model->buddy != NULL && !model->failed && model->buddy->sent != model->steps)
		(void)begin_transfer(model);
}

ddp_status ddp_buddy_settle(ddp_model *model)
{
	if (model->buddy == NULL)
		return DDP_OK;
	ddp_status status = model->buddy->sent != model->steps ? begin_transfer(model) : DDP_OK;
	if (status == DDP_OK)
		status = end_transfer(model, true);
	if (status != DDP_OK)
		status = fail_all(model, status);
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "a copy of the optimizer's state");
}

ddp_status ddp_buddy_renew(ddp_model *model)
{
	if (model->buddy == NULL || model->buddy->sent >= 0)
		return DDP_OK;
	ddp_status status = ddp_buddy_settle(model);
	return status == DDP_OK ? ddp_barrier(model->comm) : status;
}

void ddp_buddy_forget(ddp_model *model, int64_t steps)
{
	ddp_buddy *b = model->buddy;

	(void)steps;
	if (b == NULL)
		return;
	b->sent = -1;
	b->under_way = b->read = false;
	for (int w = 0; w < b->ward_count; w++)
		b->wards[w].copies[0].step = b->wards[w].copies[1].step = -1;
	ddp_undo_forget(model, &b->undo);
}

void ddp_buddy_close(ddp_model *model)
{
	ddp_buddy *b = model->buddy;
	ddp_kept_error why;

	if (b == NULL)
		return;
	/* The caller may return the error that made it close. */
	ddp_error_keep(&why, DDP_ERR_STATE);
	if (b->wards != NULL)
		(void)end_transfer(model, false);
	(void)ddp_place_sync(&model->place);
	for (int w = 0; w < b->ward_count; w++) {
		free_copy(&model->place, &b->wards[w].copies[0]);
		free_copy(&model->place, &b->wards[w].copies[1]);
	}
	ddp_undo_close(model, &b->undo);
	ddp_outbox_close(&b->outbox);
	free(b->wards);
	free(b->buddies);
	free(b);
	model->buddy = NULL;
	(void)ddp_error_return(&why);
}

/* ---- around an update -------------------------------------------------------------------------- */

void ddp_buddy_keep(void *keeper, int64_t begin, int64_t end, int64_t at)
{
	const ddp_model *model = keeper;

	ddp_undo_keep(model, &model->buddy->undo, model->steps + 1, begin, end, at);
}

void ddp_buddy_undo(ddp_model *model, int64_t step, const bool *dead)
{
	(void)dead;
	if (model->buddy != NULL)
		ddp_undo_rank(model, &model->buddy->undo, model->units.rank, step, NULL, 0);
}

/* ---- after a failure ----------------------------------------------------------------------------- */

int64_t ddp_buddy_copied(ddp_model *model)
{
	ddp_buddy *b = model->buddy;
	int64_t least = INT64_MAX;

	if (b == NULL)
		return -1;
	/* Parameters that arrive late may not be there. */
	(void)end_transfer(model, !model->settings.options.late_gather);
	for (int w = 0; w < b->ward_count; w++)
		least = b->wards[w].copies[0].step < least ? b->wards[w].copies[0].step : least;
	return least;
}

/* Returns the rank in `left` of `rank` of the model's communicator; -1: the rank is lost, and a newcomer may have its
   number. */
static int rank_left(const ddp_model *model, const ddp_comm *left, const ddp_survivor *all, int rank)
{
	const int searched = ddp_comm_world_rank(model->comm, rank);

	for (int r = 0; r < ddp_comm_size(left); r++) {
		if (ddp_comm_world_rank(left, r) == searched && all[r].whole != 0)
			return r;
	}
	return -1;
}

/* A rank may be lost when only some have learned that all have taken up the shards. These may have no buddies any
   more. */
static ddp_status check_fitted(const ddp_comm *left, const ddp_survivor *all)
{
	bool any = false;
	int first = -1;

	for (int r = 0; r < ddp_comm_size(left); r++)
		any = any || all[r].sharded != 0;
	for (int r = 0; r < ddp_comm_size(left) && any; r++) {
		if (all[r].whole == 0)
			continue;
		first = first < 0 ? r : first;
		if (all[r].fitted != all[first].fitted)
			return ddp_fail(DDP_ERR_STATE, "a rank was lost while others took up the shards of lost ranks: rank %d has a shard of "
			                "%d ranks, and rank %d a shard of %d", ddp_comm_world_rank(left, first), all[first].fitted,
			                ddp_comm_world_rank(left, r), all[r].fitted);
	}
	return DDP_OK;
}

/* The first rank that has ended that step, so that it has all parameters. */
static int rank_at(const ddp_comm *left, const ddp_survivor *all, int64_t steps)
{
	for (int r = 0; r < ddp_comm_size(left); r++) {
		if (all[r].whole != 0 && all[r].steps == steps)
			return r;
	}
	return -1;
}

/* The owner of a shard is lost, and its buddy is to have a copy of it, or all ranks reach the shard. *least becomes the
   step of that copy, if it is less. */
static ddp_status find_copy(const ddp_model *model, const ddp_comm *left, const ddp_survivor *all, int rank,
                            int64_t steps, int64_t *least)
{
	const ddp_buddy *b = model->buddy;
	const int holder = b->undo.states != NULL ? rank_at(left, all, steps) : rank_left(model, left, all, b->buddies[rank]);

	b->holders[rank] = holder;
	if (holder < 0)
		return ddp_fail(DDP_ERR_STATE, "rank %d and rank %d, which kept a copy of its shard of the optimizer's state, are "
		                "both lost", ddp_comm_world_rank(model->comm, rank),
		                ddp_comm_world_rank(model->comm, b->buddies[rank]));
	if (all[holder].copied < steps - 1)
		return ddp_fail(DDP_ERR_STATE, "rank %d is lost, and rank %d has no whole copy of its shard of the optimizer's "
		                "state", ddp_comm_world_rank(model->comm, rank), ddp_comm_world_rank(left, holder));
	*least = all[holder].copied < *least ? all[holder].copied : *least;
	return DDP_OK;
}

ddp_status ddp_buddy_find_step(ddp_model *model, const ddp_comm *left, const ddp_survivor *all, int64_t *steps)
{
	const int64_t last = *steps;
	ddp_status status = check_fitted(left, all);

	for (int r = 0; r < model->units.ranks && model->buddy != NULL && status == DDP_OK; r++) {
		model->buddy->holders[r] = rank_left(model, left, all, r);
		if (model->buddy->holders[r] < 0)
			status = find_copy(model, left, all, r, last, steps);
	}
	return status;
}

const int *ddp_buddy_holders(const ddp_model *model)
{
	return model->buddy != NULL ? model->buddy->holders : NULL;
}

/* Shards move from the former ranks to those of a model that has been fitted. */
typedef struct move {
	const ddp_model *former;
	ddp_model *model;
	const ddp_units *shards;  /* of the former ranks */
	const int *holders;
	bool same;                /* each rank is to have the shard that the former rank of its number had */
	float *values;            /* [shards->most], of the host: a part of a shard */
} move;

/* No rank writes any more where the lost rank had its shard. */
static ddp_status read_shared(const move *m, int rank, int part, size_t bytes)
{
	const ddp_model *former = m->former;

	/* This undoes all parts; part 0 is the first. The rank's parameters are those in this rank's arena. */
	if (part == 0) {
		ddp_undo_rank(former, &former->buddy->undo, rank, former->steps + 1, NULL, 0);
		return read_params(former, rank, m->values);
	}
	memcpy(m->values, former->buddy->undo.states[(part - 1) * former->units.ranks + rank], bytes);
	return DDP_OK;
}

/* This rank has the shard of `rank`, or its copy, or reaches it, and reads part `part` of it. */
static ddp_status read_part(const move *m, int rank, int part, int64_t count)
{
	const ddp_model *former = m->former;
	const ddp_buddy *b = former->buddy;
	const size_t bytes = (size_t)count * sizeof(*m->values);

	if (rank == former->units.rank && part > 0)
		return ddp_place_read(&former->place, m->values, former->optim.state[part - 1], bytes);
	if (rank == former->units.rank) {
		const ddp_status status = read_params(former, rank, m->values);
		return status == DDP_OK ? ddp_outbox_rest(&b->outbox) : status;
	}
	if (b->undo.states != NULL)
		return read_shared(m, rank, part, bytes);
	for (int i = 0; i < b->ward_count; i++) {
		const ward *w = &b->wards[i];
		if (w->rank == rank)
			memcpy(m->values, w->copies[w->copies[0].step == former->steps ? 0 : 1].values[part], bytes);
	}
	return DDP_OK;
}

/* This rank takes what it needs of part `part` of the shard of `rank`. */
static ddp_status write_part(const move *m, int rank, int part)
{
	ddp_model *model = m->model;
	const float *values = m->values;
	ddp_status status = DDP_OK;
	int64_t begin, end;

	for (int u = 0; u < m->shards->count && status == DDP_OK; u++, values += end - begin) {
		ddp_unit_slice(m->shards, &m->shards->list[u], rank, &begin, &end);
		const size_t bytes = (size_t)(end - begin) * sizeof(*values);
		if (part == 0)
			status = ddp_place_write(&model->place, model->params + begin, values, bytes);
		else if (model->strategy->spreads)
			status = ddp_units_store(&model->units, &model->place, model->optim.state[part - 1], begin, values, end - begin);
		else
			status = ddp_place_write(&model->place, model->optim.state[part - 1] + begin, values, bytes);
	}
	return status;
}

/* Only the rank that is to have a state gets it. */
static ddp_status pass_on(const move *m, int rank, float *values, int64_t count)
{
	const int own = ddp_comm_rank(m->model->comm), holder = m->holders[rank];
	const ddp_operation message = { .kind = own == rank ? DDP_RECV : DDP_SEND, .type = DDP_F32, .count = (size_t)count,
	                                .send = values, .recv = values, .root = own == rank ? holder : rank,
	                                .tag = ddp_match_own_tag(DDP_BUDDY_NUMBER) };
	ddp_request *request;

	if (holder == rank || (own != rank && own != holder))
		return DDP_OK;
	ddp_status status = ddp_comm_issue_own(m->model->comm, &message, &request);
	return status == DDP_OK ? ddp_wait(request) : status;
}

/* A newcomer takes its own cut of the arenas for the one that the other ranks had. */
static ddp_status check_same_cut(const move *m)
{
	int64_t sum = m->shards->ranks;
	bool same;

	for (int u = 0; u < m->shards->count; u++)
		sum = (sum * 1000003 + m->shards->list[u].end) & INT64_MAX >> 21;
	ddp_status status = ddp_comm_same(m->model->comm, sum, &same);
	return status != DDP_OK || same ? status
		: ddp_fail(DDP_ERR_STATE, "ranks that join cut the optimizer's state into other shards than the ranks that stayed");
}

static ddp_status hand_over_part(const move *m, int rank, int part)
{
	const int64_t count = owned_by(m->shards, rank);
	const int holder = m->holders[rank], own = ddp_comm_rank(m->model->comm);
	const bool to_one = m->same && part > 0;
	ddp_status status = DDP_OK;

	if (holder == own)
		status = read_part(m, rank, part, count);
	for (int64_t at = 0; at < count && status == DDP_OK; at += AT_ONCE) {
		const int64_t now = count - at < AT_ONCE ? count - at : AT_ONCE;
		status = to_one ? pass_on(m, rank, m->values + at, now)
		                : ddp_broadcast(m->model->comm, m->values + at, (size_t)now, DDP_F32, holder);
	}
	if (status == DDP_OK && (!to_one || rank == own))
		status = write_part(m, rank, part);
	/* A device may fail on this rank alone. */
	return status == DDP_OK ? DDP_OK : fail_all(m->model, status);
}

ddp_status ddp_buddy_hand_over(const ddp_model *former, ddp_model *model, const int *holders)
{
	move m = { .former = former, .model = model, .holders = holders,
	           .shards = former->buddy != NULL ? &former->units : &model->units };

	m.same = model->buddy != NULL && m.shards->ranks == model->units.ranks;
	void *memory = NULL;
	ddp_status status = ddp_place_alloc_host(&model->place, ((size_t)m.shards->most + 1) * sizeof(*m.values), &memory);
	m.values = memory;
	status = ddp_comm_agree(model->comm, status, "take up the shards of lost ranks");
	if (status == DDP_OK)
		status = check_same_cut(&m);
	for (int rank = 0; rank < m.shards->ranks && status == DDP_OK; rank++) {
		for (int part = 0; part <= model->optim.state_count && status == DDP_OK; part++)
			status = hand_over_part(&m, rank, part);
	}
	ddp_place_free_host(&model->place, memory);
	return status;
}
