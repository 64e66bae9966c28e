/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/group/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/outlier.h"
#include "comm/core/comm.h"
#include "comm/core/liveness.h"
#include "comm/group/build.h"
#include "comm/hier/tune.h"
#include "comm/shm/node.h"

enum { IDENTITY_MAGIC = 0x63706467, ALGORITHM_TEXT = 80 /* no list is as long */ };

/* The first blob: who a rank is, and a segment to try. */
typedef struct identity {
	uint32_t magic, unused;
	uint64_t pid_start;
	ddp_segment_offer segment; /* its control segment */
	char texts[];              /* host, DDP_ALGORITHM, each with its terminator */
} identity;

typedef struct world_exchange {
	ddp_wireup *wireup;
	uint64_t deadline_ns;
} world_exchange;

static ddp_status exchange(const world_exchange *e, const void *blob, size_t bytes, void **blobs,
                           size_t *sizes)
{
	return e->wireup->ops->exchange(e->wireup, blob, bytes, e->deadline_ns, blobs, sizes);
}

/* Exchanges, and drops what the other ranks sent. */
static ddp_status exchange_and_drop(const world_exchange *e, const void *blob, size_t bytes)
{
	const int size = e->wireup->job->world_size;
	void **blobs = calloc((size_t)size, sizeof(*blobs));
	size_t *sizes = calloc((size_t)size, sizeof(*sizes));
	ddp_status status = blobs != NULL && sizes != NULL
		? exchange(e, blob, bytes, blobs, sizes)
		: ddp_fail(DDP_ERR_NOMEM, "no memory for what %d ranks tell each other", size);

	if (blobs != NULL)
		ddp_blobs_free(blobs, size);
	free(blobs);
	free(sizes);
	return status;
}

static ddp_status exchange_by_wireup(void *argument, const void *blob, size_t bytes, void **blobs,
                                     size_t *sizes)
{
	if (blobs == NULL)
		return exchange_and_drop(argument, blob, bytes);
	return exchange(argument, blob, bytes, blobs, sizes);
}

/* One that has failed does not come: it has told so with its offer, or ends the
   wire-up. */
static ddp_status confirm_by_wireup(void *argument, ddp_status mine)
{
	static const char here = 1;

	return mine == DDP_OK ? exchange_and_drop(argument, &here, sizeof(here)) : mine;
}

/* The lowest rank whose segment this one can open; *fd is the descriptor. */
static int find_leader(int rank, void **blobs, int own_fd, int *fd)
{
	const identity *mine = blobs[rank];

	for (int r = 0; r < rank; r++) {
		const identity *other = blobs[r];
		if (mine->segment.locality != other->segment.locality)
			continue;
		*fd = ddp_segment_take_offer(&other->segment);
		if (*fd >= 0)
			return r;
		ddp_log(DDP_LOG_WARN, "rank %d cannot open the memory of rank %d on the same machine (%s): "
		        "they will use the network", rank, r, ddp_reason(errno));
	}
	*fd = own_fd;
	return rank;
}

static const char *host_of(void *const *blobs, int rank)
{
	return ((const identity *)blobs[rank])->texts;
}

static const char *algorithm_of(void *const *blobs, int rank)
{
	const char *host = host_of(blobs, rank);

	return host + strlen(host) + 1;
}

/* Has a blob of this size the numbers, and two texts? */
static bool is_identity(const identity *blob, size_t bytes)
{
	if (bytes <= sizeof(*blob) || blob->magic != IDENTITY_MAGIC)
		return false;
	const size_t texts = bytes - sizeof(*blob), host = strnlen(blob->texts, texts);
	return host + 1 < texts && host < DDP_HOST_MAX &&
	       strnlen(blob->texts + host + 1, texts - host - 1) == texts - host - 2;
}

static ddp_status read_identities(ddp_roster *roster, void **blobs, const size_t *sizes)
{
	for (int r = 0; r < roster->size; r++) {
		const identity *other = blobs[r];
		if (!is_identity(other, sizes[r]))
			return ddp_fail(DDP_ERR_JOB, "rank %d runs another version of libddp: install one on all nodes", r);
		ddp_peer *peer = &roster->peers[r];
		peer->pid = other->segment.pid;
		peer->pid_start = other->pid_start;
		snprintf(peer->host, sizeof(peer->host), "%s", host_of(blobs, r));
	}
	return DDP_OK;
}

static bool same_algorithm(const void *blobs, int a, int b)
{
	return strcmp(algorithm_of(blobs, a), algorithm_of(blobs, b)) == 0;
}

/* Each rank reads the algorithms of all ranks, so that all ranks come to the same result. */
static ddp_status read_algorithms(ddp_roster *roster, void **blobs)
{
	char odd[DDP_OUTLIER_TEXT], usual[DDP_OUTLIER_TEXT];
	ddp_wanted_list wanted = { .count = 0 };

	for (int r = 0; r < roster->size; r++) {
		if (ddp_hier_want(algorithm_of(blobs, r), &wanted) != DDP_OK)
			return ddp_fail_context(DDP_ERR_INVALID, "rank %d on %s", r, roster->peers[r].host);
	}
	const ddp_outlier o = ddp_outlier_find(roster->size, same_algorithm, blobs);
	if (o.odd >= 0) {
		ddp_outlier_names(&o, odd, usual);
		return ddp_fail(DDP_ERR_MISMATCH, "DDP_ALGORITHM is \"%s\" on %s and \"%s\" on %s: give all ranks the same "
		                "environment", algorithm_of(blobs, o.odd), odd, algorithm_of(blobs, o.usual), usual);
	}
	roster->wanted = wanted;
	return DDP_OK;
}

