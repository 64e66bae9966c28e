/* SPDX-License-Identifier: Apache-2.0 */
/* Shrinking: the ranks that are left of a broken communicator agree on who is
   there, and build a new one.

   To agree, each tells whom it counts in, drops whom others do not, and does so
   again until all tell the same: that is decided. Who decides tells so in one
   more round, so that a rank which missed somebody's word (of one that died
   while it spoke) takes the decision over. In the same way they agree on
   whether all have built their part; if one died meanwhile, they begin again
   without it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/group/agreement.h"
#include "comm/group/build.h"
#include "comm/net/net.h"
#include "comm/wait/await.h"
#include "watch/page.h"

enum { ROUNDS_MAX = 64, ATTEMPTS_MAX = 16 };

/* Stages of an attempt: who is there, offers, and have all built their part?
   The last may be asked twice. */
enum { GATHER, OFFER, CONFIRM, CONFIRM_AGAIN, STAGES };

/* The worst counts. */
typedef enum verdict { BUILT, TRY_AGAIN, GIVE_UP } verdict;

typedef struct shrinking {
	ddp_agreement agreement;
	bool *members;     /* [size]: of the new communicator */
	uint32_t attempt;
	bool offered;
	uint32_t confirmed; /* how often */
	verdict verdict;   /* that all agreed on */
	int32_t culprit;   /* whose it was first, or DDP_NOBODY if all have built; told with it */
} shrinking;

static uint32_t stage_of(const shrinking *s, uint32_t stage)
{
	return 1 + s->attempt * STAGES + stage;
}

/* ---- agreement ------------------------------------------------------------------------ */

typedef enum answer { DIFFER, SAME, DECIDED, PAST } answer;

/* Returns the rank whose verdict the proposal tells. The sender may have got that verdict from another rank. */
static int32_t culprit_of(const ddp_proposal *n)
{
	int32_t culprit;

	memcpy(&culprit, n->data, sizeof(culprit));
	return culprit;
}

/* A decision that another rank has come to; PAST: it is at a later stage. */
static answer take_over(shrinking *s, uint32_t stage, verdict *all, const ddp_proposal *n)
{
	for (int r = 0; r < s->agreement.comm->size; r++)
		s->agreement.present[r] = ddp_proposal_counts(n, r);
	if (n->stage != stage)
		return PAST;
	*all = (verdict)n->verdict;
	s->culprit = culprit_of(n);
	return DECIDED;
}

/* Do all tell what this rank told? Takes their part if not. */
static answer compare(shrinking *s, uint32_t stage, verdict *all)
{
	ddp_agreement *m = &s->agreement;
	const verdict mine = *all;
	bool same = true;

	for (int r = 0; r < m->comm->size; r++) {
		const ddp_proposal *n = m->proposals[r];
		if (n != NULL && (n->stage > stage || (n->stage == stage && n->decided != 0)))
			return take_over(s, stage, all, n);
		if (!m->told[r])
			continue;
		if (n == NULL || n->stage < stage) {
			same = false;
			continue;
		}
		same = same && n->verdict == (int32_t)mine;
		if (n->verdict > (int32_t)*all) {
			*all = (verdict)n->verdict;
			s->culprit = culprit_of(n);
		}
		for (int k = 0; k < m->comm->size; k++) {
			same = same && ddp_proposal_counts(n, k) == m->told[k];
			m->present[k] = m->present[k] && ddp_proposal_counts(n, k);
		}
	}
	return same ? SAME : DIFFER;
}

/* The decision stands in agreement.present and *all. *past: the others have
   already gone on to the next stage. */
static ddp_status agree(shrinking *s, uint32_t stage, verdict *all, bool *past)
{
	ddp_agreement *m = &s->agreement;

	*past = false;
	for (int round = 0; round < ROUNDS_MAX; round++) {
		ddp_status status = ddp_agreement_round(m, stage, *all, false, &s->culprit, sizeof(s->culprit));
		if (status != DDP_OK)
			return status;
		answer found = compare(s, stage, all);
		*past = found == PAST;
		if (found == DECIDED || found == PAST)
			return DDP_OK;
		if (found != SAME)
			continue;
		status = ddp_agreement_round(m, stage, *all, true, &s->culprit, sizeof(s->culprit));
		memcpy(m->present, m->told, (size_t)m->comm->size);
		return status;
	}
	return ddp_fail(DDP_ERR_PEER, "the ranks do not agree on who is left: call ddp_comm_shrink() again");
}

