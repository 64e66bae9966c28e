/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/attend.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/wait.h"
#include "comm/core/comm.h"
#include "comm/core/silence.h"
#include "comm/net/net.h"
#include "comm/wait/message.h"

enum { DOZE_MIN_MS = 10, DOZE_MAX_MS = 80 };

struct ddp_attention {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	ddp_roster *roster;
	ddp_comm *comms;
	bool stopping;
	pthread_t thread;
};

/* Another thread does this with the communicators. */
typedef enum activity { IDLE, RUNS, RAN } activity;

/* The ranks of this node may have other communicators, which this process does not have. */
static void tell_silences(ddp_comm *comm)
{
	const int count = ddp_silence_count(comm->roster);

	if (comm->attended.silences == count)
		return;
	comm->attended.silences = count;
	ddp_silence_show(comm);
	ddp_node_wake_all(comm);
}

/* If an operation is under way, the thread that runs it looks after the communicator. */
static activity visit(ddp_comm *comm)
{
	ddp_silence_hear(comm);
	tell_silences(comm);
	(void)ddp_comm_check_silence(comm);
	if (pthread_mutex_trylock(&comm->run.lock) != 0)
		return RUNS;
	const bool ran = comm->run.sequence != comm->attended.sequence;
	comm->attended.sequence = comm->run.sequence;
	if (ddp_message_check(comm, DDP_NOBODY, false) != DDP_OK || ddp_comm_check(comm) != DDP_OK)
		ddp_net_shut_down(comm);
	pthread_mutex_unlock(&comm->run.lock);
	return ran ? RAN : IDLE;
}

/* A visit may last; the list may change meanwhile, but not lose who is visited. */
static activity visit_all(struct ddp_attention *a)
{
	activity most = IDLE;

	pthread_mutex_lock(&a->lock);
	for (ddp_comm *comm = a->comms; comm != NULL; comm = comm->attended.next) {
		comm->attended.visited = true;
		pthread_mutex_unlock(&a->lock);
		activity found = visit(comm);
		if (found == RUNS || most == IDLE)
			most = found;
		pthread_mutex_lock(&a->lock);
		comm->attended.visited = false;
		pthread_cond_broadcast(&a->changed);
	}
	pthread_mutex_unlock(&a->lock);
	return most;
}

static bool doze(struct ddp_attention *a, int ms)
{
	const uint64_t until_ns = ddp_ms_from_now(ms);

	pthread_mutex_lock(&a->lock);
	while (!a->stopping && ddp_condition_wait(&a->changed, &a->lock, until_ns))
		continue;
	bool stopping = a->stopping;
	pthread_mutex_unlock(&a->lock);
	return !stopping;
}

/* A thread that runs one operation after the other looks after the network itself. If each message woke this
   thread, it would take the lock and the core. So this thread only comes by from time to time. */
static void *attend(void *argument)
{
	struct ddp_attention *a = argument;
	ddp_doorbell *bell = &a->roster->doorbell;
	int doze_ms = DOZE_MIN_MS;

	for (bool going = true; going;) {
		/* From here on, other threads tell what they take off the pipe. */
		atomic_store(&bell->attended, true);
		activity found = visit_all(a);
		if (found != IDLE) {
			atomic_store(&bell->attended, false);
			/* It may wait for long. */
			doze_ms = found == RAN ? DOZE_MIN_MS : doze_ms < DOZE_MAX_MS ? 2 * doze_ms : DOZE_MAX_MS;
			going = doze(a, doze_ms);
			continue;
		}
		doze_ms = DOZE_MIN_MS;
		if (!ddp_net_progress_all(a->roster) && ddp_net_arm(a->roster))
			ddp_doorbell_attend(bell, ddp_net_fd(a->roster, NULL));
		pthread_mutex_lock(&a->lock);
		going = !a->stopping;
		pthread_mutex_unlock(&a->lock);
	}
	return NULL;
}

static ddp_status start(ddp_roster *roster)
{
	struct ddp_attention *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the thread that attends to communicators");
	a->roster = roster;
	pthread_mutex_init(&a->lock, NULL);
	ddp_condition_init(&a->changed);
	int error = ddp_thread_start(&a->thread, attend, a);
	if (error != 0) {
		pthread_cond_destroy(&a->changed);
		pthread_mutex_destroy(&a->lock);
		free(a);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot start the thread that attends to communicators "
		                      "(see ulimit -u)");
	}
	roster->attention = a;
	return DDP_OK;
}

ddp_status ddp_attend(ddp_comm *comm)
{
	ddp_status status = comm->roster->attention == NULL ? start(comm->roster) : DDP_OK;

	if (status != DDP_OK)
		return status;
	struct ddp_attention *a = comm->roster->attention;
	pthread_mutex_lock(&a->lock);
	comm->attended.next = a->comms;
	a->comms = comm;
	pthread_mutex_unlock(&a->lock);
	return DDP_OK;
}

static void stop(struct ddp_attention *a)
{
	pthread_mutex_lock(&a->lock);
	a->stopping = true;
	pthread_cond_broadcast(&a->changed);
	pthread_mutex_unlock(&a->lock);
	ddp_doorbell_notify_attention(&a->roster->doorbell);
	pthread_join(a->thread, NULL);
	atomic_store(&a->roster->doorbell.attended, false);
	a->roster->attention = NULL;
	pthread_cond_destroy(&a->changed);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

void ddp_attend_end(ddp_comm *comm)
{
	struct ddp_attention *a = comm->roster->attention;
	bool found = false;

	if (a == NULL)
		return;
	pthread_mutex_lock(&a->lock);
	while (comm->attended.visited)
		pthread_cond_wait(&a->changed, &a->lock);
	for (ddp_comm **link = &a->comms; *link != NULL; link = &(*link)->attended.next) {
		found = *link == comm;
		if (found) {
			*link = comm->attended.next;
			break;
		}
	}
	const bool last = found && a->comms == NULL;
	pthread_mutex_unlock(&a->lock);
	if (last)
		stop(a);
}