/* A leader that has a leader of its own is not one: its followers, who can
   reach it but not that one, stay together under it. */
static ddp_status read_leaders(ddp_roster *roster, void **blobs, const size_t *sizes)
{
	for (int r = 0; r < roster->size; r++) {
		int32_t leader;
		if (sizes[r] != sizeof(leader))
			return ddp_fail(DDP_ERR_JOB, "rank %d runs another version of libddp: install one on all nodes", r);
		memcpy(&leader, blobs[r], sizeof(leader));
		if (leader < 0 || leader > r)
			return ddp_fail(DDP_ERR_JOB, "rank %d names rank %d as its node's first", r, leader);
		roster->peers[r].node = leader;
	}
	return DDP_OK;
}

/* One that has ended already may be through with its work: that matters only
   to who waits for it. */
static void watch_peers(ddp_roster *roster, int self)
{
	for (int r = 0; r < roster->size; r++) {
		if (r != self && roster->peers[r].node == roster->peers[self].node)
			ddp_peer_watch(&roster->peers[r]);
	}
}

static ddp_status exchange_identities(const world_exchange *e, const ddp_segment_offer *segment, void **blobs,
                                      size_t *sizes)
{
	const char *algorithm = getenv("DDP_ALGORITHM");
	char blob[sizeof(identity) + DDP_HOST_MAX + ALGORITHM_TEXT];
	const identity mine = { .magic = IDENTITY_MAGIC, .pid_start = ddp_process_start(getpid()), .segment = *segment };

	memcpy(blob, &mine, sizeof(mine));
	const int texts = snprintf(blob + sizeof(mine), sizeof(blob) - sizeof(mine), "%s%c%.*s", e->wireup->job->hostname,
	                           '\0', ALGORITHM_TEXT - 1, algorithm != NULL ? algorithm : "");
	return exchange(e, blob, sizeof(mine) + (size_t)texts + 1, blobs, sizes);
}

/* Exchanges identities and leaders; *fd becomes the node's control segment. */
static ddp_status find_nodes(ddp_roster *roster, const world_exchange *e, const ddp_segment_offer *mine, int *fd)
{
	const int rank = roster->rank;
	void **blobs = calloc((size_t)roster->size, sizeof(*blobs));
	size_t *sizes = calloc((size_t)roster->size, sizeof(*sizes));
	ddp_status status = DDP_ERR_NOMEM;

	if (blobs == NULL || sizes == NULL) {
		ddp_fail(status, "no memory for what %d ranks tell each other", roster->size);
		goto out;
	}
	if ((status = exchange_identities(e, mine, blobs, sizes)) != DDP_OK)
		goto out;
	if ((status = read_identities(roster, blobs, sizes)) != DDP_OK ||
	    (status = read_algorithms(roster, blobs)) != DDP_OK)
		goto out;
	int32_t leader = find_leader(rank, blobs, mine->fd, fd);
	ddp_blobs_free(blobs, roster->size);
	if ((status = exchange(e, &leader, sizeof(leader), blobs, sizes)) != DDP_OK)
		goto out;
	if ((status = read_leaders(roster, blobs, sizes)) == DDP_OK)
		watch_peers(roster, rank);
out:
	if (blobs != NULL)
		ddp_blobs_free(blobs, roster->size);
	free(blobs);
	free(sizes);
	return status;
}

/* All ranks of the job, once their nodes are known. */
static ddp_status build_world(ddp_roster *roster, world_exchange *exchanger, int control_fd, int timeout_ms,
                              const ddp_comm *former, ddp_comm **comm)
{
	const ddp_opening opening = {
		.argument = exchanger, .exchange = exchange_by_wireup, .confirm = confirm_by_wireup,
		.confirms_parts = true, .control_fd = control_fd, .link = former != NULL ? &former->hier.link : NULL,
	};
	int *ranks = malloc((size_t)roster->size * sizeof(int));

	if (ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a communicator of %d ranks", roster->size);
	for (int r = 0; r < roster->size; r++)
		ranks[r] = r;
	ddp_status status = ddp_comm_build(roster, ranks, roster->size, roster->rank, timeout_ms, &opening,
	                                   comm);
	free(ranks);
	if (status == DDP_OK)
		(*comm)->is_world = (*comm)->is_whole = true;
	return status;
}

ddp_status ddp_world_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms, const ddp_comm *former,
                          ddp_comm **comm)
{
	world_exchange exchanger = { wireup, ddp_ms_from_now(timeout_ms) };
	ddp_segment_offer mine = { .fd = -1 };
	ddp_roster *roster = NULL;
	int fd = -1;
	ddp_status status = ddp_roster_make(job, wireup->key, &roster);

	if (status != DDP_OK)
		return status;
	roster->silence_ms = wireup->silence_ms;
	if (ddp_segment_make_offer(DDP_SEGMENT_START_BYTES, &mine) < 0)
		status = ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared memory segment%s",
		                        ddp_segment_remedy(errno));
	else
		status = find_nodes(roster, &exchanger, &mine, &fd);
	if (status == DDP_OK)
		status = build_world(roster, &exchanger, fd, timeout_ms, former, comm);
	if (fd >= 0 && fd != mine.fd)
		close(fd);
	if (mine.fd >= 0)
		close(mine.fd);
	ddp_roster_release(roster);
	return status;
}
