#include "comm/follow.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "comm/core/comm.h"

/* Between two rounds of questions. */
enum { PAUSE_MIN_US = 20, PAUSE_MAX_US = 500 };

struct ddp_follower {
	ddp_comm *comm;
	const ddp_lane *lane;
	pthread_t thread;
	pthread_mutex_t lock;   /* of the list, and of the backend's calls */
	pthread_cond_t changed;
	ddp_request *head, *tail;
	bool stopping, aborted;
};

static bool is_p2p(const ddp_request *request)
{
	return request->operation.kind == DDP_SEND || request->operation.kind == DDP_RECV;
}

/* Takes the first request that is complete off the list. Sends and receives keep nothing
   back; collectives are complete one after the other. */
static ddp_request *take_complete(struct ddp_follower *f, ddp_status *status)
{
	ddp_request *before = NULL;
	bool done = false;

	for (ddp_request *r = f->head; r != NULL; before = r, r = r->next) {
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
		if (!is_p2p(r))
			break;
	}
	return NULL;
}

static bool has_collective(const struct ddp_follower *f)
{
	const ddp_request *r = f->head;

	while (r != NULL && is_p2p(r))
		r = r->next;
	return r != NULL;
}

/* Nobody will ever come to end what is open. */
static void abort_if_useless(struct ddp_follower *f)
{
	if (f->aborted || f->lane->backend->abort == NULL)
		return;
	if (ddp_comm_check(f->comm) == DDP_OK && !(f->stopping && !has_collective(f)))
		return;
	f->lane->backend->abort(f->lane->self);
	f->aborted = true;
}

static void *follow(void *argument)
{
	struct ddp_follower *f = argument;
	unsigned int pause_us = PAUSE_MIN_US;
	ddp_status status;

	pthread_mutex_lock(&f->lock);
	while (f->head != NULL || !f->stopping) {
		if (f->head == NULL) {
			pthread_cond_wait(&f->changed, &f->lock);
			continue;
		}
		ddp_request *complete = take_complete(f, &status);
		if (complete == NULL)
			abort_if_useless(f);
		pthread_mutex_unlock(&f->lock);
		if (complete != NULL) {
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

ddp_status ddp_follower_open(ddp_comm *comm, const ddp_lane *lane, struct ddp_follower **follower)
{
	struct ddp_follower *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	f->comm = comm;
	f->lane = lane;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	int error = ddp_thread_start(&f->thread, follow, f);
	if (error != 0) {
		free(f);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot start the thread that follows operations");
	}
	*follower = f;
	return DDP_OK;
}

ddp_status ddp_follower_issue(struct ddp_follower *f, ddp_request *request)
{
	pthread_mutex_lock(&f->lock);
	ddp_status status = f->stopping
		? ddp_fail(DDP_ERR_STATE, "%s was issued to a communicator that is being closed",
		           ddp_kind_name(request->operation.kind))
		: f->lane->backend->issue(f->lane->self, request);
	if (status == DDP_OK) {
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
	if (request->lane != NULL) /* else it is complete */
		status = f->lane->backend->wait_on(f->lane->self, request, stream);
	pthread_mutex_unlock(&f->lock);
	return status;
}

void ddp_follower_close(struct ddp_follower *f)
{
	if (f == NULL)
		return;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
}
