/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_credit.h"

#include "comm/net/ucx_ticket.h"

enum {
	CREDIT_LEAST = 1 << 20, /* of many processes, in all 1 GiB, or this of each */
	CREDIT_MOST = 16 << 20,
	MESSAGE_BYTES = 128,    /* that a message takes beside its data */
	PARTS = 4               /* of a credit: when a sender is told what was taken */
};

static size_t credit_bytes(const connection *c)
{
	size_t share = ((size_t)1 << 30) / (size_t)c->worker->roster->size;

	if (share < CREDIT_LEAST)
		return CREDIT_LEAST;
	return share < CREDIT_MOST ? share : CREDIT_MOST;
}

bool ddp_ucx_charge(connection *c, const ddp_transfer *t, uint64_t *charge)
{
	uint64_t whole = t->bytes + MESSAGE_BYTES;

	*charge = 0;
	/* Messages of the survivor agreement are small, and come after messages that
	   nobody takes any more. */
	if ((t->envelope.tag & DDP_NET_AGREEMENT_TAG) == DDP_NET_AGREEMENT_TAG)
		return true;
	if (t->bytes > 0 && c->sent_bytes - c->credited_bytes + whole > credit_bytes(c))
		return false;
	c->sent_bytes += whole;
	*charge = whole;
	return true;
}

void ddp_ucx_taken(connection *c, uint64_t charge)
{
	c->taken_bytes += charge;
	if (c->taken_bytes - c->told_bytes < credit_bytes(c) / PARTS)
		return;
	c->credit_due = true;
	ddp_ucx_due(c);
}

bool ddp_ucx_send_credit(connection *c)
{
	credit_header credit = { .taken_bytes = c->taken_bytes };

	if (atomic_load(&c->lost) == UCS_OK &&
	    !ddp_ucx_notify(&c->worker->tickets, c, DDP_AM_CREDIT, &credit, sizeof(credit)))
		return false;
	c->credit_due = false;
	c->told_bytes = c->taken_bytes;
	return true;
}

void ddp_ucx_credit_arrived(connection *c, const control_header *header)
{
	const uint64_t taken_bytes = header->credit.taken_bytes;

	if (taken_bytes > c->credited_bytes && taken_bytes <= c->sent_bytes)
		c->credited_bytes = taken_bytes;
}
