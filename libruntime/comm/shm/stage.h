/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/stage: what passes through the control segment, and where. */
#pragma once

#include "comm/core/comm.h"

/* The node's i-th rank's slots of the staged path, for window k. */
static inline char *ddp_stage_slot(const ddp_comm *comm, int i, size_t k)
{
	return comm->node.stage + ((size_t)i * 2 + (k & 1)) * comm->node.slot_bytes;
}

static inline char *ddp_result_slot(const ddp_comm *comm, int i, size_t k)
{
	return comm->node.result + ((size_t)i * 2 + (k & 1)) * comm->node.slot_bytes;
}

/* Bytes up to which a rank's whole payload goes with its header: one round
   instead of two, but every rank reads everything. A round costs a turn of the
   scheduler where ranks outnumber cores, and half a microsecond elsewhere. */
static inline size_t ddp_small_bytes(const ddp_comm *comm)
{
	size_t total = (size_t)DDP_SMALL_BYTES * (comm->node.oversubscribed ? 16 : 1) / 4;
	size_t share = total / (size_t)comm->node.size;

	return share < DDP_INLINE_BYTES ? DDP_INLINE_BYTES
	       : share < DDP_SMALL_BYTES ? share : DDP_SMALL_BYTES;
}
