/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/completion.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/doorbell.h"

atomic_int ddp_callbacks_running;

static _Thread_local bool in_callback;

void ddp_request_clear(ddp_request *request)
{
	free(request->message);
	ddp_failure_debt_drop(request->debt);
}

void ddp_request_release(ddp_request *request)
{
	ddp_request_clear(request);
	free(request);
}

void ddp_request_forget(ddp_request *request)
{
	if (request->debt != NULL)
		atomic_store(&request->debt->owed, true);
	ddp_request_release(request);
}

/* It may be its owner's to free from here on. */
static void tell(ddp_request *request)
{
	if (atomic_exchange(&request->state, DDP_COMPLETE) == DDP_LET_GO)
		ddp_request_forget(request);
	else
		ddp_futex_wake_all(&request->state);
}

void ddp_request_note_end(ddp_request *request, ddp_status status)
{
	request->status = status;
	if (status != DDP_OK)
		request->message = strdup(ddp_last_error());
	request->told = status != DDP_OK && ddp_last_error_is_told();
	if (status != DDP_OK && request->operation.on_complete == NULL)
		request->debt = ddp_failure_debt_share(request->comm);
	if (status != DDP_OK)
		ddp_failure_returned(request->comm);
	request->end_ns = ddp_now_ns();
	ddp_comm_record_end(request->comm, request->recorded, status, request->end_ns);
}

static void call_back(ddp_request *request)
{
	if (request->status != DDP_OK)
		(void)ddp_error_told(ddp_fail(request->status, "%s", request->message != NULL ? request->message
		                              : "no memory to say why"), request->told);
	atomic_fetch_add_explicit(&ddp_callbacks_running, 1, memory_order_relaxed);
	in_callback = true;
	request->operation.on_complete(request->operation.user, request->status);
	in_callback = false;
	atomic_fetch_sub_explicit(&ddp_callbacks_running, 1, memory_order_relaxed);
	tell(request);
}

void ddp_request_tell(ddp_request *request)
{
	if (request->operation.on_complete != NULL)
		call_back(request);
	else
		tell(request);
}

void ddp_request_finish(ddp_request *request, ddp_status status)
{
	ddp_request_note_end(request, status);
	ddp_request_tell(request);
}

void ddp_requests_give_back_thread(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;

	if (!queue->reserved || queue->served || queue->calling || queue->head != NULL || queue->ended != NULL)
		return;
	queue->reserved = false;
	ddp_pool_give_back(&comm->roster->pool);
}

/* queue.lock is held, but not while it calls back. */
static void call_those_ended(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;

	ddp_request *request = queue->ended;
	queue->ended = queue->ended_tail = NULL;
	atomic_store(&queue->to_call_back, false);
	pthread_mutex_unlock(&queue->lock);
	while (request != NULL) {
		ddp_request *next = request->next;
		call_back(request);
		request = next;
	}
	pthread_mutex_lock(&queue->lock);
}

/* One thread calls back at a time. The communicator may be gone when this returns. */
static void call_all(ddp_comm *comm, bool by_caller)
{
	ddp_queue *queue = &comm->queue;

	pthread_mutex_lock(&queue->lock);
	while (queue->ended != NULL)
		call_those_ended(comm);
	queue->calling = false;
	if (by_caller)
		ddp_pool_give_back(&comm->roster->pool);
	ddp_requests_give_back_thread(comm);
	pthread_cond_broadcast(&queue->unserved);
	pthread_mutex_unlock(&queue->lock);
}

static void run_caller(void *argument)
{
	call_all(argument, true);
}

/* If another thread calls back, that thread comes to all that have ended. */
void ddp_requests_call_back(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	const bool turn = !comm->queue.calling;
	if (turn)
		comm->queue.calling = true;
	pthread_mutex_unlock(&comm->queue.lock);
	if (turn)
		call_all(comm, false);
}

/* Has a thread of its own call back, as the one that serves may wait for what a callback
   does. Without one (none can be started) it comes to it later. queue.lock is held. */
static void engage_caller(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;

	queue->calling = ddp_pool_reserve(&comm->roster->pool) == DDP_OK;
	if (!queue->calling)
		return;
	queue->caller = (ddp_task){ .run = run_caller, .argument = comm };
	ddp_pool_submit(&comm->roster->pool, &queue->caller);
}

/* Has what has ended called back. queue.lock is held. */
static void have_called_back(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;

	if (!queue->calling && atomic_load(&queue->busy))
		engage_caller(comm);
	atomic_store(&queue->to_call_back, !queue->calling);
}

/* queue.lock is held. */
static void leave(ddp_comm *comm, ddp_request *request)
{
	ddp_queue *queue = &comm->queue;

	request->next = NULL;
	if (queue->ended_tail != NULL)
		queue->ended_tail->next = request;
	else
		queue->ended = request;
	queue->ended_tail = request;
	have_called_back(comm);
}

/* The thread that completes it may hold locks that a callback would wait for. The one
   that serves the communicator stays until it is counted no more. */
static void leave_to_thread(ddp_comm *comm, ddp_request *request)
{
	pthread_mutex_lock(&comm->queue.lock);
	leave(comm, request);
	pthread_mutex_unlock(&comm->queue.lock);
}

void ddp_request_complete(ddp_request *request, ddp_status status)
{
	ddp_request_note_end(request, status);
	if (request->operation.on_complete != NULL)
		leave_to_thread(request->comm, request);
	else
		tell(request);
}

bool ddp_request_take_turn(ddp_request *request)
{
	ddp_queue *queue = &request->comm->queue;

	if (request->operation.on_complete == NULL)
		return true;
	if (queue->calling || queue->ended != NULL) {
		leave(request->comm, request);
		return false;
	}
	queue->calling = true;
	return true;
}

void ddp_request_end_turn(ddp_comm *comm)
{
	comm->queue.calling = false;
	if (comm->queue.ended != NULL)
		have_called_back(comm);
}

bool ddp_requests_to_call_back(const ddp_comm *comm)
{
	return atomic_load(&comm->queue.to_call_back);
}

ddp_status ddp_request_look_for_callback(const char *what)
{
	if (in_callback)
		return ddp_fail(DDP_ERR_STATE, "%s waits, which a callback must not: use ddp_issue() there", what);
	return DDP_OK;
}

bool ddp_requests_awaited(ddp_comm *comm)
{
	bool awaited = false;

	for (const ddp_request *r = comm->p2p.requests; r != NULL && !awaited; r = r->next)
		awaited = atomic_load(&r->awaited);
	pthread_mutex_lock(&comm->queue.lock);
	for (const ddp_request *r = comm->queue.head; r != NULL && !awaited; r = r->next)
		awaited = atomic_load(&r->awaited);
	pthread_mutex_unlock(&comm->queue.lock);
	return awaited;
}
