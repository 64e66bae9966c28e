/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/star_links.h"

#include <errno.h>
#include <stdlib.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "job/nodes.h"

/* How long the others are given to take the news of a failure. */
static const uint64_t news_timeout_ns = 1000000000u;
/* How often rank 0 looks for silent nodes; a node is silent after seconds. */
static const uint64_t silence_pause_ns = 100000000u;

/* ---- links --------------------------------------------------------------------------- */

ddp_star_link *ddp_star_link_new(const ddp_star *star, int fd, const ddp_hello *hello)
{
	ddp_star_link *link = calloc(1, sizeof(*link));

	if (link == NULL) {
		ddp_descriptor_close(fd);
		return NULL;
	}
	ddp_socket_keep_alive(fd);
	*link = (ddp_star_link){ .fd = fd, .rank = -1, .hello = *hello, .reader.world_size = star->wireup->job->world_size,
	                         .offer.fd = -1, .leader = DDP_STAR_NO_LEADER };
	return link;
}

void ddp_star_link_free(ddp_star_link *link)
{
	ddp_descriptor_close(link->fd);
	ddp_frame_reset(&link->reader);
	free(link);
}

ddp_status ddp_star_watch(const ddp_star *star, ddp_star_link *link, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = link };
	int operation = events == 0 ? EPOLL_CTL_DEL : link->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

	if (events == link->events)
		return DDP_OK;
	if (epoll_ctl(star->epoll, operation, link->fd, &event) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "epoll_ctl");
	link->events = events;
	return DDP_OK;
}

ddp_status ddp_star_await(const ddp_star *star, uint64_t deadline_ns, struct epoll_event events[DDP_STAR_EVENTS],
                          int *count)
{
	/* Once a second, whoever waits may look after what is too old. */
	*count = epoll_wait(star->epoll, events, DDP_STAR_EVENTS, ddp_poll_ms(deadline_ns, 1000));
	if (*count >= 0)
		return DDP_OK;
	*count = 0;
	return errno == EINTR ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, errno, "epoll_wait");
}

static bool is_busy(const ddp_star_link *link)
{
	return link->sent < link->bytes || link->awaited != 0;
}

static bool is_missing(const ddp_star *star, int rank)
{
	return star->ranks[rank] == NULL || is_busy(star->ranks[rank]);
}

ddp_status ddp_star_about_missing(const ddp_star *star, ddp_status status)
{
	for (int r = 1; r < star->wireup->job->world_size; r++)
		if (is_missing(star, r))
			return ddp_error_about(status, r);
	return status;
}

const char *ddp_star_list_missing(const ddp_star *star, char *text, size_t bytes)
{
	int world_size = star->wireup->job->world_size;
	bool *listed = calloc((size_t)world_size, sizeof(*listed));
	ddp_nodes nodes;

	if (listed == NULL)
		return "some ranks";
	ddp_nodes_find(star->wireup->job, &nodes);
	for (int r = 1; r < world_size; r++) {
		listed[r] = is_missing(star, r);
		if (star->ranks[r] != NULL)
			ddp_nodes_check(&nodes, r, star->ranks[r]->hello.host);
	}
	ddp_nodes_list(&nodes, listed, text, bytes);
	ddp_nodes_free(&nodes);
	free(listed);
	return text;
}

ddp_status ddp_star_lose(const ddp_star *star, const ddp_star_link *link, const char *why)
{
	char list[DDP_MISSING_BYTES];

	ddp_fail(DDP_ERR_PEER, "rank %d on %s ended during wire-up, while rank 0 on %s waited for %s: %s", link->rank,
	         link->hello.host, star->wireup->job->hostname, ddp_star_list_missing(star, list, sizeof(list)), why);
	return ddp_error_about(DDP_ERR_PEER, link->rank);
}

/* ---- what is said --------------------------------------------------------------------- */

void ddp_star_say(ddp_star_link *link, const unsigned char *frame, size_t bytes, uint32_t awaited)
{
	link->frame = frame;
	link->bytes = bytes;
	link->sent = 0;
	link->awaited = awaited;
	link->silence = (ddp_silence_checks){ .silent = 0 };
	if (awaited != 0)
		ddp_frame_reset(&link->reader);
}

