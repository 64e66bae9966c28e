#include "comm/core/completion.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/futex.h"

static _Thread_local bool in_callback;

/* It may be its owner's to free from here on. */
static void tell(ddp_request *request)
{
	atomic_store_explicit(&request->done, 1, memory_order_release);
	ddp_futex_wake_all(&request->done);
}

/* The thread that completes it may hold locks that a callback would wait for. The one
   that serves the communicator stays until it is counted no more. */
static void leave_to_thread(ddp_comm *comm, ddp_request *request)
{
	ddp_queue *queue = &comm->queue;

	pthread_mutex_lock(&queue->lock);
	request->next = NULL;
	if (queue->ended_tail != NULL)
		queue->ended_tail->next = request;
	else
		queue->ended = request;
	queue->ended_tail = request;
	atomic_store(&queue->to_call_back, true);
	pthread_mutex_unlock(&queue->lock);
}

static void note_end(ddp_request *request, ddp_status status)
{
	request->status = status;
	if (status != DDP_OK)
		request->message = strdup(ddp_last_error());
	request->end_ns = ddp_now_ns();
}

void ddp_request_complete(ddp_request *request, ddp_status status)
{
	note_end(request, status);
	if (request->operation.on_complete != NULL)
		leave_to_thread(request->comm, request);
	else
		tell(request);
}

static void call_back(ddp_request *request)
{
	if (request->status != DDP_OK)
		(void)ddp_fail(request->status, "%s", request->message != NULL ? request->message : "out of memory");
	in_callback = true;
	request->operation.on_complete(request->operation.user, request->status);
	in_callback = false;
	if (!request->detached) {
		tell(request);
		return;
	}
	free(request->message);
	free(request);
}

void ddp_request_finish(ddp_request *request, ddp_status status)
{
	note_end(request, status);
	if (request->operation.on_complete != NULL)
		call_back(request);
	else
		tell(request);
}

void ddp_requests_call_back(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	ddp_request *request = comm->queue.ended;
	comm->queue.ended = comm->queue.ended_tail = NULL;
	atomic_store(&comm->queue.to_call_back, false);
	pthread_mutex_unlock(&comm->queue.lock);
	while (request != NULL) {
		ddp_request *next = request->next;
		call_back(request);
		request = next;
	}
}

bool ddp_requests_to_call_back(const ddp_comm *comm)
{
	return atomic_load(&comm->queue.to_call_back);
}

ddp_status ddp_request_may_wait(const char *what)
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
