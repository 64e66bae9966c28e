/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/on_device.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/ops/names.h"

static ddp_side one_block(const void *memory, size_t count)
{
	return (ddp_side){ .memory = (char *)(uintptr_t)memory, .blocks = 1, .count = count };
}

static ddp_side all_blocks(const ddp_comm *comm, const void *memory, const size_t *counts, size_t count)
{
	return (ddp_side){ .memory = (char *)(uintptr_t)memory, .blocks = comm->size, .counts = counts,
	                   .count = count };
}

static size_t longest(const ddp_operation *c, int ranks)
{
	size_t most = c->counts == NULL ? c->count : 0;

	for (int r = 0; r < ranks && c->counts != NULL; r++)
		most = c->counts[r] > most ? c->counts[r] : most;
	return most;
}

ddp_sides ddp_sides_of(const ddp_comm *comm, const ddp_operation *c)
{
	const bool root = c->root == comm->rank;
	const size_t mine = c->counts != NULL ? c->counts[comm->rank] : c->count;
	ddp_sides sides = { .element = ddp_type_bytes(c->type), .longest = longest(c, comm->size) };

	sides.input = one_block(c->send, mine);
	sides.output = one_block(c->recv, mine);
	switch (c->kind) {
	case DDP_REDUCE: sides.output.memory = root ? c->recv : NULL; break;
	case DDP_BROADCAST:
		sides.input.memory = root ? c->recv : NULL;
		sides.output.memory = root ? NULL : c->recv;
		break;
	case DDP_REDUCE_SCATTER: sides.input = all_blocks(comm, c->send, c->counts, c->count); break;
	case DDP_ALL_GATHER: sides.output = all_blocks(comm, c->recv, c->counts, c->count); break;
	case DDP_GATHER: sides.output = all_blocks(comm, root ? c->recv : NULL, c->counts, c->count); break;
	case DDP_SCATTER: sides.input = all_blocks(comm, root ? c->send : NULL, c->counts, c->count); break;
	case DDP_ALL_TO_ALL:
		sides.input = all_blocks(comm, c->send, c->counts, c->count);
		sides.output = all_blocks(comm, c->recv, c->recv_counts, c->count);
		sides.whole = c->counts != NULL;
		break;
	case DDP_SEND: sides.output.memory = NULL; break;
	case DDP_RECV: sides.input.memory = NULL; break;
	case DDP_BARRIER: sides.input.memory = sides.output.memory = NULL; sides.longest = 0; break;
	default: break;
	}
	return sides;
}

size_t ddp_side_count(const ddp_side *side)
{
	size_t sum = 0;

	if (side->counts == NULL)
		return side->count * (size_t)side->blocks;
	for (int b = 0; b < side->blocks; b++)
		sum += side->counts[b];
	return sum;
}

static ddp_status check_side(const ddp_comm *comm, const ddp_side *side, ddp_operation_kind kind)
{
	ddp_device *device = comm->roster->device;
	const ddp_device_info *info = ddp_device_describe(device);

	if (side->memory == NULL || ddp_side_count(side) == 0 || ddp_device_owns(device, side->memory))
		return DDP_OK;
	const ddp_status status = ddp_device_error(device); /* one whose context is gone owns nothing */
	if (status != DDP_OK)
		return status;
	return ddp_fail(DDP_ERR_INVALID, "%s: %p is not in the memory of the device %s:%d", ddp_kind_name(kind),
	                (void *)side->memory, info->kind, info->index);
}

ddp_status ddp_sides_check(const ddp_comm *comm, const ddp_sides *sides, ddp_operation_kind kind)
{
	const ddp_status status = check_side(comm, &sides->input, kind);

	return status == DDP_OK ? check_side(comm, &sides->output, kind) : status;
}

ddp_status ddp_note_start(ddp_device *device, ddp_device_event *start, ddp_device_event *end, ddp_request *request)
{
	double seconds = 0;
	ddp_status status = ddp_device_event_seconds(device, start, end, &seconds);
	const uint64_t now = ddp_now_ns(), took = (uint64_t)(seconds * 1e9);

	if (status == DDP_OK && took < now && now - took > request->start_ns)
		request->start_ns = now - took;
	return status;
}