/* Says what to wait for on a connection now. A rank that has all blobs may close its own. */
static ddp_status watch_on(const ddp_star *star, ddp_star_link *link)
{
	return ddp_star_watch(star, link, link->sent < link->bytes ? EPOLLOUT : link->awaited != 0 ? EPOLLIN
	                                  : link->may_leave ? 0 : EPOLLRDHUP);
}

static ddp_status send_some(const ddp_star *star, ddp_star_link *link)
{
	while (link->sent < link->bytes) {
		const ssize_t count = send(link->fd, link->frame + link->sent, link->bytes - link->sent, MSG_NOSIGNAL);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			return DDP_OK;
		if (count < 0)
			return ddp_star_lose(star, link, ddp_reason(errno));
		link->sent += (size_t)count;
	}
	return DDP_OK;
}

/* Reads what has come of the awaited frame. */
static ddp_status read_some(const ddp_star *star, ddp_star_link *link)
{
	ddp_frame_reader *reader = &link->reader;

	for (bool done = false; !done;) {
		void *at;
		size_t room;
		ddp_status status = ddp_frame_room(reader, &at, &room);
		if (status != DDP_OK)
			return status;
		const ssize_t got = recv(link->fd, at, room, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return DDP_OK;
		if (got <= 0)
			return ddp_star_lose(star, link, got == 0 ? "its connection was closed" : ddp_reason(errno));
		status = ddp_frame_filled(reader, (size_t)got, &done);
		if (status != DDP_OK)
			return ddp_fail_context(status, "from rank %d on %s", link->rank, link->hello.host);
	}
	if (reader->kind != link->awaited || reader->sequence != star->sequence)
		return ddp_fail(DDP_ERR_FORMAT, "rank %d on %s sends message %u of exchange %u into exchange %u", link->rank,
		                link->hello.host, reader->kind, reader->sequence, star->sequence);
	link->awaited = 0;
	return DDP_OK;
}

static ddp_status go_on(const ddp_star *star, ddp_star_link *link)
{
	ddp_status status;

	if (link->sent < link->bytes)
		status = send_some(star, link);
	else if (link->awaited != 0)
		status = read_some(star, link);
	else
		status = ddp_star_lose(star, link, "its connection was closed");
	return status == DDP_OK ? watch_on(star, link) : status;
}

/* Is one of the ranks that are waited for on a silent node? */
static ddp_status check_silence(ddp_star *star)
{
	const ddp_job *job = star->wireup->job;
	const uint64_t now_ns = ddp_now_ns();

	if (now_ns < star->silence_ns)
		return DDP_OK;
	star->silence_ns = now_ns + silence_pause_ns;
	for (int r = 1; r < job->world_size; r++) {
		ddp_star_link *link = star->ranks[r];
		const int silent_ms = is_busy(link) ? ddp_socket_silent_ms(&link->silence, link->fd, star->wireup->silence_ms) : 0;
		if (silent_ms == 0)
			continue;
		ddp_fail(DDP_ERR_PEER, "node %s (rank %d) has been silent for %.1f s, while rank 0 on %s waited for it during "
		         "wire-up: is its power or network lost? (silence=)", link->hello.host, link->rank,
		         (double)silent_ms * 1e-3, job->hostname);
		return ddp_error_about(DDP_ERR_PEER, link->rank);
	}
	return DDP_OK;
}

/* Some ranks have not taken, or have not sent, what they should. */
static ddp_status fail_late(const ddp_star *star, uint64_t start_ns)
{
	const ddp_job *job = star->wireup->job;
	bool sends = false, answers = false;
	char list[DDP_MISSING_BYTES];

	for (int r = 1; r < job->world_size; r++) {
		sends |= star->ranks[r]->awaited == DDP_FRAME_BLOB;
		/* Whose frame is as small has been asked something. */
		answers |= star->ranks[r]->awaited != 0 && star->ranks[r]->bytes <= DDP_FRAME_SMALL_MAX;
	}
	ddp_star_list_missing(star, list, sizeof(list));
	if (sends)
		ddp_fail(DDP_ERR_TIMEOUT, "%s came to rank 0 on %s, but sent no data within %.1f s", list, job->hostname,
		         ddp_seconds_since(start_ns));
	else if (answers)
		ddp_fail(DDP_ERR_TIMEOUT, "%s did not answer rank 0 on %s within %.1f s about the memory of the node's ranks", list,
		         job->hostname, ddp_seconds_since(start_ns));
	else
		ddp_fail(DDP_ERR_TIMEOUT, "%s did not take the data of all ranks from rank 0 on %s within %.1f s", list,
		         job->hostname, ddp_seconds_since(start_ns));
	return ddp_star_about_missing(star, DDP_ERR_TIMEOUT);
}

ddp_status ddp_star_converse(ddp_star *star, uint64_t deadline_ns)
{
	const int world_size = star->wireup->job->world_size;
	const uint64_t start_ns = ddp_now_ns();
	struct epoll_event events[DDP_STAR_EVENTS];
	ddp_status status = DDP_OK;
	int left = 0, count;

	for (int r = 1; r < world_size && status == DDP_OK; r++) {
		/* Most frames fit into the connection's buffer. */
		status = send_some(star, star->ranks[r]);
		if (status == DDP_OK)
			status = watch_on(star, star->ranks[r]);
		left += is_busy(star->ranks[r]);
	}
	while (left > 0 && status == DDP_OK) {
		status = ddp_star_await(star, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			ddp_star_link *link = events[i].data.ptr;
			status = go_on(star, link);
			left -= status == DDP_OK && !is_busy(link);
		}
		if (status == DDP_OK && left > 0)
			status = check_silence(star);
		if (status == DDP_OK && left > 0 && ddp_now_ns() >= deadline_ns)
			status = fail_late(star, start_ns);
	}
	return status;
}

/* ---- failure -------------------------------------------------------------------------- */

/* Whether the message was sent, so that it makes sense to wait for the peer to close. */
static bool send_error(const ddp_star *star, ddp_star_link *link, const unsigned char *news, size_t bytes)
{
	/* In the middle of another frame, the peer would take the news for the rest of that frame. */
	const bool between = link->sent == 0 || link->sent == link->bytes;
	bool told = between && send(link->fd, news, bytes, MSG_NOSIGNAL) == (ssize_t)bytes &&
	            shutdown(link->fd, SHUT_WR) == 0;

	return ddp_star_watch(star, link, told ? EPOLLIN : 0) == DDP_OK && told;
}

/* Reads and throws away until `waiting` links have hung up: to close with
   unread bytes resets a connection, and the news could be lost. */
static void linger(const ddp_star *star, int waiting)
{
	uint64_t deadline_ns = ddp_now_ns() + news_timeout_ns;
	struct epoll_event events[DDP_STAR_EVENTS];
	char waste[4096];
	int count;

	while (waiting > 0 && ddp_now_ns() < deadline_ns &&
	       ddp_star_await(star, deadline_ns, events, &count) == DDP_OK) {
		for (int i = 0; i < count; i++) {
			ddp_star_link *link = events[i].data.ptr;
			ssize_t got = recv(link->fd, waste, sizeof(waste), 0);
			if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
				continue;
			if (ddp_star_watch(star, link, 0) != DDP_OK)
				return;
			waiting--;
		}
	}
}

ddp_status ddp_star_fail_all(ddp_star *star, ddp_status status)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	size_t bytes = ddp_frame_pack_error(star->sequence, status, news);
	int waiting = 0;

	for (int r = 1; r < star->wireup->job->world_size; r++)
		if (star->ranks[r] != NULL)
			waiting += send_error(star, star->ranks[r], news, bytes);
	if (star->misfit != NULL)
		waiting += send_error(star, star->misfit, news, bytes);
	linger(star, waiting);
	return ddp_frame_raise_error(news + DDP_FRAME_HEADER_BYTES, bytes - DDP_FRAME_HEADER_BYTES);
}
