/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/request.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/check.h"
#include "comm/core/doorbell.h"
#include "comm/execute.h"
#include "comm/p2p/p2p.h"

static void pop(ddp_comm *comm)
{
	comm->queue.head = comm->queue.head->next;
	if (comm->queue.head == NULL)
		comm->queue.tail = NULL;
}

/* Takes the first request of the queue, unless the thread that waits for it runs it. */
static ddp_request *pop_unclaimed(ddp_comm *comm)
{
	ddp_request *request = comm->queue.head;

	if (request == NULL || atomic_exchange(&request->claimed_to_run, true))
		return NULL;
	pop(comm);
	return request;
}

/* Sends and receives, as long as there is nothing else to run. */
static void look_after_p2p(ddp_comm *comm)
{
	if (atomic_load(&comm->queue.callers) > 0)
		sched_yield();
	pthread_mutex_lock(&comm->run.lock);
	/* From here on, the thread gives way to requests that are to call back. */
	atomic_store(&comm->queue.busy, false);
	comm->run.in_thread = true;
	if (ddp_execute_p2p(comm, NULL) != DDP_OK)
		ddp_p2p_fail(comm);
	comm->run.in_thread = false;
	pthread_mutex_unlock(&comm->run.lock);
}

/* The next to run. NULL: there is nothing to do for the thread, which must not touch the
   communicator any more. */
static ddp_request *take(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;
	ddp_request *request;

	pthread_mutex_lock(&queue->lock);
	queue->running = false;
	while (true) {
		if (ddp_requests_to_call_back(comm)) {
			pthread_mutex_unlock(&queue->lock);
			ddp_requests_call_back(comm);
			pthread_mutex_lock(&queue->lock);
			continue;
		}
		if ((request = pop_unclaimed(comm)) != NULL || atomic_load(&queue->stopping) || !ddp_p2p_pending(comm))
			break;
		atomic_store(&queue->busy, true);
		pthread_mutex_unlock(&queue->lock);
		look_after_p2p(comm);
		pthread_mutex_lock(&queue->lock);
	}
	atomic_store(&queue->busy, request != NULL);
	queue->running = request != NULL;
	if (request == NULL) {
		queue->served = false;
		ddp_requests_give_back_thread(comm);
		pthread_cond_broadcast(&queue->unserved);
	}
	pthread_mutex_unlock(&queue->lock);
	return request;
}

static void serve(void *argument)
{
	ddp_comm *comm = argument;
	ddp_request *request;

	while ((request = take(comm)) != NULL) {
		request->start_ns = ddp_now_ns();
		pthread_mutex_lock(&comm->run.lock);
		comm->run.in_thread = true;
		ddp_status status = ddp_execute(comm, &request->operation);
		comm->run.in_thread = false;
		if (request->last)
			atomic_store(&comm->queue.stopping, true);
		atomic_store(&comm->queue.busy, false);
		pthread_mutex_unlock(&comm->run.lock);
		atomic_fetch_sub(&comm->queue.count, 1);
		ddp_request_complete(request, status);
	}
}

/* Has the reserved thread serve the communicator; queue.lock is held. */
static void engage_reserved(ddp_comm *comm)
{
	ddp_queue *queue = &comm->queue;

	if (queue->served)
		return;
	queue->served = true;
	queue->task = (ddp_task){ .run = serve, .argument = comm };
	ddp_pool_submit(&comm->roster->pool, &queue->task);
}

/* Has a thread serve the communicator; queue.lock is held. The thread is reserved until nothing is left to do. */
static ddp_status engage(ddp_comm *comm)
{
	if (!comm->queue.reserved) {
		const ddp_status status = ddp_pool_reserve(&comm->roster->pool);
		if (status != DDP_OK)
			return status;
		comm->queue.reserved = true;
	}
	engage_reserved(comm);
	return DDP_OK;
}

/* The thread has something else to do than to wait for messages of pairs, if it does.
   queue.lock is held. */
static void notify(ddp_comm *comm)
{
	if (ddp_p2p_pending(comm))
		ddp_node_wake_rank(comm, comm->node.self);
}

