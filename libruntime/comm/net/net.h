/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net: messages between ranks of different nodes, over UCX, which picks the transport. A message is known by its
   communicator, its sender and a tag that both sides compute; it carries the fingerprint of the operation that it
   belongs to, which this floor compares and knows nothing else about.

   The process has one worker of UCX's, one connection to each peer, and one lock for them; a communicator's `struct
   ddp_net` is what it has under way there. Whoever lets messages move does so for all communicators of the process.

   Calls are made, unless said otherwise, by the thread that holds the communicator's run.lock. */
#pragma once

#include "comm/core/comm.h"

/* Travels before a message's data. */
typedef struct ddp_envelope {
	uint64_t tag;
	ddp_fingerprint operation;
	int32_t source;
} ddp_envelope;

/* Tags that hold this bit are those of send and recv, which are the lower 32 bits: messages with the same
   tag are taken in order. */
#define DDP_NET_P2P_TAG (1ull << 63)
/* Tags that hold these are comm/group/agreement's: only they are taken by a broken communicator. */
#define DDP_NET_AGREEMENT_TAG (DDP_NET_P2P_TAG | 1ull << 62)

static inline bool ddp_net_is_of_agreement(const ddp_envelope *envelope)
{
	return (envelope->tag & DDP_NET_AGREEMENT_TAG) == DDP_NET_AGREEMENT_TAG;
}

/* In a world of at most so many ranks, every rank connects with every other at the beginning. */
enum { DDP_NET_FEW_RANKS = 32 };

/* Uses a message's data where they have come, at any alignment; false: they are to be copied to the buffer instead.
   It is called by the thread that holds run.lock, with the lock of the connections: it calls nothing of comm/net. */
typedef bool ddp_take_message(void *taker, const void *data);

/* A transfer under way; the caller keeps it, and its buffer, in place until
   it is done or the communicator is broken. */
typedef struct ddp_transfer {
	struct ddp_transfer *next; /* among those that wait for a message, or for the peer */
	struct ddp_net *net;
	int peer;
	atomic_bool done;          /* from then on, neither it nor the buffer is touched */
	ddp_envelope envelope;     /* sent, or expected */
	void *buffer;              /* to receive into */
	const void *data;          /* to send */
	size_t bytes;
	ddp_take_message *take;    /* NULL: what comes is copied to the buffer */
	void *taker;
} ddp_transfer;

/* A message that nobody has asked for yet. */
typedef struct ddp_unexpected {
	ddp_envelope envelope;
	size_t bytes;
} ddp_unexpected;

/* A message that was of another operation or size than its receiver. */
typedef struct ddp_misfit {
	ddp_unexpected came, wanted;
} ddp_misfit;

/* Makes a new communicator's part. The world, which is the process's first communicator, opens the worker. Then
   *address is what peers need to reach the worker, and the caller frees it; otherwise *bytes is 0. */
ddp_status ddp_net_open(ddp_comm *comm, void **address, size_t *bytes);
/* The world takes over all ranks' addresses, except those of this node, which are not used. Lets the job's hosts in. */
ddp_status ddp_net_set_addresses(ddp_comm *comm, void **addresses, const size_t *sizes);
/* From here on, messages with the id of the communicator are its own. It is called on
   all ranks before any of them sends one. */
void ddp_net_join(ddp_comm *comm);
void ddp_net_close(ddp_comm *comm);

/* ---- the handshake ----------------------------------------------------------------- */

/* Begins a connection to a rank of another node, if there is none yet. The first function leaves errors to the second;
   its communicator needs no shared memory yet. */
void ddp_net_begin_connection(ddp_comm *comm, int peer);
ddp_status ddp_net_connect(ddp_comm *comm, int peer);
/* Do both ends hear each other? And has the peer told that its connections are made? */
bool ddp_net_settled(const ddp_comm *comm, int peer);
bool ddp_net_ready(const ddp_comm *comm, int peer);
/* Tells the peer that this rank's connections are made. */
void ddp_net_say_ready(ddp_comm *comm, int peer);
/* Waits until all connections that were begun are made: UCX may use more of them to
   a peer than the one that messages took. They do not outlive exec(). */
