/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/core/fingerprint.h"

enum {
	ASK_MS = 500, /* how long a wait lasts before the peer is asked */
	SURVEY_MS = 2000, PAUSE_US = 50
};

/* The tags of words, by which ranks ask and answer: no message of an operation has this bit, whatever its number. */
#define WORD_TAG (1ull << 62)
enum { WORD_AT = 0, WORD_ASKS = 1, WORD_ANSWERS = 2 };

static uint64_t word_tag(uint64_t sequence, uint32_t word)
{
	return WORD_TAG | sequence << 24 | word;
}

/* The operation that a message belongs to. */
static uint64_t sequence_of(const ddp_envelope *e)
{
	return (e->tag & ~WORD_TAG) >> 24;
}

static bool is_word_of_kind(const ddp_envelope *e, uint32_t word)
{
	return (e->tag & (DDP_NET_P2P_TAG | WORD_TAG | 0xffffff)) == (WORD_TAG | word);
}

/* The fingerprint that operation `sequence`, one of the last, had here. */
static const ddp_fingerprint *past_operation(const ddp_comm *comm, uint64_t sequence)
{
	return &comm->run.past[sequence % DDP_PAST];
}

static bool is_past_known(const ddp_comm *comm, uint64_t sequence)
{
	return comm->run.sequence - sequence < DDP_PAST;
}

/* ---- sending and receiving ------------------------------------------------------------ */

static ddp_envelope envelope_of(const ddp_comm *comm, uint64_t tag)
{
	return (ddp_envelope){ .tag = tag, .operation = *past_operation(comm, comm->run.sequence),
	                       .source = comm->rank };
}

ddp_status ddp_message_send(ddp_comm *comm, int peer, uint64_t tag, const void *buffer,
                            size_t bytes, ddp_transfer *transfer)
{
	const ddp_envelope envelope = envelope_of(comm, tag);

	return ddp_net_send(comm, peer, &envelope, buffer, bytes, transfer);
}

void ddp_message_recv(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes,
                      ddp_transfer *transfer)
{
	ddp_message_take(comm, peer, tag, buffer, bytes, NULL, NULL, transfer);
}

void ddp_message_take(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes, ddp_take_message *take,
                      void *taker, ddp_transfer *transfer)
{
	*transfer = (ddp_transfer){ .peer = peer, .envelope = envelope_of(comm, tag), .buffer = buffer, .bytes = bytes,
	                            .take = take, .taker = taker };
	ddp_net_recv_filled(comm, transfer);
}

/* ---- the survey ------------------------------------------------------------------------- */

/* A survey finds what each rank does where ranks do not all do the same. A message shows two ranks that differ, and
   not which of them is wrong. So the rank that notices asks all ranks of other nodes, which answer, whatever they are
   at; the ranks of its own node it knows. All that ask come to the same sentence. */
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

/* Errors are ignored here: the rank that asked has a deadline of its own. */
static void say(ddp_comm *comm, int peer, uint64_t sequence, uint32_t word)
{
	ddp_transfer *words = words_of(comm);
	const ddp_envelope envelope = { .tag = word_tag(sequence, word), .source = comm->rank,
	                                .operation = *past_operation(comm, sequence) };

	if (words == NULL || !ddp_net_settled(comm, peer))
		return;
	ddp_transfer *from = &words[(word == WORD_ANSWERS ? comm->size : 0) + peer];
	if (from->net == NULL || atomic_load(&from->done))
		(void)ddp_net_send(comm, peer, &envelope, NULL, 0, from);
}

/* Takes a word that asks, or answers, off the messages that have come; and answers it. */
static void hear(ddp_comm *comm, const ddp_unexpected *word)
{
	const uint64_t sequence = sequence_of(&word->envelope);

	if (is_word_of_kind(&word->envelope, WORD_ASKS) && is_past_known(comm, sequence))
		say(comm, word->envelope.source, sequence, WORD_ANSWERS);
	ddp_net_drop_unexpected(comm, word);
}

static bool has_told(const survey *s, int rank)
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
			learn(s, comm->node.ranks[i], past_operation(comm, s->sequence));
		else if (atomic_load(&h->sequence) == s->sequence)
			learn(s, comm->node.ranks[i], &h->operation);
	}
}

/* A word is heard only if this rank can answer it. Other ranks may be ahead. */
static bool is_heard(const ddp_comm *comm, const ddp_unexpected *came, const void *argument)
{
	(void)argument;
	return is_word_of_kind(&came->envelope, WORD_ANSWERS) ||
	       (is_word_of_kind(&came->envelope, WORD_ASKS) && sequence_of(&came->envelope) <= comm->run.sequence);
}

