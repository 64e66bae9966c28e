/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/star_links.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"

/* How long the others are given to take the news of a failure. */
static const uint64_t news_timeout_ns = 1000000000u;

ddp_status ddp_link_watch(struct ddp_centre *centre, struct ddp_link *link, uint32_t events)
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

void ddp_link_free(struct ddp_link *link)
{
	ddp_descriptor_close(link->fd);
	ddp_frame_reset(&link->reader);
	free(link);
}

void ddp_centre_stop_listening(struct ddp_centre *centre)
{
	if (centre->epoll >= 0 && centre->acceptor.epoll >= 0)
		epoll_ctl(centre->epoll, EPOLL_CTL_DEL, centre->acceptor.epoll, NULL);
	ddp_acceptor_close(&centre->acceptor);
}

void ddp_link_say(const struct ddp_link *link, const void *message, size_t bytes)
{
	/* A fresh connection's buffer holds these few bytes. */
	if (send(link->fd, message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		shutdown(link->fd, SHUT_RDWR);
}

ddp_status ddp_centre_events(struct ddp_centre *centre, uint64_t deadline_ns,
                             struct epoll_event events[DDP_EVENTS], int *count)
{
	/* Once a second, whoever waits may look after what is too old. */
	*count = epoll_wait(centre->epoll, events, DDP_EVENTS, ddp_poll_ms(deadline_ns, 1000));
	if (*count >= 0)
		return DDP_OK;
	*count = 0;
	return errno == EINTR ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, errno, "epoll_wait");
}

static bool is_missing(const struct ddp_centre *centre, bool blob, int rank)
{
	return centre->ranks[rank] == NULL || (blob && !centre->ranks[rank]->has_blob);
}

ddp_status ddp_centre_about_missing(const struct ddp_centre *centre, bool blob, ddp_status status)
{
	for (int r = 1; r < centre->base.job->world_size; r++)
		if (is_missing(centre, blob, r))
			return ddp_error_about(status, r);
	return status;
}

const char *ddp_centre_missing(const struct ddp_centre *centre, bool blob, char *text, size_t bytes)
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

ddp_status ddp_centre_lost(const struct ddp_centre *centre, const struct ddp_link *link, bool blob,
                           const char *why)
{
	char list[DDP_MISSING_BYTES];

	ddp_fail(DDP_ERR_PEER, "rank %d on %s ended during wire-up, while rank 0 on %s waited "
	         "for %s: %s", link->rank, link->hello.host, centre->base.job->hostname,
	         ddp_centre_missing(centre, blob, list, sizeof(list)), why);
	return ddp_error_about(DDP_ERR_PEER, link->rank);
}

/* Whether the news are on their way, so that to wait for its end makes sense. */
static bool tell(struct ddp_centre *centre, struct ddp_link *link, const unsigned char *news,
                 size_t bytes)
{
	/* In the middle of another frame, the peer would take the news for the rest of that frame. */
	bool told = link->sent == 0 && send(link->fd, news, bytes, MSG_NOSIGNAL) == (ssize_t)bytes &&
	            shutdown(link->fd, SHUT_WR) == 0;

	return ddp_link_watch(centre, link, told ? EPOLLIN : 0) == DDP_OK && told;
}

/* Reads and throws away until `waiting` links have hung up: to close with
   unread bytes resets a connection, and the news could be lost. */
static void linger(struct ddp_centre *centre, int waiting)
{
	uint64_t deadline_ns = ddp_now_ns() + news_timeout_ns;
	struct epoll_event events[DDP_EVENTS];
	char waste[4096];
	int count;

	while (waiting > 0 && ddp_now_ns() < deadline_ns &&
	       ddp_centre_events(centre, deadline_ns, events, &count) == DDP_OK) {
		for (int i = 0; i < count; i++) {
			struct ddp_link *link = events[i].data.ptr;
			ssize_t got = recv(link->fd, waste, sizeof(waste), 0);
			if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
				continue;
			if (ddp_link_watch(centre, link, 0) != DDP_OK)
				return;
			waiting--;
		}
	}
}

ddp_status ddp_centre_fail(struct ddp_centre *centre, ddp_status status)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	size_t bytes = ddp_frame_pack_error(centre->sequence, status, news);
	int waiting = 0;

	ddp_centre_stop_listening(centre);
	for (int r = 1; r < centre->base.job->world_size; r++)
		if (centre->ranks[r] != NULL)
			waiting += tell(centre, centre->ranks[r], news, bytes);
	if (centre->misfit != NULL)
		waiting += tell(centre, centre->misfit, news, bytes);
	linger(centre, waiting);
	return ddp_frame_raise_error(news + DDP_FRAME_HEADER_BYTES, bytes - DDP_FRAME_HEADER_BYTES);
}