void ddp_net_await_connections(ddp_comm *comm);
/* All ranks are connected with all: nobody is let in any more. */
void ddp_net_shut_listeners(ddp_comm *comm);

/* Watches other nodes of the communicator for silence (comm/core/silence), until the process's last communicator is
   closed. */
ddp_status ddp_net_watch(ddp_comm *comm);

/* Is the connection to a peer lost, or has it closed the communicator, and why? What
   came before that may have come meanwhile: the caller looks again. */
bool ddp_net_lost(const ddp_comm *comm, int peer);
const char *ddp_net_lost_reason(const ddp_comm *comm, int peer);
/* Is one lost because this process had no descriptor left to connect with it? */
bool ddp_net_lacks_descriptors(const ddp_comm *comm);

/* ---- messages ---------------------------------------------------------------------- */

/* Start a transfer. A message of another size or operation than its receiver is a
   misfit: it is not received, and comm/wait/message breaks the communicator. */
ddp_status ddp_net_send(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                        const void *buffer, size_t bytes, ddp_transfer *transfer);
void ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                  size_t bytes, ddp_transfer *transfer);
/* Starts one that was filled in, with its peer, envelope, buffer, bytes, take and taker. */
void ddp_net_recv_filled(ddp_comm *comm, ddp_transfer *transfer);
/* Data of messages that this rank was asked to send so far. */
uint64_t ddp_net_sent_bytes(const ddp_comm *comm);

/* Lets messages move; true if some did. False also if another thread is at it. */
bool ddp_net_progress(ddp_comm *comm);
/* Does the same for no communicator in particular. Any thread. */
bool ddp_net_progress_all(const ddp_roster *roster);
/* Breaks the communicator if a peer sent its failure; and if there was no memory for what came. */
ddp_status ddp_net_check_failure(ddp_comm *comm);
ddp_status ddp_net_check_memory(ddp_comm *comm);
/* The first misfit, if there was one. */
bool ddp_net_misfit(const ddp_comm *comm, ddp_misfit *misfit);
/* The first message that nobody has asked for yet and that `wanted` wants, which gets `argument`; and takes one off. */
typedef bool ddp_wants_message(const ddp_comm *comm, const ddp_unexpected *message, const void *argument);
bool ddp_net_find_unexpected(const ddp_comm *comm, ddp_wants_message *wanted, const void *argument,
                             ddp_unexpected *message);
void ddp_net_drop_unexpected(ddp_comm *comm, const ddp_unexpected *message);

/* comm/wait/verdict asks a rank of another node what that rank waits for. The second function returns its last
   answer, and when that came. */
void ddp_net_inquire(ddp_comm *comm, int peer);
ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer);

/* Prepares to sleep: false if there is something to progress first. Any thread. */
bool ddp_net_arm(const ddp_roster *roster);
/* The descriptor that has something to read when a message arrives; -1: nothing comes any more. While UCX makes the
   sockets of a connection, the descriptor would wake a sleeper all the time: if the caller gives the time for which it
   sleeps, it gets -1 and a short time then. Any thread. */
int ddp_net_fd(const ddp_roster *roster, uint64_t *timeout_ns);

/* The communicator is broken: tells the ranks that this one is connected with, unless one of few told us, and ends
   all transfers. When it returns, their buffers are not touched any more: a peer that does not take or give what is
   under way, within 0.8 s, loses its connection, for all communicators of the process; if others work with it,
   within the time for which they would wait for it, or half of this communicator's timeout. */
void ddp_net_shut_down(ddp_comm *comm);

/* comm/group/shrink calls this. Transfers may be started again on a broken communicator (`alive`), or not any more. */
void ddp_net_revive(ddp_comm *comm, bool alive);
/* Gives up all transfers, as ddp_net_shut_down() does. */
void ddp_net_forget(ddp_comm *comm);
/* UCX did not end what was given up on some communicator: all connections have ended. */
bool ddp_net_ended(const ddp_comm *comm);
/* Returns true after ddp_net_shut_down(), unless the communicator is revived: nothing is sent or received. */
bool ddp_net_down(const ddp_comm *comm);
