/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side: it accepts the processes that have proven the step's key (acceptor.h), gathers their blobs, and has
   each rank get them all: by its connection (star_links.h), or from memory of its node (node_table.h). If anything
   fails, all are sent the error. */
#include "wireup/star.h"

#include <endian.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "job/environment.h"
#include "job/nodes.h"
#include "wireup/acceptor.h"
#include "wireup/node_table.h"
#include "wireup/star_links.h"
#include "wireup/torchrun.h"

enum {
	UNPROVEN_MIN = 64,       /* connections that may be trying to prove the key at once */
	DESCRIPTORS_SPARE = 256, /* for whatever else the process has open */
	/* Ranks of a node share a table of so many bytes or more. Below, the few frames more are not worth it. */
	SHARED_BYTES = 16384
};

struct centre {
	ddp_wireup base;
	ddp_star star;
	ddp_key key;
	char who[DDP_HOST_MAX + 32];
	ddp_acceptor acceptor;      /* its epoll is in the star's, without a link */
	char where[DDP_WHERE_MAX];
	int joined;
	bool asked;                 /* ranks share memory from then on */
	ddp_node_table table;       /* of rank 0's node */
	rlim_t descriptors_before;  /* 0: unchanged */
};

/* Drops who has not proven the key. From then on, all events have a link. */
static void stop_listening(struct centre *centre)
{
	if (centre->star.epoll >= 0 && centre->acceptor.epoll >= 0)
		epoll_ctl(centre->star.epoll, EPOLL_CTL_DEL, centre->acceptor.epoll, NULL);
	ddp_acceptor_close(&centre->acceptor);
}

static ddp_status fail_all(struct centre *centre, ddp_status status)
{
	stop_listening(centre);
	return ddp_star_fail_all(&centre->star, status);
}

/* ---- accepting ranks ----------------------------------------------------------------- */

/* All generations of a torchrun share its key. A worker whose agent was killed may still look for
   rank 0, and must not end the generation that it finds. */
static ddp_status send_orphan_away(struct centre *centre, ddp_star_link *link)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	const size_t bytes = ddp_frame_pack_error(centre->star.sequence, DDP_ERR_JOB, news);

	ddp_log(DDP_LOG_WARN, "wire-up: %s: rank 0 takes it for a worker of an earlier start of this torchrun, "
	        "and goes on without it", ddp_last_error());
	/* A fresh connection's buffer holds these few bytes. */
	(void)!send(link->fd, news, bytes, MSG_NOSIGNAL);
	ddp_star_link_free(link);
	return DDP_OK;
}

static ddp_status identify(struct centre *centre, ddp_star_link *link)
{
	const ddp_job *job = centre->base.job;
	uint32_t rank = le32toh(link->hello.rank), size = le32toh(link->hello.world_size);
	char peer[80];

	link->hello.host[sizeof(link->hello.host) - 1] = '\0';
	ddp_socket_peer(link->fd, peer, sizeof(peer));
	if (size != (uint32_t)job->world_size) {
		ddp_fail(DDP_ERR_JOB, "rank %u on %s (%s) says that the world has %u ranks, rank 0 on %s "
		         "says %d", rank, link->hello.host, peer, size, job->hostname, job->world_size);
		if (ddp_environment("TORCHELASTIC_RUN_ID") != NULL)
			return send_orphan_away(centre, link);
		centre->star.misfit = link;
		return DDP_ERR_JOB;
	}
	if (rank == 0 || rank >= size || centre->star.ranks[rank] != NULL) {
		const char *other = rank > 0 && rank < size ? centre->star.ranks[rank]->hello.host : job->hostname;
		ddp_fail(DDP_ERR_JOB, "two processes say that they are rank %u: one on %s and one on %s (%s)",
		         rank, other, link->hello.host, peer);
		centre->star.misfit = link;
		return DDP_ERR_JOB;
	}
	link->rank = (int)rank;
	centre->star.ranks[rank] = link;
	centre->joined++;
	return ddp_star_watch(&centre->star, link, EPOLLRDHUP);
}

