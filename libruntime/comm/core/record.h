/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/record: an operation of a communicator in the flight recorder's ring (watch/recorder.h). */
#pragma once

#include "comm/core/comm.h"

/* Begins the operation, which began at now_ns. `number` counts the collectives of the communicator and lane from 1; a
   message has 0. */
static inline ddp_recorded ddp_comm_record(const ddp_comm *comm, const ddp_operation *c, uint64_t number,
                                           uint64_t now_ns)
{
	const ddp_recorder *recorder = comm->roster->recorder;

	if (recorder == NULL)
		return (ddp_recorded){ NULL, 0 };
	const bool message = c->kind == DDP_SEND || c->kind == DDP_RECV;
	const bool rooted = message || ddp_kind_has_root(c->kind);
	const struct ddp_record_entry what = {
		.number = number, .group = comm->id, .count = c->count, .begin_ns = now_ns,
		.peer = rooted ? c->root : -1, .ranks = (uint32_t)comm->size, .kind = (uint8_t)c->kind, .type = (uint8_t)c->type,
		.op = ddp_kind_reduces(c->kind) ? (uint8_t)c->op : DDP_RECORD_NAMED, .lane = (uint8_t)c->lane,
		.flags = (uint8_t)((comm->size == comm->roster->size ? DDP_RECORD_OF_ALL : 0) |
		                   (c->memory == DDP_MEMORY_DEVICE ? DDP_RECORD_DEVICE : 0)),
		.tag = message ? (uint16_t)c->tag : 0,
	};
	return ddp_record_begin(recorder, &what);
}

/* A group may outlive the context that has the ring. The ring stays mapped, but may be another context's by now. */
static inline void ddp_comm_record_end(const ddp_comm *comm, ddp_recorded recorded, ddp_status status, uint64_t now_ns)
{
	if (recorded.entry != NULL && comm->roster->recorder != NULL)
		ddp_record_end(recorded, status, now_ns);
}
