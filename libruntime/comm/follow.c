/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/follow.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "comm/agree.h"
#include "comm/core/comm.h"
#include "comm/core/fingerprint.h"
#include "comm/core/liveness.h"
#include "comm/host.h"
#include "comm/request.h"

/* The thread pauses for so long between two rounds of questions. */
enum { PAUSE_MIN_US = 20, PAUSE_MAX_US = 500 };
/* It looks so often after the node's ranks, and what a rank did before it died gets so long to end. */
enum { LOOK_NS = 10000000, LAST_WORK_NS = 100000000 };

struct ddp_follower {
	ddp_comm *comm;
	const ddp_lane *lane;
	pthread_t thread;
	pthread_mutex_t lock;   /* of the list, and of the backend's calls */
	pthread_cond_t changed;
	ddp_request *head, *tail;
	uint64_t collectives; /* issued so far */
	bool stopping, aborted;
	bool stopped;   /* there is no thread any more */
	uint64_t looked_ns, died_ns; /* the last look; when a rank was seen dead, 0: none since a collective has ended */
	ddp_comm *twin; /* for a backend that does not compare */
};

static bool is_p2p(const ddp_request *request)
{
	return ddp_kind_is_message(request->operation.kind);
}

static ddp_request *first_collective(const struct ddp_follower *f)
{
	ddp_request *r = f->head;

	while (r != NULL && is_p2p(r))
		r = r->next;
	return r;
}

/* The operations that the ranks have issued, which are gathered beside the operation. */
typedef struct ddp_comparison {
	ddp_request *request;
	ddp_issued own, issued[]; /* [size] */
} comparison;

static ddp_status begin_comparison(struct ddp_follower *f, ddp_request *r)
{
	const size_t bytes = (size_t)f->comm->size * sizeof(ddp_issued);
	comparison *made = malloc(sizeof(*made) + bytes);

	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compare the operations of %d ranks",
		                f->comm->size);
	made->own = (ddp_issued){ f->comm->rank, ddp_fingerprint_of(&r->operation, f->comm->size) };
	ddp_status status = ddp_comm_issue(
		f->twin, &(ddp_operation){ .kind = DDP_ALL_GATHER, .send = &made->own, .recv = made->issued,
		                            .count = sizeof(made->own), .type = DDP_U8 }, &made->request);
	if (status == DDP_OK)
		r->comparison = made;
	else
		free(made);
	return status;
}

/* Breaks the communicator if a rank has issued another operation than most. */
static void compare(struct ddp_follower *f, const comparison *c)
{
	ddp_comm *comm = f->comm;
	bool same = true;

	for (int r = 0; r < comm->size && same; r++)
		same = ddp_fingerprint_same(&c->issued[0].operation, &c->issued[r].operation);
	if (!same)
		(void)ddp_mismatch_break(comm, 0, c->issued, comm->size);
}

/* Ends the comparisons of operations that all ranks have issued meanwhile. The others stay as they are. */
static void end_comparisons(struct ddp_follower *f)
{
	bool done = true;

	for (ddp_request *r = f->head; r != NULL && done; r = r->next) {
		if (r->comparison == NULL)
			continue;
		const ddp_status status = ddp_test(r->comparison->request, &done);
		/* An error is one of the communicator, too. */
		if (done && status == DDP_OK)
			compare(f, r->comparison);
		if (done) {
			free(r->comparison);
			r->comparison = NULL;
		}
	}
}

/* Takes the first request that is complete off the list. Collectives are complete one after
   the other; they and sends and receives keep each other back in nothing. */
static ddp_request *take_complete(struct ddp_follower *f, ddp_status *status)
{
	ddp_request *before = NULL;
	bool first = true;

	for (ddp_request *r = f->head; r != NULL; before = r, r = r->next) {
		bool done = false;
		if ((is_p2p(r) || first) && r->comparison == NULL)
			*status = f->lane->backend->poll(f->lane->self, r, &done);
		if (done) {
			if (before == NULL)
				f->head = r->next;
			else
				before->next = r->next;
			if (f->tail == r)
				f->tail = before;
			r->lane = NULL;
			return r;
		}
		first = first && is_p2p(r);
	}
	return NULL;
}

