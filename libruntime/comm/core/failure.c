/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/doorbell.h"
#include "comm/core/roster.h"
#include "comm/core/silence.h"
#include "watch/page.h"

/* Writes the failure into this rank's lines and publishes it, unless another
   was first. A rank that is killed or stopped on the way leaves nothing that
   is half written, and nobody waits for it. */
static void publish(ddp_comm *comm, ddp_status status, int culprit, const char *text)
{
	ddp_node_shared *shared = comm->node.shared;
	ddp_failure *own = &ddp_lines_own(comm)->failure;
	uint32_t nobody = 0;

	pthread_mutex_lock(&comm->failure.lock);
	if (!comm->failure.told) {
		comm->failure.told = true;
		own->status = status;
		own->culprit = culprit;
		snprintf(own->text, sizeof(own->text), "%s", text);
		atomic_compare_exchange_strong(&shared->failed_by, &nobody, (uint32_t)comm->node.self + 1);
	}
	pthread_mutex_unlock(&comm->failure.lock);
}

/* Returns the world rank that the failure is about, or DDP_NOBODY. */
static int culprit_of(const ddp_comm *comm)
{
	const int culprit = comm->failure.culprit;

	return culprit != DDP_NOBODY ? comm->topology.world_ranks[culprit] : DDP_NOBODY;
}

/* Takes over the failure that a rank of this node has published; false if one counts
   already. */
static bool take_over(ddp_comm *comm)
{
	ddp_node_shared *shared = comm->node.shared;
	uint32_t by = atomic_load(&shared->failed_by);

	/* Other processes write there. */
	const ddp_failure *failure = &shared->ranks[(by - 1) % (uint32_t)comm->node.size].failure;
	pthread_mutex_lock(&comm->failure.lock);
	bool first = atomic_load(&comm->failure.status) == DDP_OK;
	if (first) {
		memcpy(comm->failure.text, failure->text, sizeof(comm->failure.text));
		comm->failure.text[sizeof(comm->failure.text) - 1] = '\0';
		int culprit = failure->culprit;
		comm->failure.culprit = culprit >= 0 && culprit < comm->size ? culprit : DDP_NOBODY;
		const int rank = culprit_of(comm);
		ddp_page_error(comm->roster->page, (ddp_status)failure->status,
		               comm->is_whole ? DDP_ERROR_FINAL : DDP_ERROR_OPEN, rank,
		               rank != DDP_NOBODY ? comm->roster->peers[rank].host : NULL, comm->failure.text);
		atomic_store(&comm->failure.status, failure->status);
	}
	pthread_mutex_unlock(&comm->failure.lock);
	return first;
}

/* Has another one fail as this one has. */
static void fail_alike(const ddp_comm *comm, ddp_comm *other)
{
	publish(other, (ddp_status)atomic_load(&comm->failure.status), comm->failure.culprit, comm->failure.text);
	(void)take_over(other);
	ddp_node_wake_all(other);
}

static void adopt_shared_failure(ddp_comm *comm)
{
	if (!take_over(comm))
		return;
	/* If a silent node is the reason, other communicators are broken, too, once the program hears of it. */
	ddp_silence_hear(comm);
	ddp_comm *first = atomic_load(&comm->twin_of);
	ddp_twins *twins = first != NULL ? &first->twins : &comm->twins;
	pthread_mutex_lock(&twins->lock);
	for (int i = 0; i < DDP_TWINS; i++) {
		if (twins->list[i] != NULL && twins->list[i] != comm)
			fail_alike(comm, twins->list[i]);
	}
	pthread_mutex_unlock(&twins->lock);
}

ddp_status ddp_failure_share(ddp_comm *comm, ddp_comm *twin)
{
	int place = 1;

	pthread_mutex_lock(&comm->twins.lock);
	comm->twins.list[0] = comm;
	while (place < DDP_TWINS && comm->twins.list[place] != NULL)
		place++;
	if (place < DDP_TWINS) {
		comm->twins.list[place] = twin;
		atomic_store(&twin->twin_of, comm);
	}
	pthread_mutex_unlock(&comm->twins.lock);
	if (place == DDP_TWINS)
		return ddp_fail(DDP_ERR_INTERNAL, "a communicator cannot have %d twins", DDP_TWINS);
	/* Either may have failed meanwhile. */
	if (ddp_comm_check(twin) != DDP_OK)
		fail_alike(twin, comm);
	else if (ddp_comm_check(comm) != DDP_OK)
		fail_alike(comm, twin);
	return ddp_comm_check(twin);
}

void ddp_failure_unshare(ddp_comm *twin)
{
	ddp_twins *twins = &atomic_load(&twin->twin_of)->twins;

	pthread_mutex_lock(&twins->lock);
	for (int i = 1; i < DDP_TWINS; i++) {
		if (twins->list[i] == twin)
			twins->list[i] = NULL;
	}
	atomic_store(&twin->twin_of, NULL);
	pthread_mutex_unlock(&twins->lock);
}

