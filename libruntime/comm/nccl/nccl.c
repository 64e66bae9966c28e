/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "comm/nccl/handle.h"
#include "comm/nccl/lane.h"
#include "comm/on_device.h"
#include "comm/request.h"

/* NCCL may notice first that a rank has died, but not which: so long ours may tell. */
enum { GRACE_MS = 2000 };
enum { PAUSE_US = 100 };

/* ---- taking operations further ------------------------------------------------------------------ */

/* NCCL has told an error, which its call's sentence is about: the communicator breaks, at
   once or when nobody has had a better reason for a while. */
static void note_error(ddp_nccl_lane *lane, ddp_status status)
{
	if (status == DDP_OK || lane->error != DDP_OK)
		return;
	lane->error = status;
	lane->error_ns = ddp_now_ns();
	snprintf(lane->error_text, sizeof(lane->error_text), "%s", ddp_last_error());
}

static void tell_error(const ddp_nccl_lane *lane)
{
	const bool may_be_a_death = lane->error == DDP_ERR_PEER || lane->error == DDP_ERR_IO;

	if (lane->error == DDP_OK || ddp_comm_check(lane->comm) != DDP_OK)
		return;
	if (may_be_a_death && lane->comm->size > 1 &&
	    ddp_now_ns() < lane->error_ns + (uint64_t)GRACE_MS * 1000000)
		return;
	(void)ddp_comm_break(lane->comm, lane->error, lane->comm->rank, "%s", lane->error_text);
}

/* The first collective, if NCCL is ready for its next step. *more: so may be another one. */
static ddp_status step(ddp_nccl_lane *lane, bool *more)
{
	ddp_nccl_operation *o = lane->first;
	ddp_status status;

	*more = false;
	if (o->stage == DDP_NCCL_WAITS) {
		o->stage = DDP_NCCL_BEGUN;
		status = ddp_nccl_begin_collective(o);
		*more = status == DDP_OK;
		return status;
	}
	status = ddp_nccl_finish_collective(o);
	if (status != DDP_OK)
		return status;
	o->stage = DDP_NCCL_ENQUEUED;
	lane->first = o->next;
	if (lane->first == NULL)
		lane->last = &lane->first;
	*more = lane->first != NULL;
	return DDP_OK;
}

static void advance_within(void *argument)
{
	ddp_nccl_lane *lane = argument;
	bool ready = false, more = true;
	ddp_status status = DDP_OK;

	while (status == DDP_OK && more) {
		status = ddp_nccl_ready(lane->nccl, lane->handle, &ready);
		more = status == DDP_OK && ready && lane->first != NULL;
		if (more)
			status = step(lane, &more);
	}
	if (status == DDP_OK)
		status = ddp_nccl_messages_advance(lane);
	note_error(lane, status);
}

/* The lock is held. */
static void advance(ddp_nccl_lane *lane)
{
	if (!lane->aborted && lane->error == DDP_OK)
		note_error(lane, ddp_device_within(lane->device, advance_within, lane));
	tell_error(lane);
}

/* ---- operations ----------------------------------------------------------------------------------- */

static void free_operation(ddp_nccl_operation *o)
{
	ddp_nccl_message_free(o);
	ddp_nccl_free_op(o);
	(void)ddp_device_event_free(o->lane->device, o->begun);
	(void)ddp_device_event_free(o->lane->device, o->start);
	(void)ddp_device_event_free(o->lane->device, o->end);
	free(o->text);
	free(o);
}

static ddp_status check(const ddp_nccl_lane *lane, const ddp_operation *c)
{
	const ddp_sides sides = ddp_sides_of(lane->comm, c);
	const ddp_status status = ddp_sides_check(lane->comm, &sides, c->kind);

	return status == DDP_OK && ddp_kind_reduces(c->kind) ? ddp_nccl_check_reduction(lane, c) : status;
}

