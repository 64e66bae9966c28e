/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/roster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/core/comm.h"
#include "device/device.h"
#include "watch/watch.h"

const char *ddp_rank_text(const ddp_comm *comm, int rank)
{
	static _Thread_local char texts[4][DDP_HOST_MAX + 32];
	static _Thread_local unsigned int next;
	char *text = texts[next++ % 4];

	/* Users and the plugin count ranks of the world. A group's own numbers mean nothing to them. */
	snprintf(text, sizeof(texts[0]), "rank %d on %s", comm->topology.world_ranks[rank],
	         comm->roster->peers[comm->topology.world_ranks[rank]].host);
	return text;
}

uint64_t ddp_roster_new_id(ddp_roster *roster)
{
	return (uint64_t)roster->rank << 32 | (atomic_fetch_add(&roster->opened, 1) + 1);
}

/* To ask the kernel for the process's number takes as long as a part of a small operation. */
static atomic_uint forks;

static void count_fork(void)
{
	atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
	(void)pthread_atfork(NULL, NULL, count_fork);
}

unsigned int ddp_roster_forks(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

ddp_status ddp_roster_check_owner(const ddp_roster *roster, const char *what)
{
	if (roster->size == 1 || roster->forks == ddp_roster_forks())
		return DDP_OK;
	return ddp_fail(DDP_ERR_STATE, "%s: this process is a child that rank %d on %s forked, and no rank: call libddp in "
	                "the process that called ddp_init() only", what, roster->rank, roster->peers[roster->rank].host);
}

void ddp_roster_release(ddp_roster *roster)
{
	if (atomic_fetch_sub(&roster->users, 1) > 1)
		return;
	ddp_pool_destroy(&roster->pool);
	ddp_allocations_free(&roster->memory);
	ddp_doorbell_close(&roster->doorbell);
	for (int r = 0; r < roster->size && roster->peers != NULL; r++) {
		if (roster->peers[r].pidfd >= 0)
			close(roster->peers[r].pidfd);
		if (roster->peers[r].bell >= 0)
			close(roster->peers[r].bell);
	}
	free(roster->peers);
	if (ddp_device_close(roster->device) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	ddp_watch_drop(roster->watch);
	explicit_bzero(&roster->key, sizeof(roster->key));
	pthread_mutex_destroy(&roster->memory.lock);
	free(roster);
}

ddp_status ddp_roster_make(const ddp_job *job, const ddp_key *key, ddp_roster **created)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	ddp_roster *roster = calloc(1, sizeof(*roster));

	pthread_once(&once, watch_forks);
	if (roster == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for what %d ranks share", job->world_size);
	pthread_mutex_init(&roster->memory.lock, NULL);
	ddp_pool_init(&roster->pool);
	ddp_doorbell_init(&roster->doorbell);
	atomic_store(&roster->users, 1);
	roster->rank = job->rank;
	roster->forks = atomic_load(&forks);
	if (key != NULL)
		roster->key = *key;
	roster->size = job->world_size;
	roster->peers = calloc((size_t)roster->size, sizeof(*roster->peers));
	if (roster->peers == NULL) {
		ddp_roster_release(roster);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", job->world_size);
	}
	for (int r = 0; r < roster->size; r++)
		roster->peers[r].pidfd = roster->peers[r].bell = -1;
	*created = roster;
	return DDP_OK;
}

/* ---- nodes ------------------------------------------------------------------------------- */

ddp_status ddp_topology_make(ddp_topology *t, const int *world_ranks, int size)
{
	const size_t bytes = (size_t)size * sizeof(int);

	*t = (ddp_topology){ .world_ranks = malloc(bytes), .node_of = malloc(bytes),
	                     .local_of = malloc(bytes), .node_ranks = malloc(bytes),
	                     .node_begin = malloc(bytes + sizeof(int)) };
	if (t->world_ranks == NULL || t->node_of == NULL || t->local_of == NULL ||
	    t->node_ranks == NULL || t->node_begin == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the places of %d ranks", size);
	memcpy(t->world_ranks, world_ranks, bytes);
	return DDP_OK;
}

ddp_status ddp_topology_place(ddp_topology *t, int size, const ddp_roster *roster)
{
	/* Numbers of nodes that have come, from 1, by their names. */
	int *number = calloc((size_t)roster->size, sizeof(*number));

	if (number == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the nodes of %d ranks", roster->size);
	for (int r = 0; r < size; r++) {
		int *known = &number[roster->peers[t->world_ranks[r]].node];
		if (*known == 0)
			*known = ++t->nodes;
		t->node_of[r] = *known - 1;
	}
	free(number);
	/* How many each has, then where it begins; its ranks in their order. */
	memset(t->node_begin, 0, ((size_t)t->nodes + 1) * sizeof(int));
	for (int r = 0; r < size; r++)
		t->local_of[r] = t->node_begin[t->node_of[r] + 1]++;
	t->channels = size;
	for (int node = 0; node < t->nodes; node++) {
		if (t->node_begin[node + 1] < t->channels)
			t->channels = t->node_begin[node + 1];
		t->node_begin[node + 1] += t->node_begin[node];
	}
	for (int r = 0; r < size; r++)
		t->node_ranks[t->node_begin[t->node_of[r]] + t->local_of[r]] = r;
	return DDP_OK;
}

void ddp_topology_free(ddp_topology *t)
{
	free(t->world_ranks);
	free(t->node_of);
	free(t->local_of);
	free(t->node_ranks);
	free(t->node_begin);
}