static void look_at_words(survey *s)
{
	ddp_unexpected word;

	while (ddp_net_find_unexpected(s->comm, is_heard, NULL, &word)) {
		/* A rank that asks tells as much as a rank that answers. */
		if (sequence_of(&word.envelope) == s->sequence)
			learn(s, word.envelope.source, &word.envelope.operation);
		hear(s->comm, &word);
	}
}

/* One that is not connected with this rank is not asked, and one that is lost does not answer. */
static bool awaits(const survey *s)
{
	const ddp_comm *comm = s->comm;

	for (int r = 0; r < comm->size; r++) {
		if (!has_told(s, r) && (ddp_is_local(comm, r) || (ddp_net_settled(comm, r) && !ddp_net_lost(comm, r))))
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
			say(comm, r, s->sequence, WORD_ASKS);
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
		if (has_told(s, r))
			s->issued[count++] = s->issued[r];
	}
	return ddp_mismatch_break(s->comm, s->sequence, s->issued, count);
}

/* There is no memory for more. */
static ddp_status break_by_two(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs)
{
	const ddp_issued own = { .rank = comm->rank, .operation = *past_operation(comm, sequence) };
	const bool first = own.rank < theirs->rank;

	return ddp_mismatch_break(comm, sequence, (ddp_issued[]){ first ? own : *theirs, first ? *theirs : own }, 2);
}

ddp_status ddp_message_survey(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs)
{
	const int quarter_ms = comm->timeout_ms / 4, ms = quarter_ms < SURVEY_MS ? quarter_ms : SURVEY_MS;
	survey s = { .comm = comm, .sequence = sequence, .deadline_ns = ddp_ms_from_now(ms),
	             .issued = calloc((size_t)comm->size, sizeof(*s.issued)) };

	if (s.issued == NULL)
		return break_by_two(comm, sequence, theirs);
	for (int r = 0; r < comm->size; r++)
		s.issued[r].rank = DDP_NOBODY;
	learn(&s, comm->rank, past_operation(comm, sequence));
	learn(&s, theirs->rank, &theirs->operation);
	ddp_status status = ask_all(&s);
	if (status == DDP_OK)
		status = conclude(&s);
	free(s.issued);
	return status;
}

/* ---- what does not fit ------------------------------------------------------------------ */

static ddp_status break_misfit(ddp_comm *comm, const ddp_unexpected *came, const ddp_unexpected *wanted)
{
	const ddp_envelope *have = &came->envelope, *want = &wanted->envelope;
	char text[128];

	if (want->operation.kind == DDP_SEND)
		return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
		                      "%s sent %s[%llu] with tag %d, but %s expects %s[%llu]",
		                      ddp_rank_text(comm, have->source),
		                      ddp_type_name((ddp_type)have->operation.type),
		                      (unsigned long long)have->operation.count, (int)(want->tag & 0x7fffffff),
		                      ddp_rank_text(comm, comm->rank),
		                      ddp_type_name((ddp_type)want->operation.type),
		                      (unsigned long long)want->operation.count);
	if (!ddp_fingerprint_same(&have->operation, &want->operation))
		return ddp_message_survey(comm, sequence_of(have), &(ddp_issued){ have->source, have->operation });
	ddp_fingerprint_describe(&want->operation, text, sizeof(text));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
	                      "operation #%llu differs: %s issued %s, but %s issued %s (%zu bytes were expected, "
	                      "%zu came)", (unsigned long long)sequence_of(have), ddp_rank_text(comm, comm->rank),
	                      text, ddp_rank_text(comm, have->source), text, wanted->bytes, came->bytes);
}

/* A wait for this peer has lasted. If it took the operation for another, it
   may wait for us in turn, or be through: it is told what this rank is at, and
   compares. */
static void ask(ddp_comm *comm, int peer)
{
	ddp_running *run = &comm->run;
	uint64_t now = ddp_now_ns();

	if (run->sequence == 0 || ddp_kind_is_message(run->operation->kind))
		return;
	if (run->question_sequence != run->sequence) {
		run->question_sequence = run->sequence;
		run->question_ns = now + (uint64_t)ASK_MS * 1000000;
	}
	if (now < run->question_ns || (run->question != NULL && run->question->net != NULL && !run->question->done))
		return;
	run->question_ns = now + (uint64_t)ASK_MS * 1000000;
	if (run->question == NULL)
		run->question = calloc(1, sizeof(*run->question));
	/* A failure to send is seen by who waits. */
	if (run->question != NULL)
		(void)ddp_message_send(comm, peer, word_tag(run->sequence, WORD_AT), NULL, 0, run->question);
}