/* Takes over the descriptor. */
static ddp_status add_proven(struct centre *centre, int fd, const ddp_hello *hello)
{
	ddp_star_link *link = ddp_star_link_new(&centre->star, fd, hello);

	return link != NULL ? identify(centre, link) : ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
}

static ddp_status accept_some(struct centre *centre)
{
	const ddp_job *job = centre->base.job;
	ddp_hello hello;
	ddp_status status;
	int fd;

	do {
		status = ddp_acceptor_next(&centre->acceptor, &fd, &hello);
		if (status == DDP_ERR_NOMEM)
			status = ddp_fail_context(status, "rank 0 on %s, after %d of %d ranks (see ulimit -Hn)",
			                          job->hostname, centre->joined + 1, job->world_size);
		else if (status == DDP_OK && fd >= 0)
			status = add_proven(centre, fd, &hello);
	} while (status == DDP_OK && fd >= 0);
	return status;
}

static ddp_status fail_late(const struct centre *centre, uint64_t start_ns)
{
	const ddp_job *job = centre->base.job;
	char list[DDP_MISSING_BYTES];

	ddp_star_list_missing(&centre->star, list, sizeof(list));
	if (centre->acceptor.misled[0] != '\0')
		return ddp_fail(DDP_ERR_AUTH, "%s did not come to rank 0 on %s (%s) within %.1f s; %s (man 3 libddp, "
		                "SECURITY)", list, job->hostname, centre->where, ddp_seconds_since(start_ns),
		                centre->acceptor.misled);
	if (centre->acceptor.refused > 0)
		return ddp_fail(DDP_ERR_AUTH, "%s did not come to rank 0 on %s (%s) within %.1f s, and %d "
		                "connections did not hold the step's key, the last from %s: DDP_KEY must be "
		                "the same on all ranks", list, job->hostname, centre->where,
		                ddp_seconds_since(start_ns), centre->acceptor.refused, centre->acceptor.last_refused);
	ddp_fail(DDP_ERR_TIMEOUT, "%s did not come to rank 0 on %s (%s) within %.1f s: did every "
	         "task start, and does a firewall stand between?", list, job->hostname, centre->where,
	         ddp_seconds_since(start_ns));
	return ddp_star_about_missing(&centre->star, DDP_ERR_TIMEOUT);
}

/* Accepts ranks until all have come. */
static ddp_status accept_ranks(struct centre *centre, uint64_t deadline_ns)
{
	const uint64_t start_ns = ddp_now_ns();
	const pid_t agent = ddp_torchrun_agent();
	struct epoll_event events[DDP_STAR_EVENTS];
	int count;

	while (centre->joined < centre->base.job->world_size - 1) {
		ddp_status status = ddp_star_await(&centre->star, deadline_ns, events, &count);
		if (status == DDP_OK)
			status = ddp_torchrun_check(centre->base.job, agent);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			if (events[i].data.ptr != NULL)
				status = ddp_star_lose(&centre->star, events[i].data.ptr, "its connection was closed");
		}
		if (status == DDP_OK)
			status = accept_some(centre);
		if (status != DDP_OK)
			return status;
		if (ddp_now_ns() >= deadline_ns && centre->joined < centre->base.job->world_size - 1)
			return fail_late(centre, start_ns);
	}
	return DDP_OK;
}

/* ---- sharing memory on a node -------------------------------------------------------- */

static ddp_star_link *link_of(const struct centre *centre, int rank)
{
	return centre->star.ranks[rank];
}

static const ddp_segment_offer *offer_of(const struct centre *centre, int rank)
{
	return rank == 0 ? &centre->table.offer : &link_of(centre, rank)->offer;
}

