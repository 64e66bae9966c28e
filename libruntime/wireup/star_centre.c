/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/star.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/error.h"
#include "wireup/star_accept.h"
#include "wireup/star_links.h"

enum {
	UNPROVEN_MIN = 64,      /* connections that may be trying to prove the key at once */
	DESCRIPTORS_SPARE = 256 /* for whatever else the process has open */
};

/* Reads what has come of a rank's blob. *done: it is complete. */
static ddp_status read_blob(struct ddp_centre *centre, struct ddp_link *link, bool *done)
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
			return ddp_centre_lost(centre, link, true,
			                       got == 0 ? "its connection was closed" : ddp_reason(errno));
		status = ddp_frame_filled(reader, (size_t)got, done);
		if (status != DDP_OK)
			return ddp_fail_context(status, "from rank %d on %s", link->rank, link->hello.host);
	}
	if (reader->kind != DDP_FRAME_BLOB || reader->sequence != centre->sequence)
		return ddp_fail(DDP_ERR_FORMAT, "rank %d on %s sends message %u of exchange %u into exchange "
		                "%u", link->rank, link->hello.host, reader->kind, reader->sequence,
		                centre->sequence);
	link->has_blob = true;
	return DDP_OK;
}

static ddp_status watch_all(struct ddp_centre *centre, uint32_t events)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		ddp_status status = ddp_link_watch(centre, centre->ranks[r], events);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

/* Takes what came from one rank while blobs are gathered; *left counts down. */
static ddp_status gather_from(struct ddp_centre *centre, struct ddp_link *link, int *left)
{
	bool done;

	if (link->has_blob)
		return ddp_centre_lost(centre, link, true, "its connection was closed");
	ddp_status status = read_blob(centre, link, &done);
	if (status != DDP_OK || !done)
		return status;
	--*left;
	return ddp_link_watch(centre, link, EPOLLRDHUP);
}

/* Is one of the ranks that have not sent their blobs on a silent node? */
static ddp_status check_silence(const struct ddp_centre *centre)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		struct ddp_link *link = centre->ranks[r];
		const int silent_ms = link->has_blob ? 0 : ddp_silence_look(&link->looks, link->fd, centre->base.silence_ms);
		if (silent_ms == 0)
			continue;
		ddp_fail(DDP_ERR_PEER, "node %s (rank %d) has been silent for %.1f s, while rank 0 on %s waited for it during "
		         "wire-up: is its power or network lost? (silence=)", link->hello.host, link->rank,
		         (double)silent_ms * 1e-3, centre->base.job->hostname);
		return ddp_error_about(DDP_ERR_PEER, link->rank);
	}
	return DDP_OK;
}

static ddp_status gather(struct ddp_centre *centre, uint64_t deadline_ns)
{
	const ddp_job *job = centre->base.job;
	int left = job->world_size - 1, count;
	uint64_t start_ns = ddp_now_ns();
	struct epoll_event events[DDP_EVENTS];
	char list[DDP_MISSING_BYTES];
	ddp_status status = watch_all(centre, EPOLLIN);

	while (left > 0 && status == DDP_OK) {
		status = ddp_centre_events(centre, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++)
			status = gather_from(centre, events[i].data.ptr, &left);
		if (status == DDP_OK && left > 0)
			status = check_silence(centre);
		if (status == DDP_OK && left > 0 && ddp_now_ns() >= deadline_ns)
			status = ddp_centre_about_missing(centre, true, ddp_fail(
				DDP_ERR_TIMEOUT, "%s came to rank 0 on %s, but sent no data within %.1f s",
				ddp_centre_missing(centre, true, list, sizeof(list)), job->hostname,
				ddp_seconds_since(start_ns)));
	}
	return status;
}

static ddp_status send_some(struct ddp_centre *centre, struct ddp_link *link,
                            const unsigned char *frame, size_t bytes)
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
	return ddp_link_watch(centre, link, 0);
}

