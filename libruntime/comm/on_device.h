/* SPDX-License-Identifier: Apache-2.0 */
/* comm/on_device: what the backends for a device's memory share. What a rank gives to an operation, and
   gets, are blocks: one of each rank where ranks have their own, else one. */
#pragma once

#include "comm/core/comm.h"
#include "device/device.h"

/* Blocks one behind the other. */
typedef struct ddp_side {
	char *memory;         /* NULL: nothing is given, or got */
	int blocks;
	const size_t *counts; /* [blocks]; NULL: all are `count` */
	size_t count;
} ddp_side;

typedef struct ddp_sides {
	ddp_side input, output;
	size_t element;       /* bytes */
	size_t longest;       /* elements of the longest block: the same on all ranks, */
	bool whole;           /* unless it cannot be cut, since ranks do not know that */
} ddp_sides;

/* `c` is complete. */
ddp_sides ddp_sides_of(const ddp_comm *comm, const ddp_operation *c);

/* Elements of all blocks. */
size_t ddp_side_count(const ddp_side *side);

/* DDP_ERR_INVALID: a side is not in the memory of the communicator's device. */
ddp_status ddp_sides_check(const ddp_comm *comm, const ddp_sides *sides, ddp_operation_kind kind);

/* Writes when the device began an operation that has just ended: it took as long as from one timed event
   to the other by the device's clock. The host's may have seen the end later. */
ddp_status ddp_note_start(ddp_device *device, ddp_device_event *start, ddp_device_event *end, ddp_request *request);