/* The operation was issued so long ago that this rank has forgotten its own one. */
static ddp_status break_unasked(ddp_comm *comm, const ddp_envelope *have)
{
	char text[128];

	ddp_fingerprint_describe(&have->operation, text, sizeof(text));
	return ddp_comm_break(comm, ddp_fingerprint_is_end(&have->operation) ? DDP_ERR_PEER : DDP_ERR_MISMATCH,
	                      have->source,
	                      "operation #%llu differs: %s issued %s, and sent what %s, now at operation "
	                      "#%llu, did not wait for", (unsigned long long)sequence_of(have),
	                      ddp_rank_text(comm, have->source), text, ddp_rank_text(comm, comm->rank),
	                      (unsigned long long)comm->run.sequence);
}

/* The operation of this rank to which a message belongs. */
static ddp_unexpected own_of(const ddp_comm *comm, const ddp_unexpected *came)
{
	const uint64_t sequence = sequence_of(&came->envelope);

	return (ddp_unexpected){
		.envelope = { .tag = sequence << 24, .operation = *past_operation(comm, sequence),
		              .source = comm->rank },
	};
}

static bool is_known(const ddp_comm *comm, const ddp_unexpected *came)
{
	return is_past_known(comm, sequence_of(&came->envelope));
}

static bool differs(const ddp_comm *comm, const ddp_unexpected *came)
{
	const ddp_unexpected mine = own_of(comm, came);

	return is_known(comm, came) && !ddp_fingerprint_same(&came->envelope.operation, &mine.envelope.operation);
}

static bool is_word(const ddp_unexpected *came)
{
	return (came->envelope.tag & WORD_TAG) != 0;
}

/* A word, or a message of an operation that was another one here and that will
   never be asked for. */
static bool concerns(const ddp_comm *comm, const ddp_unexpected *came, const void *argument)
{
	(void)argument;
	if ((came->envelope.tag & DDP_NET_P2P_TAG) != 0 || sequence_of(&came->envelope) > comm->run.sequence)
		return false;
	return is_word(came) || !is_known(comm, came) || differs(comm, came);
}

static ddp_status check_unexpected(ddp_comm *comm)
{
	ddp_unexpected came;

	while (ddp_net_find_unexpected(comm, concerns, NULL, &came)) {
		const ddp_unexpected mine = own_of(comm, &came);
		/* A rank that asks or answers has a survey under way, which breaks the communicator. */
		const bool of_survey = is_word(&came) && !is_word_of_kind(&came.envelope, WORD_AT);
		if (!of_survey && differs(comm, &came))
			return break_misfit(comm, &came, &mine);
		if (!is_word(&came))
			return break_unasked(comm, &came.envelope);
		hear(comm, &came);
	}
	return DDP_OK;
}

static ddp_status break_lost(ddp_comm *comm, int peer)
{
	char operation[128];

	/* The node may have fallen silent since this wait last looked. */
	if (ddp_comm_check_silence(comm) != DDP_OK)
		return ddp_comm_check(comm);
	ddp_collective_describe(comm->run.operation, operation, sizeof(operation));
	return ddp_comm_break(comm, DDP_ERR_PEER, peer, "the connection to %s is lost (%s), in %s #%llu",
	                      ddp_rank_text(comm, peer), ddp_net_lost_reason(comm, peer), operation,
	                      (unsigned long long)comm->run.sequence);
}

ddp_status ddp_message_check(ddp_comm *comm, int missing, bool lost)
{
	ddp_misfit misfit;
	ddp_status status;

	if (ddp_net_down(comm))
		return DDP_OK;
	if ((status = ddp_net_check_failure(comm)) != DDP_OK)
		return status;
	if (ddp_net_misfit(comm, &misfit))
		return break_misfit(comm, &misfit.came, &misfit.wanted);
	if ((status = ddp_net_check_memory(comm)) != DDP_OK)
		return status;
	if (lost)
		return break_lost(comm, missing);
	if (missing != DDP_NOBODY && !ddp_is_local(comm, missing))
		ask(comm, missing);
	return check_unexpected(comm);
}

ddp_status ddp_message_give_up(ddp_comm *comm, ddp_status status)
{
	if (ddp_comm_check(comm) == DDP_OK)
		ddp_comm_break(comm, status, comm->rank, "%s", ddp_last_error());
	ddp_net_shut_down(comm);
	return ddp_comm_check(comm);
}
