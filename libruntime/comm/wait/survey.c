/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/survey.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

enum { SURVEY_MS = 2000, PAUSE_US = 50 };

typedef struct survey {
	ddp_comm *comm;
	uint64_t sequence;
	ddp_issued *issued; /* [size]: what is known; of another rank's number: it is not */
	uint64_t deadline_ns;
} survey;

/* Returns the transfers of words to other ranks: those that ask, and behind them those that answer. They must
   outlive this rank's call, so they stay until the communicator is closed. */
static ddp_transfer *words_of(ddp_comm *comm)
{
	if (comm->run.words == NULL)
		comm->run.words = calloc(2 * (size_t)comm->size, sizeof(*comm->run.words));
	return comm->run.words;
}

/* Whoever waits for an answer does not wait for it for ever: an error is no other one. */
static void say(ddp_comm *comm, int peer, uint64_t sequence, uint32_t word)
{
	ddp_transfer *words = words_of(comm);
	const ddp_envelope envelope = { .tag = ddp_word_tag(sequence, word), .source = comm->rank,
	                                .operation = *ddp_past_operation(comm, sequence) };

	if (words == NULL || !ddp_net_settled(comm, peer))
		return;
	ddp_transfer *from = &words[(word == DDP_WORD_ANSWERS ? comm->size : 0) + peer];
	if (from->net == NULL || atomic_load(&from->done))
		(void)ddp_net_send(comm, peer, &envelope, NULL, 0, from);
}

void ddp_survey_hear(ddp_comm *comm, const ddp_unexpected *word)
{
	const uint64_t sequence = ddp_sequence_of(&word->envelope);

	if (ddp_is_word(&word->envelope, DDP_WORD_ASKS) && ddp_is_past_known(comm, sequence))
		say(comm, word->envelope.source, sequence, DDP_WORD_ANSWERS);
	ddp_net_drop_unexpected(comm, word);
}

static bool is_known(const survey *s, int rank)
{
	return s->issued[rank].rank == rank;
}

static void learn(survey *s, int rank, const ddp_fingerprint *operation)
{
	s->issued[rank] = (ddp_issued){ .rank = rank, .operation = *operation };
}

/* Ranks of this node go through an operation together: past it, all of them have had the same. */
static void look_at_node(survey *s)
{
	const ddp_comm *comm = s->comm;

	for (int i = 0; i < comm->node.size; i++) {
		const ddp_header *h = &comm->node.shared->ranks[i].header[s->sequence & 1];
		if (comm->run.sequence > s->sequence)
			learn(s, comm->node.ranks[i], ddp_past_operation(comm, s->sequence));
		else if (atomic_load(&h->sequence) == s->sequence)
			learn(s, comm->node.ranks[i], &h->operation);
	}
}

/* A word is heard only if this rank can answer it. Other ranks may be ahead. */
static bool is_heard(const ddp_comm *comm, const ddp_unexpected *came, const void *argument)
{
	(void)argument;
	return ddp_is_word(&came->envelope, DDP_WORD_ANSWERS) ||
	       (ddp_is_word(&came->envelope, DDP_WORD_ASKS) && ddp_sequence_of(&came->envelope) <= comm->run.sequence);
}

static void look_at_words(survey *s)
{
	ddp_unexpected word;

	while (ddp_net_find_unexpected(s->comm, is_heard, NULL, &word)) {
		/* A rank that asks tells as much as a rank that answers. */
		if (ddp_sequence_of(&word.envelope) == s->sequence)
			learn(s, word.envelope.source, &word.envelope.operation);
		ddp_survey_hear(s->comm, &word);
	}
}

/* One that is not connected with this rank is not asked, and one that is lost does not answer. */
static bool awaits(const survey *s)
{
	const ddp_comm *comm = s->comm;

	for (int r = 0; r < comm->size; r++) {
		if (!is_known(s, r) && (ddp_is_local(comm, r) || (ddp_net_settled(comm, r) && !ddp_net_lost(comm, r))))
			return true;
	}
	return false;
}

/* Another rank's sentence counts, if it comes before. */
static ddp_status ask_all(survey *s)
{
	ddp_comm *comm = s->comm;
	ddp_status status = ddp_comm_check(comm);

	for (int r = 0; r < comm->size; r++) {
		if (!ddp_is_local(comm, r))
			say(comm, r, s->sequence, DDP_WORD_ASKS);
	}
	while (status == DDP_OK) {
		const bool moved = ddp_net_progress(comm);
		look_at_node(s);
		look_at_words(s);
		if (!awaits(s) || ddp_now_ns() > s->deadline_ns)
			break;
		status = ddp_net_check_failure(comm);
		if (status == DDP_OK)
			status = ddp_comm_check(comm);
		if (!moved)
			usleep(PAUSE_US);
	}
	return status;
}

static ddp_status conclude(survey *s)
{
	int count = 0;

	for (int r = 0; r < s->comm->size; r++) {
		if (is_known(s, r))
			s->issued[count++] = s->issued[r];
	}
	return ddp_mismatch_break(s->comm, s->sequence, s->issued, count);
}

/* There is no memory for more. */
static ddp_status break_by_two(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs)
{
	const ddp_issued own = { .rank = comm->rank, .operation = *ddp_past_operation(comm, sequence) };
	const bool first = own.rank < theirs->rank;

	return ddp_mismatch_break(comm, sequence, (ddp_issued[]){ first ? own : *theirs, first ? *theirs : own }, 2);
}

ddp_status ddp_survey_break(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs)
{
	const int quarter_ms = comm->timeout_ms / 4, ms = quarter_ms < SURVEY_MS ? quarter_ms : SURVEY_MS;
	survey s = { .comm = comm, .sequence = sequence, .deadline_ns = ddp_now_ns() + (uint64_t)ms * 1000000,
	             .issued = calloc((size_t)comm->size, sizeof(*s.issued)) };

	if (s.issued == NULL)
		return break_by_two(comm, sequence, theirs);
	for (int r = 0; r < comm->size; r++)
		s.issued[r].rank = DDP_NOBODY;
	learn(&s, comm->rank, ddp_past_operation(comm, sequence));
	learn(&s, theirs->rank, &theirs->operation);
	ddp_status status = ask_all(&s);
	if (status == DDP_OK)
		status = conclude(&s);
	free(s.issued);
	return status;
}
