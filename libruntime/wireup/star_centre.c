/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side: it accepts the processes that have proven the step's key (acceptor.h), gathers their blobs and sends
   them all to each. If anything fails, all are sent the error. */
#include "wireup/star.h"

#include <endian.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/log.h"
#include "job/environment.h"
#include "job/nodes.h"
#include "wireup/acceptor.h"
#include "wireup/frame.h"
#include "wireup/torchrun.h"

enum {
	EVENTS_MAX = 64,
	UNPROVEN_MIN = 64,      /* connections that may be trying to prove the key at once */
	DESCRIPTORS_SPARE = 256 /* for whatever else the process has open */
};

/* How long the others are given to take the news of a failure. */
static const uint64_t news_timeout_ns = 1000000000u;

/* The connection of a rank, which has proven the key. */
struct link {
	int fd;
	int rank;        /* -1: its identity is wrong */
	uint32_t events; /* watched by epoll; 0: not registered */
	ddp_hello hello;
	ddp_frame_reader reader;
	bool has_blob;
	size_t sent;     /* of the frame that goes to all */
	ddp_silence_checks silence; /* while its blob is waited for */
};

struct centre {
	ddp_wireup base;
	ddp_key key;
	char who[DDP_HOST_MAX + 32];
	ddp_acceptor acceptor;
	int epoll;                  /* of the acceptor's, without a link, and of the links */
	char where[DDP_WHERE_MAX];
	struct link **ranks;        /* [world_size]; NULL: has not come */
	struct link *misfit;        /* holds the key, but its identity is wrong: it is told why together with the others */
	int joined;
	uint32_t sequence;
	rlim_t descriptors_before;  /* 0: unchanged */
};

/* ---- links --------------------------------------------------------------------------- */

/* Makes epoll watch for `events`; 0: for none. */
static ddp_status watch_link(struct centre *centre, struct link *link, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = link };
	int operation = events == 0 ? EPOLL_CTL_DEL : link->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

	if (events == link->events)
		return DDP_OK;
	if (epoll_ctl(centre->epoll, operation, link->fd, &event) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "epoll_ctl");
	link->events = events;
	return DDP_OK;
}

static void free_link(struct link *link)
{
	ddp_descriptor_close(link->fd);
	ddp_frame_reset(&link->reader);
	free(link);
}

/* Drops who has not proven the key. From then on, all events have a link. */
static void stop_listening(struct centre *centre)
{
	if (centre->epoll >= 0 && centre->acceptor.epoll >= 0)
		epoll_ctl(centre->epoll, EPOLL_CTL_DEL, centre->acceptor.epoll, NULL);
	ddp_acceptor_close(&centre->acceptor);
}

/* Waits for events until the deadline, a second at most; *count may be 0. */
static ddp_status await_events(struct centre *centre, uint64_t deadline_ns,
                               struct epoll_event events[EVENTS_MAX], int *count)
{
	/* Once a second, whoever waits may look after what is too old. */
	*count = epoll_wait(centre->epoll, events, EVENTS_MAX, ddp_poll_ms(deadline_ns, 1000));
	if (*count >= 0)
		return DDP_OK;
	*count = 0;
	return errno == EINTR ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, errno, "epoll_wait");
}

/* Has the rank no connection, or, with `blob`, has it not sent its blob? */
static bool is_missing(const struct centre *centre, bool blob, int rank)
{
	return centre->ranks[rank] == NULL || (blob && !centre->ranks[rank]->has_blob);
}

/* Makes the present error one about the first of these ranks. */
static ddp_status error_about_missing(const struct centre *centre, bool blob, ddp_status status)
{
	for (int r = 1; r < centre->base.job->world_size; r++)
		if (is_missing(centre, blob, r))
			return ddp_error_about(status, r);
	return status;
}