/* ---- building ---------------------------------------------------------------------------- */

/* The last attempt fails like this, too. DDP_NOBODY: it is not known which rank has gone. */
static ddp_status fail_gone(const ddp_comm *comm, int rank)
{
	return ddp_fail(DDP_ERR_PEER, "%s has gone while the others made a communicator: call ddp_comm_shrink() again",
	                rank == DDP_NOBODY ? "another rank" : ddp_rank_text(comm, rank));
}

/* Why this rank has made its part in vain. The culprit of a TRY_AGAIN tries again, too: nobody
   sees its own error. */
static ddp_status fail_with_others(const shrinking *s)
{
	const ddp_comm *comm = s->agreement.comm;

	if (s->verdict == GIVE_UP)
		return ddp_fail(DDP_ERR_PEER, "%s could not make its part of the communicator: its own error says why",
		                ddp_rank_text(comm, s->culprit));
	for (int r = 0; r < comm->size; r++) {
		if (s->members[r] && !s->agreement.present[r])
			return fail_gone(comm, r);
	}
	return fail_gone(comm, DDP_NOBODY);
}

/* ddp_comm_build() exchanges by this function. */
static ddp_status exchange_by_agreement(void *argument, const void *blob, size_t bytes, void **blobs,
                                        size_t *sizes)
{
	shrinking *s = argument;
	ddp_agreement *m = &s->agreement;
	int member = 0;

	s->offered = true;
	ddp_status status = ddp_agreement_round(m, stage_of(s, OFFER), BUILT, true, blob, bytes);
	for (int r = 0; r < m->comm->size && status == DDP_OK && blobs != NULL; r++) {
		const ddp_proposal *n = m->proposals[r];
		if (!s->members[r])
			continue;
		if (n == NULL || n->stage != stage_of(s, OFFER))
			return fail_gone(m->comm, r);
		blobs[member] = malloc(n->bytes + 1);
		if (blobs[member] == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %u bytes that a rank tells", n->bytes);
		memcpy(blobs[member], n->data, n->bytes);
		sizes[member++] = n->bytes;
	}
	return status;
}

static ddp_status confirm_by_agreement(void *argument, ddp_status mine)
{
	shrinking *s = argument;
	ddp_agreement *m = &s->agreement;
	char why[DDP_FAILURE_TEXT];
	bool past;

	/* All know already that it has failed. */
	if (s->confirmed > 0 && s->verdict != BUILT)
		return mine;
	snprintf(why, sizeof(why), "%s", ddp_last_error());
	s->verdict = mine == DDP_OK ? BUILT : mine == DDP_ERR_PEER ? TRY_AGAIN : GIVE_UP;
	s->culprit = mine == DDP_OK ? DDP_NOBODY : m->comm->rank;
	/* Others may have waited for a dead rank until its deadline. */
	m->timeout_ms += m->comm->timeout_ms;
	ddp_status status = agree(s, stage_of(s, CONFIRM + s->confirmed++), &s->verdict, &past);
	if (status != DDP_OK) {
		s->verdict = GIVE_UP;
		return status;
	}
	if (past || memcmp(m->present, s->members, (size_t)m->comm->size) != 0)
		s->verdict = TRY_AGAIN;
	/* If a rank has gone only because another gave up, the other one's name tells more. */
	if (mine != DDP_OK && !(mine == DDP_ERR_PEER && s->verdict == GIVE_UP))
		return ddp_fail(mine, "%s", why);
	if (s->verdict == BUILT)
		return DDP_OK;
	return fail_with_others(s);
}

static ddp_status build_survivors(shrinking *s, ddp_comm **survivors)
{
	ddp_comm *comm = s->agreement.comm;
	const ddp_opening opening = { .exchange = exchange_by_agreement, .argument = s,
	                              .confirm = confirm_by_agreement, .confirms_all = true,
	                              .control_fd = -1, .link = &comm->hier.link };
	int *world_ranks = malloc((size_t)comm->size * sizeof(*world_ranks));
	int count = 0, rank = DDP_NOBODY;

	if (world_ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the survivors of %d ranks", comm->size);
	for (int r = 0; r < comm->size; r++) {
		if (!s->members[r])
			continue;
		if (r == comm->rank)
			rank = count;
		world_ranks[count++] = comm->topology.world_ranks[r];
	}
	ddp_status status = ddp_comm_build(comm->roster, world_ranks, count, rank, comm->timeout_ms,
	                                   &opening, survivors);
	free(world_ranks);
	return status;
}

/* One attempt. A rank that fails takes part to the end, or others would wait. */
static ddp_status attempt(shrinking *s, ddp_comm **survivors)
{
	ddp_agreement *m = &s->agreement;
	verdict none = BUILT;
	bool past;
	s->culprit = DDP_NOBODY;
	ddp_status status = agree(s, stage_of(s, GATHER), &none, &past);

	if (status != DDP_OK) {
		s->verdict = GIVE_UP;
		return status;
	}
	memcpy(s->members, m->present, (size_t)m->comm->size);
	s->offered = past;
	s->confirmed = 0;
	status = past ? fail_gone(m->comm, DDP_NOBODY) : build_survivors(s, survivors);
	if (!s->offered)
		(void)ddp_agreement_round(m, stage_of(s, OFFER), GIVE_UP, true, NULL, 0);
	return s->confirmed > 0 ? status : confirm_by_agreement(s, status);
}

static ddp_status shrink(ddp_comm *comm, ddp_comm **survivors)
{
	shrinking s = { .members = malloc((size_t)comm->size) };
	ddp_status status = ddp_agreement_open(&s.agreement, comm);

	if (s.members == NULL || status != DDP_OK) {
		free(s.members);
		if (status == DDP_OK)
			ddp_agreement_close(&s.agreement);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the survivors of %d ranks", comm->size);
	}
	do {
		status = attempt(&s, survivors);
		s.attempt++;
	} while (status != DDP_OK && s.verdict == TRY_AGAIN && s.attempt < ATTEMPTS_MAX);
	ddp_agreement_close(&s.agreement);
	free(s.members);
	return status;
}

ddp_status ddp_comm_shrink(ddp_comm *comm, ddp_comm **survivors)
{
	if (comm == NULL || survivors == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_shrink(): a NULL argument");
	if (ddp_roster_check_owner(comm->roster, "ddp_comm_shrink()") != DDP_OK)
		return DDP_ERR_STATE;
	if (ddp_comm_check_silence(comm) == DDP_OK)
		return ddp_fail(DDP_ERR_STATE, "ddp_comm_shrink(): the communicator is not broken");
	ddp_failure_returned(comm);
	pthread_mutex_lock(&comm->run.lock);
	if (comm->net != NULL)
		ddp_net_revive(comm, true);
	ddp_status status = shrink(comm, survivors);
	/* The others on this node need not wait for its word. */
	if (status != DDP_OK && comm->net != NULL && (ddp_net_ended(comm) || ddp_net_lacks_descriptors(comm)))
		atomic_store(&ddp_lines_own(comm)->left, 1);
	if (comm->net != NULL)
		ddp_net_revive(comm, false);
	/* The rank goes on: a later end of it has other reasons. */
	if (status == DDP_OK) {
		(*survivors)->is_whole = comm->is_whole;
		/* A node's first rank may be another one now. */
		if ((*survivors)->net != NULL && ddp_net_watch(*survivors) != DDP_OK)
			ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
		ddp_page_forget_error(comm->roster->page, comm->is_whole ? DDP_ERROR_FINAL : DDP_ERROR_OPEN);
	}
	pthread_mutex_unlock(&comm->run.lock);
	return status;
}
