/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/fingerprint.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/outlier.h"
#include "comm/core/comm.h"

static uint32_t hash_counts(const ddp_operation *c, int size)
{
	if (c->counts == NULL || c->kind == DDP_ALL_TO_ALL)
		return 0;
	uint64_t hash = ddp_hash(c->counts, (size_t)size * sizeof(*c->counts));
	return (uint32_t)(hash ^ hash >> 32);
}

ddp_fingerprint ddp_fingerprint_of(const ddp_operation *c, int size)
{
	return (ddp_fingerprint){
		.kind = (uint8_t)c->kind,
		.type = c->kind == DDP_BARRIER ? 0 : (uint8_t)c->type,
		.op = ddp_kind_reduces(c->kind) ? (uint8_t)c->op : 0,
		.by_counts = c->counts != NULL,
		.root = ddp_kind_has_root(c->kind) ? c->root : c->kind == DDP_BARRIER ? c->tag : 0,
		.count = c->counts != NULL || c->kind == DDP_BARRIER ? 0 : c->count,
		.counts_hash = hash_counts(c, size),
	};
}

void ddp_fingerprint_describe(const ddp_fingerprint *f, char *text, size_t bytes)
{
	static const size_t by_counts[1];
	const ddp_operation c = {
		.kind = (ddp_operation_kind)f->kind, .type = (ddp_type)f->type, .op = (ddp_op)f->op,
		.root = f->root, .tag = f->root, .count = f->count, .counts = f->by_counts ? by_counts : NULL,
	};

	ddp_collective_describe(&c, text, bytes);
}

/* ---- operations that differ ------------------------------------------------------------ */

static bool same_operation(const void *issued, int a, int b)
{
	const ddp_issued *of = issued;

	return ddp_fingerprint_same(&of[a].operation, &of[b].operation);
}

ddp_status ddp_mismatch_break(ddp_comm *comm, uint64_t sequence, const ddp_issued *issued, int count)
{
	ddp_outlier o = ddp_outlier_find(count, same_operation, issued);
	const ddp_issued *odd = &issued[o.odd], *usual = &issued[o.usual];
	char operations[2][128], ranks[2][DDP_HOST_MAX + 64], number[48] = "";

	/* Ranks that are not in the list are others, too. */
	o.ranks = comm->size;
	ddp_outlier_say(&o, ddp_rank_text(comm, odd->rank), ddp_rank_text(comm, usual->rank), ranks[0], ranks[1],
	                sizeof(ranks[0]));
	ddp_fingerprint_describe(&odd->operation, operations[0], sizeof(operations[0]));
	ddp_fingerprint_describe(&usual->operation, operations[1], sizeof(operations[1]));
	if (sequence != 0)
		snprintf(number, sizeof(number), "operation #%llu differs: ", (unsigned long long)sequence);
	/* Whoever closes the communicator, alone or beside one other, is gone, like one that has ended. */
	const bool usual_ends = o.usual_count == 1 && ddp_fingerprint_is_end(&usual->operation);
	const bool ends = usual_ends || ddp_fingerprint_is_end(&odd->operation);
	return ddp_comm_break(comm, ends ? DDP_ERR_PEER : DDP_ERR_MISMATCH, usual_ends ? usual->rank : odd->rank,
	                      "%s%s issued %s, but %s issued %s%s", number,
	                      ranks[0], operations[0], ranks[1], operations[1],
	                      odd->operation.counts_hash != usual->operation.counts_hash ? " (with other counts)" : "");
}
