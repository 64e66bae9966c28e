/* SPDX-License-Identifier: Apache-2.0 */
/* comm/wait/survey: what an operation that is not the same on all ranks is on each of them. A message
   shows two ranks that differ, and not which of them is wrong. So the rank that notices asks all
   ranks of other nodes, which answer, whatever they are at; the ranks of its own node it knows. All
   that ask come to the same sentence. */
#pragma once

#include "comm/core/fingerprint.h"
#include "comm/net/net.h"

/* The tags of these messages: none of an operation has this bit, whatever its number. A word without
   a number is comm/wait/message's own. */
#define DDP_WORD_TAG (1ull << 62)
enum { DDP_WORD_AT = 0, DDP_WORD_ASKS = 1, DDP_WORD_ANSWERS = 2 };

static inline uint64_t ddp_word_tag(uint64_t sequence, uint32_t word)
{
	return DDP_WORD_TAG | sequence << 24 | word;
}

/* The operation that a message belongs to. */
static inline uint64_t ddp_sequence_of(const ddp_envelope *e)
{
	return (e->tag & ~DDP_WORD_TAG) >> 24;
}

static inline bool ddp_is_word(const ddp_envelope *e, uint32_t word)
{
	return (e->tag & (DDP_NET_P2P_TAG | DDP_WORD_TAG | 0xffffff)) == (DDP_WORD_TAG | word);
}

/* The fingerprint that operation `sequence`, one of the last, had here. */
static inline const ddp_fingerprint *ddp_past_operation(const ddp_comm *comm, uint64_t sequence)
{
	return &comm->run.past[sequence % DDP_PAST];
}

static inline bool ddp_is_past_known(const ddp_comm *comm, uint64_t sequence)
{
	return comm->run.sequence - sequence < DDP_PAST;
}

/* Breaks the communicator, on which operation `sequence`, of which this rank knows what it was here, is
   `theirs` on another rank. Ranks that do not answer within 2 s are not counted. */
ddp_status ddp_survey_break(ddp_comm *comm, uint64_t sequence, const ddp_issued *theirs);

/* Takes a word that asks, or answers, off the messages that have come; and answers it. */
void ddp_survey_hear(ddp_comm *comm, const ddp_unexpected *word);