static ddp_status make_operation(ddp_nccl_lane *lane, const ddp_operation *c, ddp_nccl_operation **made)
{
	ddp_nccl_operation *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for an operation of NCCL's");
	o->lane = lane;
	o->c = *c;
	ddp_status status = ddp_device_event_create(lane->device, &o->begun);
	if (status == DDP_OK)
		status = ddp_device_event_create_timed(lane->device, &o->start);
	if (status == DDP_OK)
		status = ddp_device_event_create_timed(lane->device, &o->end);
	if (status == DDP_OK)
		status = ddp_device_event_record(lane->device, o->begun, c->stream);
	if (status == DDP_OK && ddp_kind_is_message(o->c.kind))
		status = ddp_nccl_message_begin(o);
	if (status != DDP_OK)
		free_operation(o);
	else
		*made = o;
	return status;
}

static ddp_status issue(void *self, ddp_request *request)
{
	ddp_nccl_lane *lane = self;
	ddp_nccl_operation *o = NULL;

	ddp_status status = check(lane, &request->operation);
	pthread_mutex_lock(&lane->lock);
	if (status == DDP_OK)
		status = make_operation(lane, &request->operation, &o);
	if (status == DDP_OK && !ddp_kind_is_message(o->c.kind)) {
		*lane->last = o;
		lane->last = &o->next;
	}
	if (status == DDP_OK) {
		request->work = o;
		advance(lane);
	}
	pthread_mutex_unlock(&lane->lock);
	return status;
}

/* Does nothing of it, or of others, touch its buffers any more? Under the lock. */
static ddp_status is_over(const ddp_nccl_lane *lane, const ddp_nccl_operation *o, bool *over)
{
	*over = o->stage == DDP_NCCL_FAILED;
	if (!*over && lane->aborted) {
		const ddp_status status = ddp_device_queue_query(lane->device, lane->queue, over);
		*over = *over && ddp_nccl_messages_rest((ddp_nccl_lane *)(uintptr_t)lane);
		return status;
	}
	if (o->stage == DDP_NCCL_ENQUEUED)
		return ddp_device_event_query(lane->device, o->end, over);
	return ddp_device_error(lane->device);
}

static void unlink_collective(ddp_nccl_lane *lane, const ddp_nccl_operation *o)
{
	ddp_nccl_operation **at = &lane->first;

	while (*at != NULL && *at != o)
		at = &(*at)->next;
	if (*at == NULL)
		return;
	*at = o->next;
	if (lane->last == &o->next)
		lane->last = at;
}

/* All at once: one may wait for what only another one ends. */
static void abort_nccl(ddp_nccl_lane *lane)
{
	ddp_nccl_messages_begin_abort(lane);
	if (lane->handle != NULL)
		ddp_nccl_abort(lane->nccl, lane->device, lane->handle);
	lane->handle = NULL;
	ddp_nccl_messages_await_abort(lane);
	lane->aborted = true;
}

/* A communicator that is being closed waits for messages that are matched, which may be held
   up by the queues of the program, of this rank or their other one: by the deadline. Under
   the lock. */
static void stop_messages(ddp_nccl_lane *lane)
{
	if (!ddp_nccl_messages_stop(lane) || lane->aborted)
		return;
	if (lane->stop_by_ns == 0)
		lane->stop_by_ns = ddp_ms_from_now(lane->comm->timeout_ms);
	if (ddp_comm_check(lane->comm) != DDP_OK) {
		abort_nccl(lane);
	} else if (ddp_now_ns() >= lane->stop_by_ns) {
		ddp_nccl_messages_begin_abort(lane);
		ddp_nccl_messages_await_abort(lane);
		lane->aborted = true;
	}
}

