/* Opening: finds the ranks of each node and builds what they share. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/wait.h"
#include "comm/await.h"
#include "comm/inter.h"
#include "comm/liveness.h"
#include "comm/locality.h"
#include "comm/memory.h"
#include "comm/net.h"
#include "comm/node.h"
#include "comm/open.h"
#include "comm/pairs.h"

enum { IDENTITY_MAGIC = 0x63706464 };

/* The first blob: who a rank is, and a segment to try. */
typedef struct identity {
	uint32_t magic;
	int32_t fd;            /* of its control segment */
	int64_t pid;
	uint64_t pid_start;
	unsigned char nonce[16]; /* at the segment's start */
	char key[DDP_LOCALITY_TEXT];
	char host[DDP_HOST_MAX];
} identity;

static ddp_status exchange(const ddp_opening *o, const void *blob, size_t bytes, void **blobs,
                           size_t *sizes)
{
	return o->exchange(o->exchanger, blob, bytes, blobs, sizes);
}

/* ---- the world's nodes ---------------------------------------------------------- */

typedef struct world_exchange {
	ddp_wireup *wireup;
	uint64_t deadline_ns;
} world_exchange;

static ddp_status exchange_by_wireup(void *exchanger, const void *blob, size_t bytes, void **blobs,
                                     size_t *sizes)
{
	world_exchange *e = exchanger;

	return e->wireup->ops->exchange(e->wireup, blob, bytes, e->deadline_ns, blobs, sizes);
}