static const char *list_missing(const struct centre *centre, bool blob, char *text, size_t bytes)
{
	int world_size = centre->base.job->world_size;
	bool *listed = calloc((size_t)world_size, sizeof(*listed));
	ddp_nodes nodes;

	if (listed == NULL)
		return "some ranks";
	ddp_nodes_find(centre->base.job, &nodes);
	for (int r = 1; r < world_size; r++) {
		listed[r] = is_missing(centre, blob, r);
		if (centre->ranks[r] != NULL)
			ddp_nodes_check(&nodes, r, centre->ranks[r]->hello.host);
	}
	ddp_nodes_list(&nodes, listed, text, bytes);
	ddp_nodes_free(&nodes);
	free(listed);
	return text;
}

/* The error that a rank's connection has ended before its time. */
static ddp_status lose_rank(const struct centre *centre, const struct link *link, bool blob, const char *why)
{
	char list[DDP_MISSING_BYTES];

	ddp_fail(DDP_ERR_PEER, "rank %d on %s ended during wire-up, while rank 0 on %s waited "
	         "for %s: %s", link->rank, link->hello.host, centre->base.job->hostname,
	         list_missing(centre, blob, list, sizeof(list)), why);
	return ddp_error_about(DDP_ERR_PEER, link->rank);
}

/* Whether the news are on their way, so that to wait for its end makes sense. */
static bool send_error(struct centre *centre, struct link *link, const unsigned char *news, size_t bytes)
{
	/* In the middle of another frame, the peer would take the news for the rest of that frame. */
	bool told = link->sent == 0 && send(link->fd, news, bytes, MSG_NOSIGNAL) == (ssize_t)bytes &&
	            shutdown(link->fd, SHUT_WR) == 0;

	return watch_link(centre, link, told ? EPOLLIN : 0) == DDP_OK && told;
}

/* Reads and throws away until `waiting` links have hung up: to close with
   unread bytes resets a connection, and the news could be lost. */
static void linger(struct centre *centre, int waiting)
{
	uint64_t deadline_ns = ddp_now_ns() + news_timeout_ns;
	struct epoll_event events[EVENTS_MAX];
	char waste[4096];
	int count;

	while (waiting > 0 && ddp_now_ns() < deadline_ns &&
	       await_events(centre, deadline_ns, events, &count) == DDP_OK) {
		for (int i = 0; i < count; i++) {
			struct link *link = events[i].data.ptr;
			ssize_t got = recv(link->fd, waste, sizeof(waste), 0);
			if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
				continue;
			if (watch_link(centre, link, 0) != DDP_OK)
				return;
			waiting--;
		}
	}
}

/* Keeps `status` and this thread's message, and gives both to all ranks. */
static ddp_status fail_all(struct centre *centre, ddp_status status)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	size_t bytes = ddp_frame_pack_error(centre->sequence, status, news);
	int waiting = 0;

	stop_listening(centre);
	for (int r = 1; r < centre->base.job->world_size; r++)
		if (centre->ranks[r] != NULL)
			waiting += send_error(centre, centre->ranks[r], news, bytes);
	if (centre->misfit != NULL)
		waiting += send_error(centre, centre->misfit, news, bytes);
	linger(centre, waiting);
	return ddp_frame_raise_error(news + DDP_FRAME_HEADER_BYTES, bytes - DDP_FRAME_HEADER_BYTES);
}

/* ---- accepting ranks ----------------------------------------------------------------- */

/* All generations of a torchrun share its key. A worker whose agent was killed may still look for
   rank 0, and must not end the generation that it finds. */
static ddp_status send_orphan_away(struct centre *centre, struct link *link)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	const size_t bytes = ddp_frame_pack_error(centre->sequence, DDP_ERR_JOB, news);

	ddp_log(DDP_LOG_WARN, "wire-up: %s: rank 0 takes it for a worker of an earlier start of this torchrun, "
	        "and goes on without it", ddp_last_error());
	/* A fresh connection's buffer holds these few bytes. */
	(void)!send(link->fd, news, bytes, MSG_NOSIGNAL);
	free_link(link);
	return DDP_OK;
}

static ddp_status identify(struct centre *centre, struct link *link)
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
		centre->misfit = link;
		return DDP_ERR_JOB;
	}
	if (rank == 0 || rank >= size || centre->ranks[rank] != NULL) {
		const char *other = rank > 0 && rank < size ? centre->ranks[rank]->hello.host : job->hostname;
		ddp_fail(DDP_ERR_JOB, "two processes say that they are rank %u: one on %s and one on %s (%s)",
		         rank, other, link->hello.host, peer);
		centre->misfit = link;
		return DDP_ERR_JOB;
	}
	link->rank = (int)rank;
	centre->ranks[rank] = link;
	centre->joined++;
	return watch_link(centre, link, EPOLLRDHUP);
}