static ddp_status poll(void *self, ddp_request *request, bool *done)
{
	ddp_nccl_lane *lane = self;
	ddp_nccl_operation *o = request->work;

	pthread_mutex_lock(&lane->lock);
	advance(lane);
	if (lane->closing != DDP_NCCL_OPEN)
		stop_messages(lane);
	ddp_status status = is_over(lane, o, done);
	if (status == DDP_OK && *done && o->stage == DDP_NCCL_ENQUEUED && !lane->aborted)
		status = ddp_note_start(lane->device, o->start, o->end, request);
	if (status != DDP_OK) {
		*done = true;
		status = ddp_comm_break(lane->comm, status, lane->comm->rank, "%s", ddp_last_error());
	}
	if (*done) {
		if (status == DDP_OK && o->stage == DDP_NCCL_FAILED)
			status = ddp_fail(o->status, "%s", o->text != NULL ? o->text : "no memory to say why");
		if (status == DDP_OK && lane->aborted)
			status = ddp_fail(DDP_ERR_STATE, "%s did not end within %d ms when its communicator was closed: see what "
			                  "its queue waits for", ddp_kind_name(o->c.kind), lane->comm->timeout_ms);
		if (lane->aborted && ddp_comm_check(lane->comm) != DDP_OK)
			status = ddp_comm_check(lane->comm);
		unlink_collective(lane, o);
		char text[DDP_FAILURE_TEXT] = "";
		if (status != DDP_OK)
			snprintf(text, sizeof(text), "%s", ddp_last_error());
		free_operation(o);
		if (status != DDP_OK)
			(void)ddp_fail(status, "%s", text);
	}
	pthread_mutex_unlock(&lane->lock);
	return status;
}

static bool is_enqueued(void *self, ddp_request *request)
{
	ddp_nccl_lane *lane = self;
	const ddp_nccl_operation *o = request->work;

	pthread_mutex_lock(&lane->lock);
	advance(lane);
	const bool enqueued = o->stage >= DDP_NCCL_ENQUEUED || lane->aborted;
	pthread_mutex_unlock(&lane->lock);
	return enqueued;
}