void ddp_comm_stop(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	comm->queue.closing = true;
	atomic_store(&comm->queue.stopping, true);
	notify(comm);
	while (comm->queue.served || comm->queue.calling || comm->queue.head != NULL)
		pthread_cond_wait(&comm->queue.unserved, &comm->queue.lock);
	pthread_mutex_unlock(&comm->queue.lock);
	pthread_mutex_lock(&comm->run.lock);
	ddp_p2p_abandon(comm);
	pthread_mutex_unlock(&comm->run.lock);
	ddp_requests_call_back(comm);
}

static void append(ddp_comm *comm, ddp_request *request)
{
	atomic_fetch_add(&comm->queue.count, 1);
	atomic_store(&request->claimed_to_run, false);
	if (comm->queue.tail != NULL)
		comm->queue.tail->next = request;
	else
		comm->queue.head = request;
	comm->queue.tail = request;
}

/* queue.lock is held. */
static ddp_status add(ddp_comm *comm, ddp_request *request)
{
	if (comm->queue.closing && !request->last)
		return ddp_fail(DDP_ERR_STATE, "%s was issued to a communicator that is being closed",
		                ddp_kind_name(request->operation.kind));
	ddp_status status = engage(comm);
	if (status != DDP_OK)
		return status;
	if (ddp_kind_is_message(request->operation.kind))
		ddp_p2p_add(comm, request);
	else
		append(comm, request);
	notify(comm);
	return DDP_OK;
}

static ddp_request *new_request(ddp_comm *comm, const ddp_operation *complete)
{
	ddp_request *request = calloc(1, sizeof(*request));

	if (request != NULL) {
		request->comm = comm;
		request->operation = *complete;
		request->forks = comm->roster->forks;
		atomic_init(&request->claimed_to_run, true);
	}
	return request;
}

