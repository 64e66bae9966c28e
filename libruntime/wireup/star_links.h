/* SPDX-License-Identifier: Apache-2.0 */
/* star_links: rank 0's connections with the other ranks, what it sends them, and what they answer. */
#pragma once

#include <sys/epoll.h>
#include <sys/types.h>

#include "base/segment.h"
#include "wireup/auth.h"
#include "wireup/frame.h"
#include "wireup/socket.h"

enum { DDP_STAR_EVENTS = 64, DDP_STAR_NO_LEADER = -1 };

/* The connection of a rank, which has proven the key. */
typedef struct ddp_star_link {
	int fd;
	int rank;        /* -1: its identity is wrong */
	uint32_t events; /* watched by epoll; 0: not registered */
	ddp_hello hello;
	const unsigned char *frame; /* that it is sent */
	size_t bytes, sent;         /* of the frame */
	uint32_t awaited;           /* the kind of the frame that it has to send; 0: none */
	bool may_leave;             /* once that is done */
	ddp_frame_reader reader;
	ddp_silence_checks silence;
	ddp_segment_offer offer;    /* fd -1: none */
	int leader;                 /* rank whose memory it reads; DDP_STAR_NO_LEADER: it gets all blobs */
} ddp_star_link;

typedef struct ddp_star {
	const ddp_wireup *wireup;
	int epoll;
	ddp_star_link **ranks; /* [world_size]; NULL: has not come */
	ddp_star_link *misfit; /* holds the key, but its identity is wrong: it is told why together with the others */
	uint32_t sequence;
	uint64_t silence_ns;   /* when to look for silent nodes next */
} ddp_star;

/* Takes over the descriptor. NULL: there is no memory. */
ddp_star_link *ddp_star_link_new(const ddp_star *star, int fd, const ddp_hello *hello);
void ddp_star_link_free(ddp_star_link *link);

/* Makes epoll watch for `events`; 0: for none. */
ddp_status ddp_star_watch(const ddp_star *star, ddp_star_link *link, uint32_t events);
/* Waits for events until the deadline, a second at most; *count may be 0. */
ddp_status ddp_star_await(const ddp_star *star, uint64_t deadline_ns, struct epoll_event events[DDP_STAR_EVENTS],
                          int *count);

/* The ranks that have not come, or have not taken or sent all. */
const char *ddp_star_list_missing(const ddp_star *star, char *text, size_t bytes);
/* Makes the present error one about the first of them. */
ddp_status ddp_star_about_missing(const ddp_star *star, ddp_status status);
/* The error that a rank's connection has ended before its time. */
ddp_status ddp_star_lose(const ddp_star *star, const ddp_star_link *link, const char *why);

/* Says what ddp_star_converse() does with the link. The frame stays in place meanwhile. `awaited` 0: it awaits no
   answer. */
void ddp_star_say(ddp_star_link *link, const unsigned char *frame, size_t bytes, uint32_t awaited);
/* Sends what is to be said, and takes the awaited frames, whose payloads are then in the readers. */
ddp_status ddp_star_converse(ddp_star *star, uint64_t deadline_ns);

/* Keeps `status` and this thread's message, and gives both to all ranks. */
ddp_status ddp_star_fail_all(ddp_star *star, ddp_status status);