/* The first collective is late if it does not end though all ranks have issued it. */
static void check_deadline(struct ddp_follower *f)
{
	ddp_request *r = first_collective(f);
	char text[128];
	int timeout_ms;

	if (f->twin == NULL || r == NULL || r->comparison != NULL || f->aborted)
		return;
	timeout_ms = r->operation.timeout_ms > 0 ? r->operation.timeout_ms : f->comm->timeout_ms;
	if (r->deadline_ns == 0)
		r->deadline_ns = ddp_ms_from_now(timeout_ms);
	if (ddp_now_ns() < r->deadline_ns)
		return;
	ddp_collective_describe(&r->operation, text, sizeof(text));
	(void)ddp_comm_break(f->comm, DDP_ERR_TIMEOUT, DDP_NOBODY,
	                     "%s: %s was issued by all ranks, but did not end within %d ms: see what its queue waits for",
	                     ddp_rank_text(f->comm, f->comm->rank), text, timeout_ms);
}

/* The backend may wait for ever for a rank of this node that has died. Those of other nodes are the network's to
   notice. */
static void check_node(struct ddp_follower *f)
{
	ddp_comm *comm = f->comm;
	const ddp_request *first = first_collective(f);
	const uint64_t now = ddp_now_ns();
	char text[128];

	if (f->aborted || now - f->looked_ns < LOOK_NS)
		return;
	f->looked_ns = now;
	for (int i = 0; i < comm->node.size; i++) {
		const int rank = comm->node.ranks[i];
		const ddp_peer *peer = &comm->roster->peers[comm->topology.world_ranks[rank]];
		const ddp_node_rank *lines = &comm->node.shared->ranks[i];
		if (i == comm->node.self || ddp_peer_alive(peer) || atomic_load(&lines->left) != 0 ||
		    (first == NULL && atomic_load(&lines->ending) != 0))
			continue;
		if (f->died_ns == 0)
			f->died_ns = now;
		if (now - f->died_ns < LAST_WORK_NS)
			return;
		ddp_collective_describe(&(first != NULL ? first : f->head)->operation, text, sizeof(text));
		(void)ddp_comm_break_gone(comm, rank, "died", text);
		return;
	}
}

/* Nobody will ever come to end what is open. */
static void abort_if_useless(struct ddp_follower *f)
{
	if (f->aborted || f->lane->backend->abort == NULL)
		return;
	if (ddp_comm_check(f->comm) == DDP_OK && !(f->stopping && first_collective(f) == NULL))
		return;
	f->lane->backend->abort(f->lane->self);
	f->aborted = true;
}

