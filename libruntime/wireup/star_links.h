/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_links: rank 0's connections to the other ranks. It also sends an error to all of them.
 * star_accept accepts ranks, and star_centre exchanges the blobs.
 */
#ifndef DDP_WIREUP_STAR_LINKS_H
#define DDP_WIREUP_STAR_LINKS_H

#include <sys/epoll.h>
#include <sys/resource.h>

#include "job/nodes.h"
#include "wireup/acceptor.h"
#include "wireup/frame.h"
#include "wireup/silence.h"
#include "wireup/socket.h"
#include "wireup/wireup.h"

enum { DDP_EVENTS = 64 };

/* The connection of a rank, which has proven the key. */
struct ddp_link {
	int fd;
	int rank;        /* -1: its identity is wrong */
	uint32_t events; /* watched by epoll; 0: not registered */
	ddp_hello hello;
	ddp_frame_reader reader;
	bool has_blob;
	size_t sent;     /* of the frame that goes to all */
	ddp_silence_looks looks; /* while its blob is waited for */
};

struct ddp_centre {
	ddp_wireup base;
	ddp_key key;
	char who[DDP_HOST_MAX + 32];
	ddp_acceptor acceptor;
	int epoll;                  /* of the acceptor's, without a link, and of the links */
	char where[DDP_WHERE_MAX];
	struct ddp_link **ranks;    /* [world_size]; NULL: has not come */
	struct ddp_link *misfit;    /* holds the key, but its identity is wrong */
	int joined;
	uint32_t sequence;
	rlim_t descriptors_before;  /* 0: unchanged */
};

/* Makes epoll watch for `events`; 0: for none. */
ddp_status ddp_link_watch(struct ddp_centre *centre, struct ddp_link *link, uint32_t events);
void ddp_link_free(struct ddp_link *link);
/* A small message. If it does not go out, the link is shut down, and the next
   read of it says so. */
void ddp_link_say(const struct ddp_link *link, const void *message, size_t bytes);
/* Drops who has not proven the key. From then on, all events have a link. */
void ddp_centre_stop_listening(struct ddp_centre *centre);
/* Waits for events until the deadline, a second at most; *count may be 0. */
ddp_status ddp_centre_events(struct ddp_centre *centre, uint64_t deadline_ns,
                             struct epoll_event events[DDP_EVENTS], int *count);
/* The ranks without a connection, or, with `blob`, without a blob. */
const char *ddp_centre_missing(const struct ddp_centre *centre, bool blob, char *text,
                               size_t bytes);
/* Makes the present error one about the first of these ranks. */
ddp_status ddp_centre_about_missing(const struct ddp_centre *centre, bool blob, ddp_status status);
/* The error that a rank's connection has ended before its time. */
ddp_status ddp_centre_lost(const struct ddp_centre *centre, const struct ddp_link *link,
                           bool blob, const char *why);
/* Keeps `status` and this thread's message, and gives both to all ranks. */
ddp_status ddp_centre_fail(struct ddp_centre *centre, ddp_status status);

#endif
