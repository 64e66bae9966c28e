/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/message.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/wait/survey.h"

enum { ASK_MS = 500 }; /* how long a wait lasts before the peer is asked */

/* ---- sending and receiving ------------------------------------------------------------ */

static ddp_envelope envelope_of(const ddp_comm *comm, uint64_t tag)
{
	return (ddp_envelope){ .tag = tag, .operation = *ddp_past_operation(comm, comm->run.sequence),
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
	const ddp_envelope envelope = envelope_of(comm, tag);

	ddp_net_recv(comm, peer, &envelope, buffer, bytes, transfer);
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
		return ddp_survey_break(comm, ddp_sequence_of(have), &(ddp_issued){ have->source, have->operation });
	ddp_fingerprint_describe(&want->operation, text, sizeof(text));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
	                      "operation #%llu differs: %s issued %s, but %s issued %s (%zu bytes were expected, "
	                      "%zu came)", (unsigned long long)ddp_sequence_of(have), ddp_rank_text(comm, comm->rank),
	                      text, ddp_rank_text(comm, have->source), text, wanted->bytes, came->bytes);
}

/* A wait for this peer has lasted. If it took the operation for another, it
   may wait for us in turn, or be through: it is told what this rank is at, and
   compares. */
static void ask(ddp_comm *comm, int peer)
{
	ddp_running *run = &comm->run;
	uint64_t now = ddp_now_ns();

	if (run->sequence == 0 || run->operation->kind == DDP_SEND || run->operation->kind == DDP_RECV)
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
		(void)ddp_message_send(comm, peer, ddp_word_tag(run->sequence, DDP_WORD_AT), NULL, 0, run->question);
}

/* The operation was issued so long ago that this rank has forgotten its own one. */
static ddp_status break_unasked(ddp_comm *comm, const ddp_envelope *have)
{
	char text[128];

	ddp_fingerprint_describe(&have->operation, text, sizeof(text));
	return ddp_comm_break(comm, ddp_fingerprint_is_end(&have->operation) ? DDP_ERR_PEER : DDP_ERR_MISMATCH,
	                      have->source,
	                      "operation #%llu differs: %s issued %s, and sent what %s, now at operation "
	                      "#%llu, did not wait for", (unsigned long long)ddp_sequence_of(have),
	                      ddp_rank_text(comm, have->source), text, ddp_rank_text(comm, comm->rank),
	                      (unsigned long long)comm->run.sequence);
}

/* The operation of this rank to which a message belongs. */
static ddp_unexpected own_of(const ddp_comm *comm, const ddp_unexpected *came)
{
	const uint64_t sequence = ddp_sequence_of(&came->envelope);

	return (ddp_unexpected){
		.envelope = { .tag = sequence << 24, .operation = *ddp_past_operation(comm, sequence),
		              .source = comm->rank },
	};
}

static bool is_known(const ddp_comm *comm, const ddp_unexpected *came)
{
	return ddp_is_past_known(comm, ddp_sequence_of(&came->envelope));
}

static bool differs(const ddp_comm *comm, const ddp_unexpected *came)
{
	const ddp_unexpected mine = own_of(comm, came);

	return is_known(comm, came) && !ddp_fingerprint_same(&came->envelope.operation, &mine.envelope.operation);
}

static bool is_word(const ddp_unexpected *came)
{
	return (came->envelope.tag & DDP_WORD_TAG) != 0;
}

/* A word, or a message of an operation that was another one here and that will
   never be asked for. */
static bool concerns(const ddp_comm *comm, const ddp_unexpected *came, const void *argument)
{
	(void)argument;
	if ((came->envelope.tag & DDP_NET_P2P_TAG) != 0 || ddp_sequence_of(&came->envelope) > comm->run.sequence)
		return false;
	return is_word(came) || !is_known(comm, came) || differs(comm, came);
}

static ddp_status check_unexpected(ddp_comm *comm)
{
	ddp_unexpected came;

	while (ddp_net_find_unexpected(comm, concerns, NULL, &came)) {
		const ddp_unexpected mine = own_of(comm, &came);
		/* A rank that asks or answers has a survey under way, which breaks the communicator. */
		const bool of_survey = is_word(&came) && !ddp_is_word(&came.envelope, DDP_WORD_AT);
		if (!of_survey && differs(comm, &came))
			return break_misfit(comm, &came, &mine);
		if (!is_word(&came))
			return break_unasked(comm, &came.envelope);
		ddp_survey_hear(comm, &came);
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

ddp_status ddp_message_check(ddp_comm *comm, int missing)
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
	if (missing != DDP_NOBODY && ddp_net_lost(comm, missing))
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
