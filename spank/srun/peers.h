/* SPDX-License-Identifier: Apache-2.0 */
/* Connections on which nodes send srun one message each. Anybody may connect. Whoever does not say his message waits
   among others, gets no answer, and when there are too many the one that waits longest goes first: a node sends its
   whole message at once. Nothing here waits, except for 50 ms where the process has no descriptor left. libc only. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/wire/relay.h"

/* Which messages srun has taken. If somebody records a message and sends it again, it then does nothing. A
   message's nonce consists of the mark of its node and the message's number there (relay.h). A node of an
   earlier release takes a new mark for each message. Pure, but it allocates memory. */

/* A node may have so many connections at once, of which a later one may be heard first. */
enum { REPLAY_WINDOW = 64 };

struct replay_node {
	uint64_t mark;
	uint64_t newest; /* the highest number that was heard */
	uint64_t window; /* bit i: whether newest - i was heard; 0: the place is free */
};

struct replay_guard {
	struct replay_node *nodes; /* by mark, which is random */
	size_t count, room;       /* room is a power of 2, or 0 */
};

/* Notes an authenticated message, and returns whether it is to be heard: it is new, and not older than
   the window. `last_word`: it must also be newer than all that srun has heard of the node. False, too,
   without memory to note it. */
bool replay_guard_accept(struct replay_guard *guard, const unsigned char nonce[RELAY_NONCE_BYTES], bool last_word);

/* Frees the memory. */
void replay_guard_end(struct replay_guard *guard);

enum { PEERS_MAX = 256 };

/* A connection whose message is not complete. */
struct peer {
	int fd;
	uint64_t deadline_ns;
	size_t got;
	struct relay_message message;
};

struct peers {
	struct peer item[PEERS_MAX]; /* the oldest first */
	int count;
};

/* Takes a whole message. True: the descriptor is the caller's from now on. */
typedef bool (*peers_take)(const struct relay_message *message, int fd);

/* Accepts all who have connected, and reads what they have sent. */
void peers_accept(struct peers *peers, int listener, peers_take take);

/* Fills in what poll(2) is to wait for, and returns how many there are: PEERS_MAX at most. */
int peers_poll(const struct peers *peers, struct pollfd *ready);

/* Reads from those that are ready, as peers_poll() has given them, and drops those whose time is over. */
void peers_serve(struct peers *peers, const struct pollfd *ready, int count, peers_take take);

/* Returns when the first one is to be dropped; UINT64_MAX: there is none. */
uint64_t peers_due(const struct peers *peers);

void peers_end(struct peers *peers);

/* ---- the port on which srun listens for its nodes ---- */

/* A socket that listens, in both families if the machine has them, on a free port from `low` to `high`, or on any if
   they are 0; -1 and errno if there is none. */
int listener_open(uint16_t low, uint16_t high);

/* Whether at least so many ports of the range are free here and now. */
bool listener_has_room(uint16_t low, uint16_t high, uint32_t ports);
