/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/fingerprint.h"

#include "base/hash.h"

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
