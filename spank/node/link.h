/* SPDX-License-Identifier: Apache-2.0 */
/* A node's link to srun: one lasting connection of slurmstepd, by which each side notices that the other is gone, and
   sends the other frames (wire/channel.h). The node beats, so that srun sees its silence (srun/links.h). The node
   itself sees from what srun's host acknowledges how long ago srun has last heard of it (link.h).

   If srun's host acknowledges nothing for STUCK_MS, the network may be away for a moment, and the kernel repeats
   packets more and more seldom. So the node opens a second connection beside the first, again and again, and the one
   that srun answers replaces the first. Numbered frames are sent again on it where srun has not read them.

   Nothing here waits. All functions are called with the same lock held, or by one thread. libc only. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/wire/channel.h"
#include "spank/wire/relay.h"

/* How long ago srun's host last had a sign of this node, as the node knows it. The node notes when it has written how
   many bytes to its link, and the kernel tells how many of them srun's host has acknowledged. srun takes the node for
   silent no earlier than `silence` after it has read bytes that were written later, so a node that acts a little
   earlier than that acts first. A stopped srun acknowledges, too. Pure. */
enum { LEASE_MARKS = 64 };

struct lease {
	struct lease_mark {
		uint64_t written; /* bytes, with these */
		uint64_t ns;
	} marks[LEASE_MARKS]; /* the oldest first; what was not acknowledged yet */
	int count;
	uint64_t renewed_ns; /* when the newest byte was written that is acknowledged */
};

/* Begins when the node begins, and again when a connection is open. */
void lease_begin(struct lease *lease, uint64_t now_ns);

/* A new connection counts its bytes anew. */
void lease_reconnect(struct lease *lease);

/* So many bytes were written by now. */
void lease_write(struct lease *lease, uint64_t written, uint64_t now_ns);

/* So many bytes are acknowledged. */
void lease_acknowledge(struct lease *lease, uint64_t acknowledged);

/* Returns how long the oldest byte that is not acknowledged has waited. */
uint64_t lease_waits_ns(const struct lease *lease, uint64_t now_ns);

enum { LINK_FDS = 2 };

struct link_facts {
	const struct relay *relay; /* with a sender of its own */
	const char *address;       /* of srun; numeric */
	uint32_t silence_ms;       /* after so long srun takes the node for lost; not 0 */
	struct link_opening opening; /* of the node; its `read` is ignored */
	/* Takes a frame of at least FRAME_NEWS; or NULL. It may call link_send(). */
	void (*take)(void *about, const struct frame *frame);
	void *about;
};

enum link_state {
	LINE_NONE,
	LINE_CONNECTS,
	LINE_ASKS, /* it is connected, and srun has not answered */
	LINE_OPEN,
};

struct link_line {
	enum link_state state;
	struct channel channel;
	uint64_t since_ns;
	unsigned char answer[SIPHASH_BYTES]; /* that srun is to give, */
	size_t answered;                     /* and so much of it has come */
};

struct link {
	struct link_facts facts; /* silence_ms 0: the link was not started */
	struct relay relay;      /* a copy; so is the address: */
	char address[64];
	struct link_line now, next; /* the connection, and the one that may replace it */
	struct session session;
	struct lease lease;
	uint64_t beat_ns, retry_ns; /* when to beat next, and to open a connection at the earliest */
	uint32_t tries;             /* since a connection was open */
	bool refused;               /* srun is of a release that knows no links */
	bool was_open;
	bool left;               /* srun itself has ended the last connection */
	bool cut_off;
	bool said_bye, may_leave;
	uint64_t asked; /* the last question whether the node has told of all ends, if it was not answered yet; 0: none */
};

/* Begins to open the link. */
void link_start(struct link *link, const struct link_facts *facts);
bool link_is_started(const struct link *link);

/* Whether srun has answered at least once. */
bool link_was_open(const struct link *link);

/* Whether srun is of a release that knows no links. */
bool link_is_refused(const struct link *link);

/* Whether srun has ended the step without this node: srun's host was out of reach for the time of silence=, and this
   srun does not run there any more. False if srun has only died. */
bool link_is_cut_off(const struct link *link);

/* Fills in what poll(2) is to wait for. */
void link_poll(const struct link *link, struct pollfd ready[LINK_FDS]);

/* Does what is due; `ready` is not used. Returns after how many milliseconds to call it again, if no descriptor of
   link_poll() is ready before; -1: never. */
int link_tick(struct link *link);

/* Sends srun a frame of at least FRAME_NEWS, now or as soon as there is a connection. Nothing is lost or doubled as
   long as both sides live. False: the link is not started, the frame is longer than FRAME_PAYLOAD_MAX, or there is no
   memory for it. */
bool link_send(struct link *link, uint32_t type, const void *payload, size_t bytes);

/* For how long srun's host has acknowledged nothing that the node sent later. srun may take the node for silent as
   soon as that is silence_ms. */
uint32_t link_lease_ms(const struct link *link);

/* The age of the lease at which a node has to end its tasks by itself, if others may replace them. */
uint32_t link_fence_ms(uint32_t silence_ms);

/* Returns the number of srun's last question, if it was not answered yet, and answers it. 0: srun waits for no
   answer. */
uint64_t link_asked(const struct link *link);
void link_answer(struct link *link);

/* Tells srun that the node's tasks have ended (FRAME_BYE), now or when there is a connection. Frames are not taken any
   more. */
void link_say_bye(struct link *link);

/* Whether srun has answered that (FRAME_LEAVE); and whether it has or cannot, because there is no connection to it. */
bool link_was_let_go(const struct link *link);
bool link_may_leave(const struct link *link);

/* Says good-bye, if that was not done yet, and closes the connections. */
void link_end(struct link *link);