static ddp_status gather_offers(struct centre *centre, uint64_t deadline_ns)
{
	unsigned char ask[DDP_FRAME_SMALL_MAX];
	const size_t bytes = ddp_frame_pack(DDP_FRAME_ASK, centre->star.sequence, NULL, 0, ask);

	ddp_node_table_offer(&centre->table);
	for (int r = 1; r < centre->base.job->world_size; r++)
		ddp_star_say(link_of(centre, r), ask, bytes, DDP_FRAME_OFFER);
	ddp_status status = ddp_star_converse(&centre->star, deadline_ns);
	for (int r = 1; r < centre->base.job->world_size && status == DDP_OK; r++) {
		ddp_star_link *link = link_of(centre, r);
		if (link->reader.bytes == sizeof(link->offer))
			memcpy(&link->offer, link->reader.payload, sizeof(link->offer));
		else
			status = ddp_fail(DDP_ERR_FORMAT, "rank %d on %s offers memory in another form", r, link->hello.host);
	}
	return status;
}

/* leaders[r] becomes the lowest rank on r's node that offers memory, and, if that is r, members[r] how many ranks there
   do. Without an offer a rank is alone. `known` is room for as many. */
static void find_leaders(const struct centre *centre, int *leaders, int *members, int *known)
{
	int count = 0;

	for (int r = 0; r < centre->base.job->world_size; r++) {
		const ddp_segment_offer *own = offer_of(centre, r);
		leaders[r] = r;
		if (own->fd < 0)
			continue;
		for (int i = 0; i < count && leaders[r] == r; i++)
			if (offer_of(centre, known[i])->locality == own->locality)
				leaders[r] = known[i];
		if (leaders[r] == r)
			known[count++] = r;
		members[leaders[r]]++;
	}
}

static bool said_yes(const ddp_star_link *link)
{
	return link->reader.kind == DDP_FRAME_DONE && link->reader.bytes == 1 && link->reader.payload[0] == 1;
}

/* Has the ranks of each node open their leader's memory. */
static ddp_status join_leaders(struct centre *centre, const int *leaders, const int *members, uint64_t deadline_ns)
{
	const int world_size = centre->base.job->world_size;
	unsigned char (*joins)[DDP_FRAME_SMALL_MAX] = calloc((uint32_t)world_size, sizeof(*joins));
	const size_t bytes = DDP_FRAME_HEADER_BYTES + sizeof(ddp_segment_offer);

	if (joins == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d messages", world_size);
	centre->table.leads = members[0] > 1;
	for (int r = 0; r < world_size; r++) {
		if (members[leaders[r]] < 2)
			continue;
		if (leaders[r] == r)
			ddp_frame_pack(DDP_FRAME_JOIN, centre->star.sequence, offer_of(centre, r), sizeof(ddp_segment_offer), joins[r]);
		if (r > 0)
			ddp_star_say(link_of(centre, r), joins[leaders[r]], bytes, DDP_FRAME_DONE);
	}
	ddp_status status = ddp_star_converse(&centre->star, deadline_ns);
	for (int r = 1; r < world_size && status == DDP_OK; r++)
		if (members[leaders[r]] > 1 && said_yes(link_of(centre, r)))
			link_of(centre, r)->leader = leaders[r];
	free(joins);
	return status;
}

static ddp_status share_memory(struct centre *centre, uint64_t deadline_ns)
{
	const size_t world_size = (size_t)centre->base.job->world_size;
	int *space = calloc(3 * world_size, sizeof(*space));

	centre->asked = true;
	if (space == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the nodes of %zu ranks", world_size);
	ddp_status status = gather_offers(centre, deadline_ns);
	if (status == DDP_OK) {
		find_leaders(centre, space, space + world_size, space + 2 * world_size);
		status = join_leaders(centre, space, space + world_size, deadline_ns);
	}
	free(space);
	return status;
}

/* ---- exchanging blobs ---------------------------------------------------------------- */

static ddp_status gather(struct centre *centre, uint64_t deadline_ns)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		ddp_star_say(link_of(centre, r), NULL, 0, DDP_FRAME_BLOB);
		link_of(centre, r)->may_leave = false;
	}
	return ddp_star_converse(&centre->star, deadline_ns);
}

