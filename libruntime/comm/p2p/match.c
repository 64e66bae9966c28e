/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/p2p/match.h"

#include <stdio.h>

#include "base/error.h"

void ddp_match_describe(const ddp_operation *c, char *text, size_t bytes)
{
	char whole[128];

	ddp_collective_describe(c, whole, sizeof(whole));
	if (c->kind == DDP_RECV && c->tag == DDP_ANY_TAG)
		snprintf(text, bytes, "%s with any tag", whole);
	else
		snprintf(text, bytes, "%s with tag %d", whole, c->tag);
}

static ddp_status refuse(ddp_comm *comm, const ddp_request *r, const ddp_message *m)
{
	char text[160];

	if (ddp_match_is_own(m->tag))
		return ddp_comm_break(comm, DDP_ERR_MISMATCH, m->source,
		                      "ddp_comm_create_group() with tag %d: %s and %s list different ranks",
		                      m->tag - INT_MIN, ddp_rank_text(comm, comm->rank),
		                      ddp_rank_text(comm, m->source));
	ddp_match_describe(&r->operation, text, sizeof(text));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, m->source, "%s issued %s, but %s sent %s[%llu]",
	                      ddp_rank_text(comm, comm->rank), text, ddp_rank_text(comm, m->source),
	                      ddp_type_name(m->type), (unsigned long long)m->count);
}

ddp_status ddp_match_accept(ddp_comm *comm, ddp_request *r, const ddp_message *message)
{
	ddp_operation *c = &r->operation;
	const bool fits = c->received != NULL ? message->count <= c->count : message->count == c->count;

	if (message->type != c->type || !fits || message->bytes != message->count * ddp_type_bytes(c->type))
		return refuse(comm, r, message);
	c->root = message->source;
	c->tag = message->tag;
	c->count = message->count;
	r->open = false;
	return DDP_OK;
}