/* Takes over the descriptor. */
static ddp_status add_proven(struct centre *centre, int fd, const ddp_hello *hello)
{
	struct link *link = calloc(1, sizeof(*link));

	if (link == NULL) {
		ddp_descriptor_close(fd);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
	}
	ddp_socket_keep_alive(fd);
	link->fd = fd;
	link->rank = -1;
	link->hello = *hello;
	link->reader.world_size = centre->base.job->world_size;
	return identify(centre, link);
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

	list_missing(centre, false, list, sizeof(list));
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
	return error_about_missing(centre, false, DDP_ERR_TIMEOUT);
}

/* Accepts ranks until all have come. */
static ddp_status accept_ranks(struct centre *centre, uint64_t deadline_ns)
{
	const uint64_t start_ns = ddp_now_ns();
	const pid_t agent = ddp_torchrun_agent();
	struct epoll_event events[EVENTS_MAX];
	int count;

	while (centre->joined < centre->base.job->world_size - 1) {
		ddp_status status = await_events(centre, deadline_ns, events, &count);
		if (status == DDP_OK)
			status = ddp_torchrun_check(centre->base.job, agent);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			if (events[i].data.ptr != NULL)
				status = lose_rank(centre, events[i].data.ptr, false, "its connection was closed");
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

/* ---- exchanging blobs ---------------------------------------------------------------- */

/* Reads what has come of a rank's blob. *done: it is complete. */
static ddp_status read_blob(struct centre *centre, struct link *link, bool *done)
{
	ddp_frame_reader *reader = &link->reader;

	*done = false;
	while (!*done) {
		void *at;
		size_t room;
		ddp_status status = ddp_frame_room(reader, &at, &room);
		if (status != DDP_OK)
			return status;
		ssize_t got = recv(link->fd, at, room, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return DDP_OK;
		if (got <= 0)
			return lose_rank(centre, link, true,
			                 got == 0 ? "its connection was closed" : ddp_reason(errno));
		status = ddp_frame_filled(reader, (size_t)got, done);
		if (status != DDP_OK)
			return ddp_fail_context(status, "from rank %d on %s", link->rank, link->hello.host);
	}
	if (reader->kind != DDP_FRAME_BLOB || reader->sequence != centre->sequence)
		return ddp_fail(DDP_ERR_FORMAT, "rank %d on %s sends message %u of exchange %u into exchange %u", link->rank,
		                link->hello.host, reader->kind, reader->sequence, centre->sequence);
	link->has_blob = true;
	return DDP_OK;
}

static ddp_status watch_all(struct centre *centre, uint32_t events)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		ddp_status status = watch_link(centre, centre->ranks[r], events);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

/* Takes what came from one rank while blobs are gathered; *left counts down. */
static ddp_status gather_from(struct centre *centre, struct link *link, int *left)
{
	bool done;

	if (link->has_blob)
		return lose_rank(centre, link, true, "its connection was closed");
	ddp_status status = read_blob(centre, link, &done);
	if (status != DDP_OK || !done)
		return status;
	--*left;
	return watch_link(centre, link, EPOLLRDHUP);
}

/* Is one of the ranks that have not sent their blobs on a silent node? */
static ddp_status check_silence(const struct centre *centre)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		struct link *link = centre->ranks[r];
		const int silent_ms = link->has_blob ? 0 : ddp_socket_silent_ms(&link->silence, link->fd, centre->base.silence_ms);
		if (silent_ms == 0)
			continue;
		ddp_fail(DDP_ERR_PEER, "node %s (rank %d) has been silent for %.1f s, while rank 0 on %s waited for it during "
		         "wire-up: is its power or network lost? (silence=)", link->hello.host, link->rank,
		         (double)silent_ms * 1e-3, centre->base.job->hostname);
		return ddp_error_about(DDP_ERR_PEER, link->rank);
	}
	return DDP_OK;
}

static ddp_status gather(struct centre *centre, uint64_t deadline_ns)
{
	const ddp_job *job = centre->base.job;
	int left = job->world_size - 1, count;
	uint64_t start_ns = ddp_now_ns();
	struct epoll_event events[EVENTS_MAX];
	char list[DDP_MISSING_BYTES];
	ddp_status status = watch_all(centre, EPOLLIN);

	while (left > 0 && status == DDP_OK) {
		status = await_events(centre, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++)
			status = gather_from(centre, events[i].data.ptr, &left);
		if (status == DDP_OK && left > 0)
			status = check_silence(centre);
		if (status == DDP_OK && left > 0 && ddp_now_ns() >= deadline_ns)
			status = error_about_missing(centre, true, ddp_fail(
				DDP_ERR_TIMEOUT, "%s came to rank 0 on %s, but sent no data within %.1f s",
				list_missing(centre, true, list, sizeof(list)), job->hostname,
				ddp_seconds_since(start_ns)));
	}
	return status;
}

static ddp_status send_some(struct centre *centre, struct link *link, const unsigned char *frame, size_t bytes)
{
	while (link->sent < bytes) {
		ssize_t count = send(link->fd, frame + link->sent, bytes - link->sent, MSG_NOSIGNAL);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			return DDP_OK;
		if (count < 0)
			return ddp_fail_errno(DDP_ERR_PEER, errno, "rank %d on %s ended during wire-up",
			                      link->rank, link->hello.host);
		link->sent += (size_t)count;
	}
	return watch_link(centre, link, 0);
}

static ddp_status scatter(struct centre *centre, const unsigned char *frame, size_t bytes, uint64_t deadline_ns)
{
	int left = centre->base.job->world_size - 1, count;
	struct epoll_event events[EVENTS_MAX];
	ddp_status status = watch_all(centre, EPOLLOUT);

	while (left > 0 && status == DDP_OK) {
		status = await_events(centre, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			struct link *link = events[i].data.ptr;
			status = send_some(centre, link, frame, bytes);
			left -= link->sent == bytes;
		}
		if (status == DDP_OK && left > 0 && ddp_now_ns() >= deadline_ns)
			status = ddp_fail(DDP_ERR_TIMEOUT, "%d ranks did not take the data of all ranks from rank "
			                  "0 on %s in time", left, centre->base.job->hostname);
	}
	return status;
}

/* Hands the received blobs over to the caller, and adds our own. */
static ddp_status collect(struct centre *centre, const void *blob, size_t bytes, void **blobs, size_t *sizes)
{
	for (int r = 0; r < centre->base.job->world_size; r++) {
		ddp_frame_reader *reader = r > 0 ? &centre->ranks[r]->reader : NULL;
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

static void get_ready(struct centre *centre)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		ddp_frame_reset(&centre->ranks[r]->reader);
		centre->ranks[r]->has_blob = false;
		centre->ranks[r]->sent = 0;
		centre->ranks[r]->silence = (ddp_silence_checks){ .silent = 0 };
	}
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
	status = ddp_frame_pack_all(centre->sequence, blobs, sizes, centre->base.job->world_size, &frame, &frame_bytes);
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

	centre->sequence++;
	get_ready(centre);
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

	if (centre->misfit != NULL)
		free_link(centre->misfit);
	for (int r = 1; centre->ranks != NULL && r < centre->base.job->world_size; r++)
		if (centre->ranks[r] != NULL)
			free_link(centre->ranks[r]);
	stop_listening(centre);
	if (centre->epoll >= 0)
		close(centre->epoll);
	if (centre->descriptors_before != 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = centre->descriptors_before;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	OPENSSL_cleanse(&centre->key, sizeof(centre->key));
	free(centre->ranks);
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
	centre->ranks = calloc((size_t)centre->base.job->world_size, sizeof(struct link *));
	if (centre->ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", centre->base.job->world_size);
	centre->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (centre->epoll < 0 || epoll_ctl(centre->epoll, EPOLL_CTL_ADD, centre->acceptor.epoll, &event) < 0)
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
	centre->epoll = -1;
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
