/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/proposal.h"

#include <string.h>

#include "base/hash.h"

/* ---- records -------------------------------------------------------------------------- */

static uint64_t hash_of(const ddp_agreement *m, const ddp_proposal *n)
{
	return ddp_hash((const char *)n + sizeof(n->hash), m->record_bytes - sizeof(n->hash));
}

const ddp_proposal *ddp_proposal_gone(const ddp_agreement *m, int r)
{
	ddp_proposal *n = ddp_agreement_scratch(m);

	memset(n, 0, m->record_bytes);
	n->serial = m->serial;
	n->source = r;
	n->stage = DDP_PROPOSAL_GONE;
	n->size = (uint32_t)m->comm->size;
	n->hash = hash_of(m, n);
	return n;
}

void ddp_proposal_write(ddp_agreement *m, uint32_t stage, int verdict, bool decided, const void *data, size_t bytes)
{
	ddp_proposal *n = ddp_telling_of(m, m->serial)->record;

	memset(n, 0, m->record_bytes);
	n->serial = m->serial;
	n->source = m->comm->rank;
	n->stage = stage;
	n->verdict = verdict;
	n->decided = decided;
	n->size = (uint32_t)m->comm->size;
	n->bytes = (uint32_t)bytes;
	if (bytes > 0)
		memcpy(n->data, data, bytes);
	for (int r = 0; r < m->comm->size; r++)
		n->present[r / 8] |= (unsigned char)(m->present[r] << r % 8);
	n->hash = hash_of(m, n);
}

bool ddp_proposal_is_sound(const ddp_agreement *m, const ddp_proposal *n, uint64_t serial)
{
	return n->hash == hash_of(m, n) && n->serial == serial && n->size == (uint32_t)m->comm->size &&
	       n->source >= 0 && n->source < m->comm->size && n->bytes <= DDP_AGREEMENT_DATA;
}

/* ---- boards --------------------------------------------------------------------------- */

/* Local rank i shows its proposal of round `serial` here, and behind it those of other nodes that were told to it. A
   rank that has not seen the failure yet may still read and write the slots of the operation. */
typedef struct board {
	alignas(64) _Atomic uint64_t others;
	alignas(64) unsigned char records[];
} board;

/* Rounds use the boards in turn, because no rank is two rounds ahead of a rank that is present to it. The first
   round of an agreement has a board of its own: a rank may begin again while others of its node still read what
   it told last. */
static board *board_of(const ddp_comm *comm, int i, uint64_t serial)
{
	const uint64_t place = ddp_round_in_agreement(serial) == 1 ? DDP_PROPOSAL_BOARDS - 1 : serial & 1;

	return (board *)(void *)(comm->node.proposals +
	                         ((size_t)i * DDP_PROPOSAL_BOARDS + place) * comm->node.proposals_bytes);
}

_Static_assert(sizeof(board) + sizeof(ddp_proposal) + sizeof(uint64_t) <= DDP_PROPOSAL_BYTES, "of a board's share");

void ddp_board_show(ddp_agreement *m)
{
	ddp_comm *comm = m->comm;
	board *b = board_of(comm, comm->node.self, m->serial);

	atomic_store(&b->others, 0);
	memcpy(b->records, ddp_telling_of(m, m->serial)->record, m->record_bytes);
	atomic_store(&ddp_lines_of(comm, comm->rank)->agreement, m->serial);
}

void ddp_board_add(const ddp_agreement *m, const ddp_proposal *n)
{
	board *b = board_of(m->comm, m->comm->node.self, m->serial);
	const uint64_t others = atomic_load(&b->others);

	memcpy(b->records + (others + 1) * m->record_bytes, n, m->record_bytes);
	atomic_store(&b->others, others + 1);
}

size_t ddp_board_others(const ddp_agreement *m, int i)
{
	const uint64_t others = atomic_load(&board_of(m->comm, i, m->serial)->others);

	return others < (uint64_t)m->comm->size ? (size_t)others : (size_t)m->comm->size;
}

const ddp_proposal *ddp_board_read(const ddp_agreement *m, int i, size_t k, uint64_t serial)
{
	ddp_proposal *n = ddp_agreement_scratch(m);

	memcpy(n, board_of(m->comm, i, serial)->records + k * m->record_bytes, m->record_bytes);
	return ddp_proposal_is_sound(m, n, serial) ? n : NULL;
}