static ddp_status wait_on(void *self, ddp_request *request, void *stream)
{
	const ddp_nccl_lane *lane = self;
	const ddp_nccl_operation *o = request->work;

	return o->stage == DDP_NCCL_ENQUEUED ? ddp_device_queue_wait(lane->device, stream, o->end) : DDP_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

/* If there is no failure, this ends messages that have no counterpart. */
static void abort_lane(void *self)
{
	ddp_nccl_lane *lane = self;

	pthread_mutex_lock(&lane->lock);
	stop_messages(lane);
	pthread_mutex_unlock(&lane->lock);
}

/* Nothing is open at this rank, but may be at others. */
static void await_stop(ddp_nccl_lane *lane)
{
	bool stopped = false;

	while (!stopped) {
		pthread_mutex_lock(&lane->lock);
		stopped = ddp_nccl_messages_stop(lane);
		pthread_mutex_unlock(&lane->lock);
		if (!stopped)
			usleep(PAUSE_US);
	}
}

/* Frees the rest of a lane, on which nothing runs. */
static void release(ddp_nccl_lane *lane)
{
	ddp_nccl_messages_close(lane);
	(void)ddp_device_queue_free(lane->device, lane->queue);
	ddp_nccl_scratch_free(lane);
	(void)ddp_device_free(lane->device, lane->word);
	ddp_nccl_memory_close(lane);
	pthread_mutex_destroy(&lane->lock);
	free(lane);
}

static void close_lane(void *self)
{
	ddp_nccl_lane *lane = self;

	await_stop(lane);
	const uint64_t deadline_ns = ddp_ms_from_now(lane->comm->timeout_ms);
	if (ddp_comm_check(lane->comm) != DDP_OK)
		abort_nccl(lane);
	if (lane->handle != NULL) {
		ddp_nccl_memory_forget(lane);
		const bool begun = ddp_nccl_begin_end(lane->nccl, lane->device, lane->handle, deadline_ns);
		ddp_nccl_end(lane->nccl, lane->device, lane->handle, begun, deadline_ns);
	}
	release(lane);
}

/* ---- the beginning -------------------------------------------------------------------------------------- */

static ddp_status make_parts(ddp_nccl_lane *lane)
{
	ddp_status status = ddp_device_queue_create(lane->device, DDP_DEVICE_HIGH, &lane->queue);

	if (status == DDP_OK)
		status = ddp_device_alloc(lane->device, DDP_DEVICE_ALIGNMENT, &lane->word);
	if (status == DDP_OK)
		status = ddp_device_fill(lane->device, lane->queue, lane->word, 0, DDP_DEVICE_ALIGNMENT);
	return status;
}

static ddp_status open_lane(ddp_comm *comm, void **self)
{
	ddp_nccl_lane *lane = calloc(1, sizeof(*lane));
	ddp_status status = DDP_OK;

	if (lane == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for a lane of NCCL's");
	} else {
		lane->comm = comm;
		lane->device = comm->roster->device;
		lane->last = &lane->first;
		pthread_mutex_init(&lane->lock, NULL);
		status = ddp_nccl_load(&lane->nccl);
		if (status == DDP_OK)
			status = make_parts(lane);
	}
	status = ddp_comm_agree(comm, status, "open its device's queue");
	if (status == DDP_OK)
		status = ddp_nccl_connect(lane->nccl, lane->device, comm, comm->roster->max_ctas, &lane->handle);
	if (status == DDP_OK)
		status = ddp_nccl_messages_open(lane);
	if (status == DDP_OK) {
		*self = lane;
	} else if (lane != NULL) {
		if (lane->handle != NULL)
			abort_nccl(lane);
		release(lane);
	}
	return status;
}

static ddp_status alloc(void *self, size_t bytes, void **memory)
{
	return ddp_nccl_memory_alloc(self, bytes, memory);
}

static ddp_status free_memory(void *self, void *memory)
{
	return ddp_nccl_memory_free(self, memory);
}

static void adopt(void *self, void *former, void *memory)
{
	ddp_nccl_memory_adopt(self, former, memory);
}

const ddp_backend ddp_backend_nccl = {
	.name = "nccl",
	.open = open_lane,
	.issue = issue,
	.poll = poll,
	.is_enqueued = is_enqueued,
	.wait_on = wait_on,
	.alloc = alloc,
	.free = free_memory,
	.adopt = adopt,
	.abort = abort_lane,
	.close = close_lane,
};

/* ---- whether it is the one --------------------------------------------------------------------------------- */

static ddp_status find(const ddp_comm *comm, const ddp_nccl **nccl)
{
	const ddp_device_info *info = ddp_device_describe(comm->roster->device);

	if (info->is_host_memory)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "NCCL is for GPUs, and %s is none", info->name);
	return ddp_nccl_load(nccl);
}

/* NCCL makes no communicator of ranks that have different ones. */
static ddp_status compare_versions(ddp_comm *comm, int version)
{
	int64_t extremes[2] = { version, -version };
	char newest[32], oldest[32];

	ddp_status status = ddp_comm_run(comm, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = extremes, .count = 2,
	                                                          .type = DDP_I64, .op = DDP_MAX });
	if (status == DDP_OK && extremes[0] != -extremes[1])
		status = ddp_fail(DDP_ERR_UNSUPPORTED, "ranks have loaded different NCCLs, from %s to %s: install one, or name it "
		                  "in DDP_NCCL", ddp_nccl_version_text((int)-extremes[1], oldest),
		                  ddp_nccl_version_text((int)extremes[0], newest));
	return status;
}

ddp_status ddp_nccl_choose(ddp_comm *comm, bool *taken, char *why, size_t bytes)
{
	const ddp_nccl *nccl = NULL;
	char version[32];

	ddp_status status = find(comm, &nccl);
	status = ddp_comm_agree(comm, status, "load NCCL");
	if (status == DDP_OK)
		status = compare_versions(comm, nccl->version);
	*taken = status == DDP_OK;
	if (status == DDP_ERR_UNSUPPORTED) {
		snprintf(why, bytes, "%s", ddp_last_error());
		return DDP_OK;
	}
	if (*taken)
		snprintf(why, bytes, "NCCL %s", ddp_nccl_version_text(nccl->version, version));
	return status;
}