/* A lost rank may have taken other ranks along, also rank 0. So the first rank of each node that gets the error
   tells it, because that rank lives. */
static bool claims_to_tell(ddp_comm *comm)
{
	ddp_comm *first = atomic_load(&comm->twin_of);
	ddp_node *node = first != NULL ? &first->node : &comm->node;
	const uint32_t own = (uint32_t)node->self + 1;
	uint32_t by = 0;

	return atomic_compare_exchange_strong(&node->shared->told_by, &by, own) || by == own;
}

/* Whether another rank tells the user. */
static bool is_told(ddp_comm *comm, ddp_status status)
{
	const int culprit = comm->failure.culprit;

	if (status == DDP_ERR_PEER || status == DDP_ERR_TIMEOUT)
		return culprit == comm->rank || !claims_to_tell(comm);
	/* The culprit has an error of its own. */
	return comm->rank != (culprit == 0 && comm->size > 1 ? 1 : 0);
}

ddp_status ddp_comm_check(ddp_comm *comm)
{
	if (atomic_load_explicit(&comm->failure.status, memory_order_acquire) == DDP_OK) {
		if (atomic_load_explicit(&comm->node.shared->failed_by, memory_order_acquire) == 0)
			return DDP_OK;
		adopt_shared_failure(comm);
	}
	const ddp_status status = (ddp_status)atomic_load(&comm->failure.status);
	ddp_error_about(ddp_fail(status, "%s", comm->failure.text), culprit_of(comm));
	return ddp_error_told(status, is_told(comm, status));
}

void ddp_failure_returned(ddp_comm *comm)
{
	ddp_comm *first = atomic_load(&comm->twin_of);

	if (atomic_load(&comm->failure.status) == DDP_OK)
		return;
	atomic_store(&comm->failure.returned, true);
	if (first != NULL)
		atomic_store(&first->failure.returned, true);
}

static ddp_failure_debt *debt_of(const ddp_comm *comm)
{
	const ddp_comm *first = atomic_load(&comm->twin_of);

	return first != NULL ? first->failure.debt : comm->failure.debt;
}

void ddp_failure_owed(ddp_comm *comm)
{
	atomic_store(&debt_of(comm)->owed, true);
}

bool ddp_failure_debt_make(ddp_comm *comm)
{
	comm->failure.debt = calloc(1, sizeof(*comm->failure.debt));
	if (comm->failure.debt != NULL)
		atomic_store(&comm->failure.debt->users, 1);
	return comm->failure.debt != NULL;
}

ddp_failure_debt *ddp_failure_debt_share(ddp_comm *comm)
{
	ddp_failure_debt *debt = debt_of(comm);

	atomic_fetch_add(&debt->users, 1);
	return debt;
}

void ddp_failure_debt_drop(ddp_failure_debt *debt)
{
	if (debt != NULL && atomic_fetch_sub(&debt->users, 1) == 1)
		free(debt);
}

ddp_status ddp_failure_left(ddp_comm *comm)
{
	/* The program may know a group's failure from the world's. */
	const bool left = atomic_load(&comm->failure.debt->owed) || (comm->is_world && !atomic_load(&comm->failure.returned));

	return left ? ddp_comm_check(comm) : DDP_OK;
}

ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit,
                          const char *format, ...)
{
	char text[DDP_FAILURE_TEXT], whole[DDP_FAILURE_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* The other ranks say the same sentence: it must tell them whose it is. */
	const char *own = ddp_rank_text(comm, comm->rank);
	bool tells = culprit != comm->rank || strstr(text, own) != NULL;
	int length = snprintf(whole, sizeof(whole), "%s%s%s", tells ? "" : own, tells ? "" : ": ", text);
	if (length >= (int)sizeof(whole))
		memcpy(whole + sizeof(whole) - 4, "...", 4);
	publish(comm, status, culprit, whole);
	adopt_shared_failure(comm);
	ddp_node_wake_all(comm);
	return ddp_comm_check(comm);
}

ddp_status ddp_comm_break_gone(ddp_comm *comm, int rank, const char *how, const char *operation)
{
	return ddp_comm_break(comm, DDP_ERR_PEER, rank, "%s %s (pid %lld), in %s", ddp_rank_text(comm, rank), how,
	                      (long long)comm->roster->peers[comm->topology.world_ranks[rank]].pid, operation);
}

ddp_status ddp_comm_check_silence(ddp_comm *comm)
{
	char text[DDP_SILENCE_TEXT];

	if (ddp_silence_count(comm->roster) == 0 || atomic_load(&comm->failure.status) != DDP_OK)
		return ddp_comm_check(comm);
	const int culprit = ddp_silence_find(comm, text);
	if (culprit == DDP_NOBODY)
		return ddp_comm_check(comm);
	ddp_silence_show(comm);
	return ddp_comm_break(comm, DDP_ERR_PEER, culprit, "%s", text);
}
