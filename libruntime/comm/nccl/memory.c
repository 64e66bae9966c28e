/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/lane.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/nccl/handle.h"

typedef struct ddp_nccl_buffer {
	struct ddp_nccl_buffer *next;
	void *memory;
	size_t bytes;
	void *registration; /* NULL: NCCL copies */
	bool is_nccls;      /* of ncclMemAlloc() */
} ddp_nccl_buffer;

/* A call of NCCL's for a buffer, and its result. */
typedef struct call {
	const ddp_nccl_lane *lane;
	ddp_nccl_buffer *buffer;
	int result;
} call;

static void call_alloc(void *argument)
{
	call *c = argument;

	c->result = c->lane->nccl->mem_alloc(&c->buffer->memory, c->buffer->bytes);
}

static void call_free(void *argument)
{
	call *c = argument;

	c->result = c->lane->nccl->mem_free(c->buffer->memory);
}

static void call_add(void *argument)
{
	call *c = argument;

	c->result = c->lane->nccl->add_buffer(c->lane->handle, c->buffer->memory, c->buffer->bytes, &c->buffer->registration);
}

static void call_remove(void *argument)
{
	call *c = argument;

	c->result = c->lane->nccl->remove_buffer(c->lane->handle, c->buffer->registration);
}

/* NCCL's own is the best for it; else any. */
static ddp_status get_memory(ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	call c = { .lane = lane, .buffer = b };

	if (lane->nccl->mem_alloc != NULL && lane->nccl->mem_free != NULL) {
		const ddp_status status = ddp_device_within(lane->device, call_alloc, &c);
		if (status != DDP_OK)
			return status;
		b->is_nccls = ddp_nccl_status(lane->nccl, NULL, c.result, "ncclMemAlloc()") == DDP_OK;
		if (b->is_nccls)
			return DDP_OK;
		ddp_log(DDP_LOG_DEBUG, "%s: memory is the device's instead", ddp_last_error());
	}
	return ddp_device_alloc(lane->device, b->bytes, &b->memory);
}

static ddp_status give_back(ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	call c = { .lane = lane, .buffer = b };

	if (!b->is_nccls)
		return ddp_device_free(lane->device, b->memory);
	if (ddp_device_within(lane->device, call_free, &c) != DDP_OK)
		return DDP_OK; /* it went with the device's context */
	return ddp_nccl_status(lane->nccl, NULL, c.result, "ncclMemFree()");
}

static void add_to_nccl(const ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	call c = { .lane = lane, .buffer = b };

	b->registration = NULL;
	if (lane->handle == NULL || lane->nccl->add_buffer == NULL || lane->nccl->remove_buffer == NULL)
		return;
	if (ddp_device_within(lane->device, call_add, &c) == DDP_OK &&
	    ddp_nccl_status(lane->nccl, lane->handle, c.result, "ncclCommRegister()") == DDP_OK)
		return;
	b->registration = NULL;
	ddp_log(DDP_LOG_DEBUG, "%s: operations on this memory take a copy", ddp_last_error());
}

static void remove_from_nccl(const ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	call c = { .lane = lane, .buffer = b };

	if (b->registration == NULL || lane->handle == NULL)
		return;
	const ddp_status status = ddp_device_within(lane->device, call_remove, &c);
	b->registration = NULL;
	if (status != DDP_OK || ddp_nccl_status(lane->nccl, lane->handle, c.result, "ncclCommDeregister()") != DDP_OK)
		ddp_log(DDP_LOG_DEBUG, "%s", ddp_last_error());
}

/* NCCL wants nothing else while it puts an operation on its queue. */
static void await_nccl(ddp_nccl_lane *lane)
{
	bool ready = false;

	while (lane->handle != NULL && !ready && ddp_nccl_ready(lane->nccl, lane->handle, &ready) == DDP_OK && !ready &&
	       ddp_comm_check(lane->comm) == DDP_OK)
		usleep(50);
}

static ddp_status make(ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	ddp_status status = get_memory(lane, b);

	if (status == DDP_OK)
		status = ddp_device_fill(lane->device, lane->queue, b->memory, 0, b->bytes);
	return status == DDP_OK ? ddp_device_queue_sync(lane->device, lane->queue) : status;
}

static void add(ddp_nccl_lane *lane, ddp_nccl_buffer *b)
{
	pthread_mutex_lock(&lane->lock);
	await_nccl(lane);
	add_to_nccl(lane, b);
	b->next = lane->buffers;
	lane->buffers = b;
	pthread_mutex_unlock(&lane->lock);
}

/* NULL: the memory is not the lane's. */
static ddp_nccl_buffer *take(ddp_nccl_lane *lane, const void *memory)
{
	ddp_nccl_buffer **at, *b;

	pthread_mutex_lock(&lane->lock);
	for (at = &lane->buffers; *at != NULL && (*at)->memory != memory;)
		at = &(*at)->next;
	b = *at;
	if (b != NULL) {
		*at = b->next;
		await_nccl(lane);
		remove_from_nccl(lane, b);
	}
	pthread_mutex_unlock(&lane->lock);
	return b;
}

ddp_status ddp_nccl_memory_alloc(ddp_nccl_lane *lane, size_t bytes, void **memory)
{
	ddp_nccl_buffer *b = calloc(1, sizeof(*b));

	if (b != NULL)
		b->bytes = bytes > 0 ? bytes : 1;
	/* Zeros come behind what the queue has, which may be for all ranks: no lock is held. */
	ddp_status status = b != NULL ? make(lane, b)
		: ddp_fail(DDP_ERR_NOMEM, "no memory for the record of an allocation");
	status = ddp_comm_agree(lane->comm, status, "get its device's memory");
	if (status != DDP_OK) {
		if (b != NULL && b->memory != NULL)
			(void)give_back(lane, b);
		free(b);
		return status;
	}
	add(lane, b);
	*memory = b->memory;
	return DDP_OK;
}

ddp_status ddp_nccl_memory_free(ddp_nccl_lane *lane, void *memory)
{
	ddp_nccl_buffer *b = take(lane, memory);

	if (b == NULL)
		return ddp_fail(DDP_ERR_INVALID, "%p is no memory of this communicator's ddp_mem_alloc_on()", memory);
	const ddp_status status = give_back(lane, b);
	free(b);
	return status;
}

void ddp_nccl_memory_adopt(ddp_nccl_lane *lane, ddp_nccl_lane *former, void *memory)
{
	ddp_nccl_buffer *b = take(former, memory);

	if (b != NULL)
		add(lane, b);
}

void ddp_nccl_memory_forget(ddp_nccl_lane *lane)
{
	for (ddp_nccl_buffer *b = lane->buffers; b != NULL; b = b->next)
		remove_from_nccl(lane, b);
}

void ddp_nccl_memory_close(ddp_nccl_lane *lane)
{
	while (lane->buffers != NULL) {
		ddp_nccl_buffer *b = lane->buffers;
		lane->buffers = b->next;
		free(b);
	}
}
