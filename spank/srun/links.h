/* SPDX-License-Identifier: Apache-2.0 */
/* srun's side of the links (node/link.h): which nodes are there, which of them have fallen silent, and the frames
   that they send. A node is silent if srun has read nothing of it for the time of silence=, while srun itself ran:
   where srun was stopped, or its host asleep, all nodes' times begin anew. Where all nodes are silent at once, the
   network of srun's own host may be the cause: nothing follows until ALL_SILENT times as long, and then only where
   there is one node. As soon as one of several nodes speaks again, all nodes' times begin anew. A node on srun's own
   host does not count among several others, because srun hears it also without a network.

   Nothing here waits. All functions are called by one thread. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/wire/channel.h"
#include "spank/wire/relay.h"

enum { ALL_SILENT = 3 };

enum links_event {
	LINK_THERE,  /* the node has opened its link for the first time */
	LINK_SILENT, /* once, until it speaks again */
	LINK_SPOKE,  /* after its silence */
	LINK_CLOSED, /* it has ended the connection without a good-bye; it may open another one */
	LINK_BYE,    /* its tasks have ended */
	LINK_ALL_SILENT, /* all nodes that count are silent, and they are several: one is named, once, until one speaks */
};

/* One node of the step, or of a component of it. */
struct links_node {
	struct link_opening opening; /* the last one */
	uint64_t mark, number;       /* of its sender, and of the opening's message */
	uint64_t heard_ns;           /* when srun last read something of it, or its time began anew */
	uint64_t bye_ns;             /* when it said good-bye */
	uint64_t asked;              /* the last question that it was asked, if it has not answered; 0: none */
	bool open, silent, bye, lost;
	bool own;    /* it is srun's host, which srun hears without a network */
	unsigned char address[16]; /* from which it came, as IPv6 has it */
	bool let_go; /* it was told that it may leave */
	bool cut; /* the last connection broke, and was not ended by the node */
	struct channel channel;
	struct session session;
};

struct links_actions {
	void (*event)(uint32_t node, enum links_event event);
	/* A frame of at least FRAME_NEWS has come; or NULL. It may call links_send(). */
	void (*take)(uint32_t node, const struct frame *frame);
};

struct links {
	unsigned char secret[SIPHASH_KEY_BYTES];
	uint32_t silence_ms;  /* 0: there are no links */
	struct links_actions actions;
	struct links_node **nodes; /* by number, from 0 on, in the order in which they came */
	uint32_t count, room;
	bool any_waits;       /* until it may leave */
	bool asks;            /* links_ask(), which goes for nodes that come, too */
	uint64_t question;    /* the number of the last one; 0: none was asked */
	bool all_quiet, told_all; /* all nodes are quiet for half of silence=, and it was told */
	int ready;            /* of epoll(7); -1: none */
	uint64_t judged_ns, slept_ns; /* when links_judge() last ran, by CLOCK_MONOTONIC and CLOCK_BOOTTIME */
};

void links_start(struct links *links, const unsigned char secret[SIPHASH_KEY_BYTES], uint32_t silence_ms,
                 const struct links_actions *actions);
void links_end(struct links *links);

/* Takes over a connection on which an authenticated message has come that opens a link, and answers it. False: it
   opens none here, and the descriptor stays the caller's. */
bool links_adopt(struct links *links, int fd, const struct relay *relay, const struct relay_message *message,
                 uint64_t now_ns);

/* A descriptor that is readable when links_read() has something to do; -1: there is no link yet. */
int links_descriptor(const struct links *links);

/* Reads and sends what is possible, and calls the actions. */
void links_read(struct links *links, uint64_t now_ns);

/* Returns when links_judge() is to be called next; UINT64_MAX: no node's silence would mean anything. */
uint64_t links_due(const struct links *links, uint64_t now_ns);

/* Tells which nodes are silent. To be called behind links_read(). `boot_ns`: by CLOCK_BOOTTIME. */
void links_judge(struct links *links, uint64_t now_ns, uint64_t boot_ns);

/* Whether srun hears a node on its own host. */
bool links_hears_own(const struct links *links, uint64_t now_ns);

/* Behind LINK_ALL_SILENT: tells of each node by itself that it is silent. */
void links_give_up(struct links *links, uint64_t now_ns);

/* Returns when a node that has missed some beats becomes silent if it does not speak before; 0: there is no such node.
   What fails meanwhile on other nodes may be the consequence. */
uint64_t links_doubt_until(const struct links *links, uint64_t now_ns);

/* Asks all nodes whose tasks run for the ends of tasks that they have seen so far, and nodes that come later, until
   links_ask_no_more(). A node answers when it has told of them all. An answer to an earlier question does not count. A
   node of another release may not know the question, and is not asked. */
void links_ask(struct links *links);
void links_ask_no_more(struct links *links);

/* Whether an answer to the last question is missing. Nodes that are silent, or whose tasks have ended, do not count. */
bool links_any_untold(const struct links *links);

/* Sends a node a frame of at least FRAME_NEWS, now or when it has opened a connection again. False: there is no such
   node, it is lost, or see session_send(). */
bool links_send(struct links *links, uint32_t node, uint32_t type, const void *payload, size_t bytes);

/* Ends the connection of a node that does not belong to the step any more. No further connection of it is taken. */
void links_lose(struct links *links, uint32_t node);

/* Ends the connections that a node which is lost for good has opened to srun itself, unless another node that is not
   away has its address; nodes are named as they name themselves in openings. srun takes an end of its I/O connection
   for a task's, but an error, as a node gives that has lost its power and is back, for the end of the step. False: it
   is to be called again, as nothing was done. */
bool links_end_srun(const struct links *links, uint32_t node, bool (*is_away)(uint32_t node));

enum links_rest {
	REST_NONE,    /* all nodes have said good-bye */
	REST_RUNS,    /* at least one of the others speaks as it should */
	REST_MISSING, /* the others are silent, lost, or have missed some beats */
};

/* Returns what is left of the step, except nodes that have said good-bye. A node without a connection is missing if
   `closed`; otherwise it does not count. REST_RUNS: `spoke_ns` is when one of them last spoke. */
enum links_rest links_rest(const struct links *links, bool closed, uint64_t now_ns, uint64_t *spoke_ns);

/* Whether a node has said good-bye and was not let go since. */
bool links_any_waits(const struct links *links);

/* Lets all nodes leave that said good-bye before that time. */
void links_let_go(struct links *links, uint64_t before_ns);

/* Returns the node with this number; NULL behind the last one. */
const struct links_node *links_node(const struct links *links, uint32_t node);