static int create_control(unsigned char nonce[16])
{
	int fd = ddp_segment_create(DDP_SEGMENT_START_BYTES);

	if (fd < 0)
		return -1;
	if (getrandom(nonce, 16, 0) != 16 || pwrite(fd, nonce, 16, 0) != 16) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* Opens another rank's control segment and checks that it is the right one. */
static int try_open(const identity *other)
{
	unsigned char nonce[16];
	int fd = ddp_segment_open(other->pid, other->fd);

	if (fd < 0)
		return -1;
	if (pread(fd, nonce, sizeof(nonce), 0) == sizeof(nonce) &&
	    memcmp(nonce, other->nonce, sizeof(nonce)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* The lowest rank whose segment this one can open; *fd is the descriptor. */
static int find_leader(ddp_comm *comm, void **blobs, int own_fd, int *fd)
{
	const identity *mine = blobs[comm->rank];

	for (int r = 0; r < comm->rank; r++) {
		const identity *other = blobs[r];
		if (memcmp(mine->key, other->key, sizeof(mine->key)) != 0)
			continue;
		*fd = try_open(other);
		if (*fd >= 0)
			return r;
		ddp_log(DDP_LOG_WARN, "rank %d cannot open the memory of rank %d on the same machine (%s): "
		        "they will use the network", comm->rank, r, strerror(errno));
	}
	*fd = own_fd;
	return comm->rank;
}

static ddp_status read_identities(ddp_roster *roster, void **blobs, const size_t *sizes)
{
	for (int r = 0; r < roster->size; r++) {
		const identity *other = blobs[r];
		if (sizes[r] != sizeof(*other) || other->magic != IDENTITY_MAGIC)
			return ddp_fail(DDP_ERR_JOB, "rank %d runs another version of libddp", r);
		ddp_peer *peer = &roster->peers[r];
		peer->pid = other->pid;
		peer->pid_start = other->pid_start;
		snprintf(peer->host, sizeof(peer->host), "%.*s", DDP_HOST_MAX - 1, other->host);
	}
	return DDP_OK;
}

/* A leader that has a leader of its own is not one: its followers, who can
   reach it but not that one, stay together under it. */
static ddp_status read_leaders(ddp_roster *roster, void **blobs, const size_t *sizes)
{
	for (int r = 0; r < roster->size; r++) {
		int32_t leader;
		if (sizes[r] != sizeof(leader))
			return ddp_fail(DDP_ERR_JOB, "rank %d runs another version of libddp", r);
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

/* Exchanges identities and leaders; *fd becomes the node's control segment. */
static ddp_status find_nodes(ddp_comm *comm, const ddp_opening *o, int own_fd, identity *mine,
                             int *fd)
{
	ddp_roster *roster = comm->roster;
	void **blobs = calloc((size_t)comm->size, sizeof(*blobs));
	size_t *sizes = calloc((size_t)comm->size, sizeof(*sizes));
	ddp_status status = DDP_ERR_NOMEM;

	if (blobs == NULL || sizes == NULL) {
		ddp_fail(status, "out of memory");
		goto out;
	}
	if ((status = exchange(o, mine, sizeof(*mine), blobs, sizes)) != DDP_OK)
		goto out;
	if ((status = read_identities(roster, blobs, sizes)) != DDP_OK)
		goto out;
	int32_t leader = find_leader(comm, blobs, own_fd, fd);
	ddp_blobs_free(blobs, comm->size);
	if ((status = exchange(o, &leader, sizeof(leader), blobs, sizes)) != DDP_OK)
		goto out;
	if ((status = read_leaders(roster, blobs, sizes)) == DDP_OK)
		watch_peers(roster, comm->rank);
out:
	if (blobs != NULL)
		ddp_blobs_free(blobs, comm->size);
	free(blobs);
	free(sizes);
	return status;
}

/* ---- a communicator's parts ------------------------------------------------------ */

ddp_status ddp_comm_create(ddp_roster *roster, const int *world_ranks, int size, int rank,
                           int timeout_ms, ddp_comm **created)
{
	ddp_comm *comm = calloc(1, sizeof(*comm));

	if (comm == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	comm->roster = roster;
	atomic_fetch_add(&roster->users, 1);
	comm->rank = rank;
	comm->size = size;
	comm->timeout_ms = timeout_ms;
	comm->culprit = DDP_NOBODY;
	comm->chain.missing = comm->chain.end = DDP_NOBODY;
	pthread_mutex_init(&comm->run_lock, NULL);
	pthread_mutex_init(&comm->queue_lock, NULL);
	pthread_mutex_init(&comm->failure_lock, NULL);
	ddp_condition_init(&comm->queue_filled);
	comm->world_ranks = malloc((size_t)size * sizeof(int));
	comm->node_of = malloc((size_t)size * sizeof(int));
	comm->local_of = malloc((size_t)size * sizeof(int));
	comm->node_ranks = malloc((size_t)size * sizeof(int));
	comm->node_begin = malloc(((size_t)size + 1) * sizeof(int));
	comm->node.ranks = malloc((size_t)size * sizeof(int));
	if (comm->world_ranks == NULL || comm->node_of == NULL || comm->local_of == NULL ||
	    comm->node_ranks == NULL || comm->node_begin == NULL || comm->node.ranks == NULL) {
		ddp_comm_destroy(comm);
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	}
	memcpy(comm->world_ranks, world_ranks, (size_t)size * sizeof(int));
	*created = comm;
	return DDP_OK;
}

/* Numbers the nodes by their first rank and lists their ranks. */
static void number_nodes(ddp_comm *comm)
{
	const ddp_peer *peers = comm->roster->peers;
	int filled = 0;

	for (int r = 0; r < comm->size; r++) {
		int key = peers[comm->world_ranks[r]].node, first = 0;
		while (peers[comm->world_ranks[first]].node != key)
			first++;
		comm->node_of[r] = first < r ? comm->node_of[first] : comm->nodes++;
	}
	comm->channels = comm->size;
	for (int node = 0; node < comm->nodes; node++) {
		int begin = comm->node_begin[node] = filled;
		for (int r = 0; r < comm->size; r++) {
			if (comm->node_of[r] != node)
				continue;
			comm->local_of[r] = filled - begin;
			comm->node_ranks[filled++] = r;
		}
		if (filled - begin < comm->channels)
			comm->channels = filled - begin;
	}
	comm->node_begin[comm->nodes] = filled;
}

ddp_status ddp_comm_place(ddp_comm *comm)
{
	ddp_node *node = &comm->node;

	number_nodes(comm);
	int own = comm->node_of[comm->rank], begin = comm->node_begin[own];
	node->size = comm->node_begin[own + 1] - begin;
	node->self = comm->local_of[comm->rank];
	memcpy(node->ranks, comm->node_ranks + begin, (size_t)node->size * sizeof(int));
	node->src = calloc((size_t)node->size, sizeof(*node->src));
	node->dst = calloc((size_t)node->size + 1, sizeof(*node->dst));
	node->scales = calloc((size_t)node->size, sizeof(*node->scales));
	if (node->src == NULL || node->dst == NULL || node->scales == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	return DDP_OK;
}

/* The last user's release frees it. */
static void release_roster(ddp_roster *roster)
{
	if (atomic_fetch_sub(&roster->users, 1) > 1)
		return;
	ddp_memory_free_all(roster);
	for (int r = 0; r < roster->size && roster->peers != NULL; r++) {
		if (roster->peers[r].pidfd >= 0)
			close(roster->peers[r].pidfd);
	}
	free(roster->peers);
	free(roster->hosts);
	explicit_bzero(&roster->key, sizeof(roster->key));
	pthread_mutex_destroy(&roster->memory_lock);
	free(roster);
}

void ddp_comm_destroy(ddp_comm *comm)
{
	ddp_pairs_free(comm);
	ddp_net_close(comm);
	ddp_inter_close(comm);
	ddp_node_unmap(comm);
	free(comm->node.ranks);
	free(comm->node.src);
	free(comm->node.dst);
	free(comm->node.scales);
	free(comm->world_ranks);
	free(comm->node_of);
	free(comm->local_of);
	free(comm->node_ranks);
	free(comm->node_begin);
	pthread_mutex_destroy(&comm->run_lock);
	pthread_mutex_destroy(&comm->queue_lock);
	pthread_mutex_destroy(&comm->failure_lock);
	pthread_cond_destroy(&comm->queue_filled);
	release_roster(comm->roster);
	free(comm);
}

static ddp_status new_roster(const ddp_job *job, const ddp_key *key, ddp_roster **created)
{
	ddp_roster *roster = calloc(1, sizeof(*roster));

	if (roster == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	pthread_mutex_init(&roster->memory_lock, NULL);
	atomic_store(&roster->users, 1);
	roster->job = job;
	if (key != NULL)
		roster->key = *key;
	roster->size = job->world_size;
	roster->peers = calloc((size_t)roster->size, sizeof(*roster->peers));
	if (roster->peers == NULL) {
		release_roster(roster);
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	}
	for (int r = 0; r < roster->size; r++)
		roster->peers[r].pidfd = -1;
	*created = roster;
	return DDP_OK;
}

/* What a rank tells of its network: its doorbell, then UCX's address. */
static ddp_status connect_nodes(ddp_comm *comm, const ddp_opening *o)
{
	void **blobs = calloc((size_t)comm->size, sizeof(*blobs));
	size_t *sizes = calloc((size_t)comm->size, sizeof(*sizes));
	int32_t *bells = calloc((size_t)comm->size, sizeof(*bells));
	void *address = NULL;
	char *blob = NULL;
	size_t bytes = 0;
	ddp_status status = ddp_net_open(comm, &address, &bytes);

	if (status != DDP_OK)
		goto out;
	blob = malloc(sizeof(*bells) + bytes);
	if (blobs == NULL || sizes == NULL || bells == NULL || blob == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
		goto out;
	}
	int32_t bell = ddp_net_doorbell(comm);
	memcpy(blob, &bell, sizeof(bell));
	memcpy(blob + sizeof(bell), address, bytes);
	if ((status = exchange(o, blob, sizeof(bell) + bytes, blobs, sizes)) != DDP_OK)
		goto out;
	for (int r = 0; r < comm->size; r++) {
		if (sizes[r] <= sizeof(bell)) {
			status = ddp_fail(DDP_ERR_JOB, "rank %d has no network", r);
			goto out;
		}
		memcpy(&bells[r], blobs[r], sizeof(bell));
		sizes[r] -= sizeof(bell);
		memmove(blobs[r], (char *)blobs[r] + sizeof(bell), sizes[r]);
	}
	status = ddp_net_set_addresses(comm, blobs, sizes);
	if (status == DDP_OK)
		status = ddp_net_open_doorbells(comm, bells);
	/* Nobody knocks before all let the others in. */
	ddp_blobs_free(blobs, comm->size);
	if (status == DDP_OK)
		status = exchange(o, &bell, sizeof(bell), blobs, sizes);
out:
	if (blobs != NULL)
		ddp_blobs_free(blobs, comm->size);
	free(blobs);
	free(sizes);
	free(bells);
	free(address);
	free(blob);
	return status;
}

static ddp_status open_world(ddp_comm *comm, const ddp_opening *o)
{
	identity mine = { .magic = IDENTITY_MAGIC, .pid = getpid(),
	                  .pid_start = ddp_process_start(getpid()) };
	int fd = -1;
	ddp_status status;

	ddp_locality_key(mine.key);
	snprintf(mine.host, sizeof(mine.host), "%s", comm->roster->job->hostname);
	mine.fd = create_control(mine.nonce);
	if (mine.fd < 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared memory segment");
	status = find_nodes(comm, o, mine.fd, &mine, &fd);
	if (status == DDP_OK)
		status = ddp_comm_place(comm);
	if (status == DDP_OK)
		status = ddp_node_map(comm, fd);
	if (status == DDP_OK && comm->nodes > 1)
		status = connect_nodes(comm, o);
	if (status == DDP_OK && comm->nodes > 1)
		status = ddp_net_greet(comm);
	if (status == DDP_OK && comm->nodes > 1)
		status = ddp_comm_start(comm);
	if (fd >= 0 && fd != mine.fd)
		close(fd);
	close(mine.fd);
	return status;
}

ddp_status ddp_comm_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms, ddp_comm **comm)
{
	world_exchange exchanger = { wireup, ddp_now_ns() + (uint64_t)timeout_ms * 1000000 };
	const ddp_opening opening = { .exchange = exchange_by_wireup, .exchanger = &exchanger };
	ddp_roster *roster = NULL;
	ddp_comm *opened = NULL;

	if (job->world_size < 1 || job->rank < 0 || job->rank >= job->world_size || timeout_ms <= 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_open(): rank %d of %d, timeout %d ms", job->rank,
		                job->world_size, timeout_ms);
	int *ranks = malloc((size_t)job->world_size * sizeof(int));
	if (ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	for (int r = 0; r < job->world_size; r++)
		ranks[r] = r;
	ddp_status status = new_roster(job, wireup->key, &roster);
	if (status == DDP_OK)
		status = ddp_comm_create(roster, ranks, job->world_size, job->rank, timeout_ms, &opened);
	free(ranks);
	if (status == DDP_OK)
		status = open_world(opened, &opening);
	if (roster != NULL)
		release_roster(roster);
	if (status != DDP_OK) {
		if (opened != NULL) {
			ddp_comm_stop(opened);
			ddp_comm_destroy(opened);
		}
		return status;
	}
	opened->is_world = true;
	*comm = opened;
	return DDP_OK;
}

void ddp_comm_close(ddp_comm *comm)
{
	if (comm == NULL)
		return;
	/* Between nodes, nobody closes connections that others still need. */
	if (comm->nodes > 1 && atomic_load(&comm->failed) == DDP_OK)
		(void)ddp_comm_last_barrier(comm);
	ddp_comm_stop(comm);
	/* The page ends with the context; a group that is still open tells no more. */
	if (comm->is_world)
		comm->roster->page = NULL;
	/* An abort may have come too late for the thread to tell of it. */
	if (comm->net != NULL && ddp_comm_check(comm) != DDP_OK)
		ddp_net_shut_down(comm);
	atomic_store(&comm->node.shared->ranks[comm->node.self].left, 1);
	ddp_node_wake_all(comm);
	ddp_comm_destroy(comm);
}