/* The frame with all blobs goes to the leaders of nodes, and to ranks that share no memory; then others are told to
   read what their leaders have. */
static ddp_status scatter(struct centre *centre, const unsigned char *frame, size_t bytes, uint64_t deadline_ns)
{
	const size_t payload = bytes - DDP_FRAME_HEADER_BYTES;
	const uint64_t little = htole64(payload);
	const bool kept = centre->table.leads && ddp_node_table_write(&centre->table, frame + DDP_FRAME_HEADER_BYTES, payload);
	unsigned char read[DDP_FRAME_SMALL_MAX];
	const size_t read_bytes = ddp_frame_pack(DDP_FRAME_READ, centre->star.sequence, &little, sizeof(little), read);
	ddp_status status = DDP_OK;

	for (int turn = 0; turn < 2 && status == DDP_OK; turn++) {
		for (int r = 1; r < centre->base.job->world_size; r++) {
			ddp_star_link *link = link_of(centre, r);
			const bool alone = link->leader == DDP_STAR_NO_LEADER, leads = link->leader == r;
			if ((turn == 0) != (alone || leads))
				continue;
			const bool reads = !alone && !leads && (link->leader == 0 ? kept : said_yes(link_of(centre, link->leader)));
			ddp_star_say(link, reads ? read : frame, reads ? read_bytes : bytes, leads ? DDP_FRAME_DONE : 0);
			link->may_leave = true;
		}
		status = ddp_star_converse(&centre->star, deadline_ns);
	}
	return status;
}

/* Hands the received blobs over to the caller, and adds our own. */
static ddp_status collect(struct centre *centre, const void *blob, size_t bytes, void **blobs, size_t *sizes)
{
	for (int r = 0; r < centre->base.job->world_size; r++) {
		ddp_frame_reader *reader = r > 0 ? &link_of(centre, r)->reader : NULL;
		bool received = reader != NULL && reader->payload != NULL;

		sizes[r] = reader != NULL ? (size_t)reader->bytes : bytes;
		blobs[r] = received ? reader->payload : malloc(sizes[r] > 0 ? sizes[r] : 1);
		if (blobs[r] == NULL) {
			ddp_blobs_free(blobs, r);
			return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", sizes[r]);
		}
		if (reader != NULL)
			reader->payload = NULL;
		else if (bytes > 0)
			memcpy(blobs[r], blob, bytes);
	}
	return DDP_OK;
}

static ddp_status gather_and_scatter(struct centre *centre, const void *blob, size_t bytes,
                                     uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	unsigned char *frame = NULL;
	size_t frame_bytes = 0;
	ddp_status status = gather(centre, deadline_ns);

	if (status == DDP_OK)
		status = collect(centre, blob, bytes, blobs, sizes);
	if (status != DDP_OK)
		return status;
	status = ddp_frame_pack_all(centre->star.sequence, blobs, sizes, centre->base.job->world_size, &frame, &frame_bytes);
	if (status == DDP_OK && frame_bytes >= SHARED_BYTES && !centre->asked)
		status = share_memory(centre, deadline_ns);
	if (status == DDP_OK)
		status = scatter(centre, frame, frame_bytes, deadline_ns);
	free(frame);
	if (status != DDP_OK)
		ddp_blobs_free(blobs, centre->base.job->world_size);
	return status;
}

static ddp_status centre_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                  uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	struct centre *centre = (struct centre *)wireup;
	ddp_status status;

	centre->star.sequence++;
	if (bytes > DDP_BLOB_MAX)
		status = ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	else
		status = gather_and_scatter(centre, blob, bytes, deadline_ns, blobs, sizes);
	return status == DDP_OK ? DDP_OK : fail_all(centre, status);
}