static void *follow(void *argument)
{
	struct ddp_follower *f = argument;
	unsigned int pause_us = PAUSE_MIN_US;
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&f->lock);
	while (f->head != NULL || !f->stopping) {
		if (f->head == NULL) {
			pthread_cond_wait(&f->changed, &f->lock);
			continue;
		}
		end_comparisons(f);
		ddp_request *complete = take_complete(f, &status);
		check_deadline(f);
		if (complete == NULL) {
			check_node(f);
			abort_if_useless(f);
		} else if (!is_p2p(complete)) {
			f->died_ns = 0;
		}
		pthread_mutex_unlock(&f->lock);
		if (complete != NULL) {
			/* Why it was aborted is told better than that it was. */
			if (status != DDP_OK && ddp_comm_check(f->comm) != DDP_OK)
				status = ddp_comm_check(f->comm);
			ddp_request_finish(complete, status);
			pause_us = PAUSE_MIN_US;
		} else {
			usleep(pause_us);
			pause_us = pause_us < PAUSE_MAX_US ? 2 * pause_us : PAUSE_MAX_US;
		}
		pthread_mutex_lock(&f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

static void release(struct ddp_follower *f)
{
	if (f->twin != NULL)
		ddp_host_close(f->twin);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static struct ddp_follower *make(ddp_comm *comm, const ddp_lane *lane)
{
	struct ddp_follower *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	f->comm = comm;
	f->lane = lane;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	return f;
}

void ddp_follower_stop(struct ddp_follower *f)
{
	if (f == NULL || f->stopped)
		return;
	f->stopped = true;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
}

/* Starts the thread on all ranks, or on none. */
static ddp_status start(struct ddp_follower *f)
{
	int error = ddp_thread_start(&f->thread, follow, f);
	ddp_status status = error == 0 ? DDP_OK
		: ddp_fail_errno(DDP_ERR_NOMEM, error, "%s cannot start the thread that follows operations (see ulimit -u)",
		                 ddp_rank_text(f->comm, f->comm->rank));

	status = ddp_comm_agree(f->comm, status, "start the thread that follows operations");
	if (status != DDP_OK && error == 0)
		ddp_follower_stop(f);
	return status;
}

ddp_status ddp_follower_open(ddp_comm *comm, const ddp_lane *lane, struct ddp_follower **follower)
{
	struct ddp_follower *f = make(comm, lane);
	ddp_status status = f != NULL ? DDP_OK
		: ddp_fail(DDP_ERR_NOMEM, "no memory to follow the operations of %d ranks", comm->size);

	status = ddp_comm_agree(comm, status, "get the memory to follow operations");
	if (status == DDP_OK && !lane->backend->compares)
		status = ddp_twin_open(comm, &f->twin);
	if (status == DDP_OK)
		status = start(f);
	if (status == DDP_OK)
		*follower = f;
	else if (f != NULL)
		release(f);
	return status;
}

ddp_status ddp_follower_issue(struct ddp_follower *f, ddp_request *request)
{
	ddp_status begun = DDP_OK;

	request->start_ns = ddp_now_ns();
	pthread_mutex_lock(&f->lock);
	ddp_status status = f->stopping
		? ddp_fail(DDP_ERR_STATE, "%s was issued to a communicator that is being closed",
		           ddp_kind_name(request->operation.kind))
		: f->lane->backend->issue(f->lane->self, request);
	if (status == DDP_OK && f->twin != NULL && !is_p2p(request))
		begun = begin_comparison(f, request);
	/* It has begun: it is followed, and ends with the communicator. */
	if (begun != DDP_OK)
		(void)ddp_comm_break(f->comm, begun, f->comm->rank, "%s", ddp_last_error());
	if (status == DDP_OK) {
		request->recorded = ddp_comm_record(f->comm, &request->operation, is_p2p(request) ? 0 : ++f->collectives,
		                                    request->start_ns);
		request->lane = f->lane;
		request->next = NULL;
		if (f->tail != NULL)
			f->tail->next = request;
		else
			f->head = request;
		f->tail = request;
		pthread_cond_signal(&f->changed);
	}
	pthread_mutex_unlock(&f->lock);
	return status;
}

ddp_status ddp_follower_wait_on(struct ddp_follower *f, ddp_request *request, void *stream)
{
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&f->lock);
	while (request->lane != NULL && f->lane->backend->is_enqueued != NULL &&
	       !f->lane->backend->is_enqueued(f->lane->self, request)) {
		pthread_mutex_unlock(&f->lock);
		usleep(PAUSE_MIN_US);
		pthread_mutex_lock(&f->lock);
	}
	if (request->lane != NULL) /* else it is complete */
		status = f->lane->backend->wait_on(f->lane->self, request, stream);
	pthread_mutex_unlock(&f->lock);
	return status;
}

void ddp_follower_close(struct ddp_follower *f)
{
	if (f == NULL)
		return;
	ddp_follower_stop(f);
	release(f);
}