ddp_status ddp_request_make(ddp_comm *comm, const ddp_operation *operation, bool let_go,
                            ddp_request **request)
{
	ddp_operation c;

	if (let_go && operation->on_complete == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_issue(): request and on_complete are NULL: nobody would learn of the end");
	ddp_status status = ddp_collective_complete(comm, operation, &c);
	if (status != DDP_OK)
		return status;
	*request = new_request(comm, &c);
	if (*request == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a request");
	if (let_go)
		atomic_store(&(*request)->state, DDP_LET_GO);
	return DDP_OK;
}

ddp_status ddp_request_enqueue(ddp_comm *comm, ddp_request *request)
{
	request->comm = comm;
	pthread_mutex_lock(&comm->queue.lock);
	ddp_status status = add(comm, request);
	pthread_mutex_unlock(&comm->queue.lock);
	return status;
}

ddp_status ddp_comm_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request)
{
	ddp_request *made;

	ddp_status status = ddp_request_make(comm, operation, request == NULL, &made);
	if (status != DDP_OK)
		return status;
	if ((status = ddp_request_enqueue(comm, made)) != DDP_OK)
		free(made);
	else if (request != NULL)
		*request = made;
	return status;
}

ddp_status ddp_comm_issue_own(ddp_comm *comm, const ddp_operation *message, ddp_request **request)
{
	ddp_request *made = new_request(comm, message);

	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a request");
	const ddp_status status = ddp_request_enqueue(comm, made);
	if (status == DDP_OK)
		*request = made;
	else
		free(made);
	return status;
}

/* Locks run.lock; the thread gives it up if it only looks after pairs. */
static void take_over(ddp_comm *comm)
{
	if (pthread_mutex_trylock(&comm->run.lock) == 0)
		return;
	atomic_fetch_add(&comm->queue.callers, 1);
	ddp_node_wake_rank(comm, comm->node.self);
	pthread_mutex_lock(&comm->run.lock);
	atomic_fetch_sub(&comm->queue.callers, 1);
}

/* Another operation runs, or wants to. When it ends, a thread of the pool looks after messages. If no thread can
   be started, the messages' senders and receivers have to try again. */
static uint64_t leave_to_thread(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	ddp_status status = comm->queue.closing ? DDP_OK : engage(comm);
	notify(comm);
	pthread_mutex_unlock(&comm->queue.lock);
	return status == DDP_OK ? 1000000000 : 1000000;
}

/* A blocking send or recv moves its message itself while nothing else runs. */
static ddp_status run_p2p(ddp_comm *comm, const ddp_operation *c)
{
	ddp_request request = { .comm = comm, .operation = *c, .awaited = true };

	pthread_mutex_lock(&comm->queue.lock);
	ddp_p2p_add(comm, &request);
	pthread_mutex_unlock(&comm->queue.lock);
	while (!ddp_request_done(&request)) {
		if (pthread_mutex_trylock(&comm->run.lock) == 0) {
			(void)ddp_execute_p2p(comm, &request);
			pthread_mutex_unlock(&comm->run.lock);
		}
		if (!ddp_request_done(&request))
			ddp_futex_wait(&request.state, DDP_UNDER_WAY, leave_to_thread(comm));
	}
	if (request.status != DDP_OK)
		ddp_fail(request.status, "%s", request.message != NULL ? request.message : "no memory to say why");
	ddp_request_clear(&request);
	return request.status;
}

/* `last`: nothing runs after it. */
static ddp_status run_collective(ddp_comm *comm, const ddp_operation *c, bool last)
{
	ddp_request *request;
	ddp_status status;

	/* If nothing is queued before it, the operation needs no other thread. */
	if (atomic_load_explicit(&comm->queue.count, memory_order_acquire) == 0) {
		take_over(comm);
		status = ddp_execute(comm, c);
		if (status != DDP_OK)
			ddp_failure_returned(comm);
		if (last)
			atomic_store(&comm->queue.stopping, true);
		pthread_mutex_unlock(&comm->run.lock);
		return status;
	}
	if ((request = new_request(comm, c)) == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a request");
	request->last = last;
	if ((status = ddp_request_enqueue(comm, request)) == DDP_OK)
		return ddp_wait(request);
	free(request);
	return status;
}

ddp_status ddp_comm_run(ddp_comm *comm, const ddp_operation *operation)
{
	ddp_operation c;
	ddp_status status;

	if (operation->on_complete != NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_run(): on_complete is for ddp_issue()");
	if ((status = ddp_request_may_wait("ddp_run()")) != DDP_OK)
		return status;
	if ((status = ddp_collective_complete(comm, operation, &c)) != DDP_OK)
		return status;
	if (ddp_kind_is_message(c.kind))
		return run_p2p(comm, &c);
	return run_collective(comm, &c, false);
}

static ddp_status meet(ddp_comm *comm, bool last)
{
	const bool is_twin = atomic_load(&comm->twin_of) != NULL;
	const ddp_operation barrier = { .kind = DDP_BARRIER, .tag = comm->is_world ? DDP_TAG_FINALIZE
	                                                           : is_twin ? 0 : DDP_TAG_FREE };

	return run_collective(comm, &barrier, last);
}

ddp_status ddp_comm_meet(ddp_comm *comm)
{
	return meet(comm, false);
}

ddp_status ddp_comm_last_barrier(ddp_comm *comm)
{
	pthread_mutex_lock(&comm->queue.lock);
	comm->queue.closing = true;
	pthread_mutex_unlock(&comm->queue.lock);
	return meet(comm, true);
}

/* The request may become complete meanwhile, and its communicator freed. In a forked child no thread does either. */
static ddp_status may_wait(const ddp_request *request, const char *what)
{
	const ddp_status status = ddp_request_may_wait(what);

	if (status != DDP_OK || request->forks == ddp_roster_forks())
		return status;
	return ddp_roster_check_owner(request->comm->roster, what);
}

/* Ends a completed request. */
static ddp_status end(ddp_request *request)
{
	ddp_status status = request->status;

	if (status != DDP_OK)
		ddp_error_told(ddp_fail(status, "%s", request->message != NULL ? request->message
		                        : "no memory to say why"), request->told);
	ddp_request_release(request);
	return status;
}

void ddp_request_free(ddp_request *request)
{
	uint32_t state = DDP_UNDER_WAY;

	/* The thread that completes the request frees it, unless the request is complete already. */
	if (request != NULL && !atomic_compare_exchange_strong(&request->state, &state, DDP_LET_GO))
		ddp_request_forget(request);
}

ddp_status ddp_test(ddp_request *request, bool *done)
{
	if (request == NULL || done == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_test(): a NULL argument");
	if (!ddp_request_done(request)) {
		*done = false;
		return DDP_OK;
	}
	*done = true;
	return end(request);
}

/* Is the request the next one, and is the one before it complete? queue.lock is held. */
static bool is_next(const ddp_comm *comm, const ddp_request *request)
{
	const ddp_queue *queue = &comm->queue;

	return queue->head == request && !queue->running && !queue->calling && queue->ended == NULL;
}

/* Has a thread go on with what is left; queue.lock is held. */
static void pass_on(ddp_comm *comm)
{
	if (comm->queue.head != NULL || ddp_p2p_pending(comm) || ddp_requests_to_call_back(comm)) {
		engage_reserved(comm);
		notify(comm);
	} else {
		ddp_requests_give_back_thread(comm);
	}
	pthread_cond_broadcast(&comm->queue.unserved);
}

/* The thread that waited for the first request has run it. A callback may take long, so later requests run beside it.
   */
static void leave_queue(ddp_comm *comm, ddp_request *request, ddp_status status)
{
	const bool calls_back = request->operation.on_complete != NULL;

	ddp_request_note_end(request, status);
	pthread_mutex_lock(&comm->queue.lock);
	pop(comm);
	atomic_fetch_sub(&comm->queue.count, 1);
	const bool tells = ddp_request_take_turn(request);
	pass_on(comm);
	pthread_mutex_unlock(&comm->queue.lock);
	if (tells)
		ddp_request_tell(request);
	if (!tells || !calls_back)
		return;
	pthread_mutex_lock(&comm->queue.lock);
	ddp_request_end_turn(comm);
	pass_on(comm);
	pthread_mutex_unlock(&comm->queue.lock);
}

/* Runs the request in the thread that waits for it, if it is the next one and no thread has begun with it. To wake a
   thread takes longer than a small operation. The request stays in the queue while it runs, so that no later one
   overtakes it. The communicator stays, too: whoever closes it waits for an empty queue, and for the last callback. */
static void run_here(ddp_request *request)
{
	/* If this thread claims the request, the request is not complete, so its communicator exists. */
	if (atomic_exchange(&request->claimed_to_run, true))
		return;
	ddp_comm *comm = request->comm;
	pthread_mutex_lock(&comm->queue.lock);
	const bool next = is_next(comm, request);
	if (!next) {
		atomic_store(&request->claimed_to_run, false);
		/* The thread that serves the queue may have found the request claimed, and left. */
		engage_reserved(comm);
	}
	pthread_mutex_unlock(&comm->queue.lock);
	if (!next)
		return;
	request->start_ns = ddp_now_ns();
	take_over(comm);
	const ddp_status status = ddp_execute(comm, &request->operation);
	if (request->last)
		atomic_store(&comm->queue.stopping, true);
	pthread_mutex_unlock(&comm->run.lock);
	leave_queue(comm, request, status);
}

ddp_status ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns)
{
	if (request == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_wait(): request is NULL");
	if (!ddp_request_done(request) && may_wait(request, "ddp_wait()") != DDP_OK)
		return DDP_ERR_STATE;
	/* The communicator may go as soon as the request is complete. */
	atomic_store(&request->awaited, true);
	while (!ddp_request_done(request)) {
		run_here(request);
		if (!ddp_request_done(request))
			ddp_futex_wait(&request->state, DDP_UNDER_WAY, 1000000000);
	}
	if (request->status == DDP_OK && start_ns != NULL)
		*start_ns = request->start_ns;
	if (request->status == DDP_OK && end_ns != NULL)
		*end_ns = request->end_ns;
	return end(request);
}

ddp_status ddp_wait(ddp_request *request)
{
	return ddp_wait_timed(request, NULL, NULL);
}

ddp_status ddp_wait_for(ddp_request *request, int timeout_ms)
{
	if (request == NULL || timeout_ms < 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_wait_for(): %s",
		                request == NULL ? "request is NULL" : "a negative timeout");
	if (!ddp_request_done(request) && may_wait(request, "ddp_wait_for()") != DDP_OK)
		return DDP_ERR_STATE;
	uint64_t now = ddp_now_ns(), end_ns = now + (uint64_t)timeout_ms * 1000000;
	atomic_store(&request->awaited, true);
	for (; !ddp_request_done(request) && now < end_ns; now = ddp_now_ns())
		ddp_futex_wait(&request->state, DDP_UNDER_WAY, end_ns - now);
	atomic_store(&request->awaited, false);
	if (!ddp_request_done(request))
		return ddp_fail(DDP_ERR_TIMEOUT, "the operation is not complete after %d ms", timeout_ms);
	return end(request);
}