static ddp_status scatter(struct ddp_centre *centre, const unsigned char *frame, size_t bytes,
                          uint64_t deadline_ns)
{
	int left = centre->base.job->world_size - 1, count;
	struct epoll_event events[DDP_EVENTS];
	ddp_status status = watch_all(centre, EPOLLOUT);

	while (left > 0 && status == DDP_OK) {
		status = ddp_centre_events(centre, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			struct ddp_link *link = events[i].data.ptr;
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
static ddp_status collect(struct ddp_centre *centre, const void *blob, size_t bytes, void **blobs,
                          size_t *sizes)
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

static void get_ready(struct ddp_centre *centre)
{
	for (int r = 1; r < centre->base.job->world_size; r++) {
		ddp_frame_reset(&centre->ranks[r]->reader);
		centre->ranks[r]->has_blob = false;
		centre->ranks[r]->sent = 0;
		centre->ranks[r]->looks = (ddp_silence_looks){ .silent = 0 };
	}
}

static ddp_status gather_and_scatter(struct ddp_centre *centre, const void *blob, size_t bytes,
                                     uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	unsigned char *frame = NULL;
	size_t frame_bytes = 0;
	ddp_status status = gather(centre, deadline_ns);

	if (status == DDP_OK)
		status = collect(centre, blob, bytes, blobs, sizes);
	if (status != DDP_OK)
		return status;
	status = ddp_frame_pack_all(centre->sequence, blobs, sizes, centre->base.job->world_size,
	                            &frame, &frame_bytes);
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
	struct ddp_centre *centre = (struct ddp_centre *)wireup;
	ddp_status status;

	centre->sequence++;
	get_ready(centre);
	if (bytes > DDP_BLOB_MAX)
		status = ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes,
		                  DDP_BLOB_MAX);
	else
		status = gather_and_scatter(centre, blob, bytes, deadline_ns, blobs, sizes);
	return status == DDP_OK ? DDP_OK : ddp_centre_fail(centre, status);
}

/* Each rank takes a descriptor here; the usual soft limit is 1024. */
static ddp_status raise_descriptor_limit(struct ddp_centre *centre)
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
	struct ddp_centre *centre = (struct ddp_centre *)wireup;
	struct rlimit limit;

	if (centre->misfit != NULL)
		ddp_link_free(centre->misfit);
	for (int r = 1; centre->ranks != NULL && r < centre->base.job->world_size; r++)
		if (centre->ranks[r] != NULL)
			ddp_link_free(centre->ranks[r]);
	ddp_centre_stop_listening(centre);
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

static ddp_status open_centre(struct ddp_centre *centre, uint64_t deadline_ns)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };

	ddp_status status = raise_descriptor_limit(centre);
	const ddp_status opened = ddp_acceptor_open(&centre->acceptor);

	if (status == DDP_OK)
		status = opened;
	if (status != DDP_OK)
		return status;
	centre->ranks = calloc((size_t)centre->base.job->world_size, sizeof(struct ddp_link *));
	if (centre->ranks == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d ranks", centre->base.job->world_size);
	centre->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (centre->epoll < 0 ||
	    epoll_ctl(centre->epoll, EPOLL_CTL_ADD, centre->acceptor.epoll, &event) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "epoll");
	status = ddp_accept_ranks(centre, deadline_ns);
	return status == DDP_OK ? DDP_OK : ddp_centre_fail(centre, status);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { .name = "tcp", .exchange = centre_exchange, .close = centre_close };
static const ddp_wireup_ops local_ops = { .name = "local", .exchange = centre_exchange, .close = centre_close };

ddp_status ddp_star_centre_open(bool local, const ddp_job *job, const ddp_key *key,
                                int listener, const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                                ddp_wireup **wireup)
{
	struct ddp_centre *centre = calloc(1, sizeof(*centre));

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
	ddp_centre_stop_listening(centre);
	*wireup = &centre->base;
	return DDP_OK;
}