/* Each rank takes a descriptor here; the usual soft limit is 1024. */
static ddp_status raise_descriptor_limit(struct centre *centre)
{
	rlim_t needed = (rlim_t)centre->base.job->world_size + DDP_UNPROVEN_MAX + DESCRIPTORS_SPARE;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "getrlimit");
	if (limit.rlim_cur >= needed)
		return DDP_OK;
	if (limit.rlim_max < (rlim_t)centre->base.job->world_size + UNPROVEN_MIN)
		return ddp_fail(DDP_ERR_NOMEM, "rank 0 on %s needs %llu descriptors for %d ranks, %llu are "
		                "allowed: raise ulimit -Hn or use PMIx (srun --mpi=pmix)",
		                centre->base.job->hostname, (unsigned long long)needed,
		                centre->base.job->world_size, (unsigned long long)limit.rlim_max);
	centre->descriptors_before = limit.rlim_cur;
	limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "setrlimit");
	return DDP_OK;
}

static void centre_close(ddp_wireup *wireup)
{
	struct centre *centre = (struct centre *)wireup;
	struct rlimit limit;

	if (centre->star.misfit != NULL)
		ddp_star_link_free(centre->star.misfit);
	for (int r = 1; centre->star.ranks != NULL && r < centre->base.job->world_size; r++)
		if (centre->star.ranks[r] != NULL)
			ddp_star_link_free(centre->star.ranks[r]);
	stop_listening(centre);
	if (centre->star.epoll >= 0)
		close(centre->star.epoll);
	if (centre->descriptors_before != 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = centre->descriptors_before;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	ddp_node_table_close(&centre->table);
	OPENSSL_cleanse(&centre->key, sizeof(centre->key));
	free(centre->star.ranks);
	free(centre);
}

static ddp_status open_centre(struct centre *centre, uint64_t deadline_ns)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
	ddp_status status = raise_descriptor_limit(centre);
	const ddp_status opened = ddp_acceptor_open(&centre->acceptor);

	if (status == DDP_OK)
		status = opened;
	if (status != DDP_OK)
		return status;
	centre->star.ranks = calloc((size_t)centre->base.job->world_size, sizeof(ddp_star_link *));
	if (centre->star.ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", centre->base.job->world_size);
	centre->star.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (centre->star.epoll < 0 || epoll_ctl(centre->star.epoll, EPOLL_CTL_ADD, centre->acceptor.epoll, &event) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "epoll");
	status = accept_ranks(centre, deadline_ns);
	return status == DDP_OK ? DDP_OK : fail_all(centre, status);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { .name = "tcp", .exchange = centre_exchange, .close = centre_close };
static const ddp_wireup_ops local_ops = { .name = "local", .exchange = centre_exchange, .close = centre_close };

ddp_status ddp_star_centre_open(bool local, const ddp_job *job, const ddp_key *key,
                                int listener, const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                                ddp_wireup **wireup)
{
	struct centre *centre = calloc(1, sizeof(*centre));

	if (centre == NULL) {
		close(listener);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	}
	centre->base.ops = local ? &local_ops : &tcp_ops;
	centre->base.job = job;
	centre->key = *key;
	centre->star = (ddp_star){ .wireup = &centre->base, .epoll = -1 };
	centre->table = (ddp_node_table){ .fd = -1, .offer.fd = -1 };
	snprintf(centre->where, sizeof(centre->where), "%s", rendezvous->where);
	snprintf(centre->who, sizeof(centre->who), "wire-up: rank 0 on %s", job->hostname);
	centre->acceptor = (ddp_acceptor){
		.listener = listener, .epoll = -1, .key = &centre->key, .who = centre->who, .host = job->hostname,
		.bound = true, .same_user = rendezvous->same_user, .unproven_max = job->world_size + DDP_UNPROVEN_MAX,
	};
	ddp_status status = open_centre(centre, deadline_ns);
	if (status != DDP_OK) {
		centre_close(&centre->base);
		return status;
	}
	stop_listening(centre);
	*wireup = &centre->base;
	return DDP_OK;
}
