/*
 * comm/net: messages between ranks of different nodes, over UCX, which picks
 * the transport. A message is known by its sender and a tag that both sides
 * compute; it carries the fingerprint of the operation that it belongs to.
 *
 * Calls are made, unless said otherwise, by the thread that holds run_lock.
 */
#ifndef DDP_COMM_NET_H
#define DDP_COMM_NET_H

#include "comm/internal.h"

/* Travels before a message's data. */
typedef struct ddp_envelope {
	uint64_t tag;
	uint64_t count;
	int32_t source;
	int32_t root;
	uint32_t counts_hash;
	uint8_t kind, type, op, flags;
} ddp_envelope;

/* A transfer under way; the caller keeps it, and its buffer, in place until
   it is done or the communicator is broken. */
typedef struct ddp_transfer {
	struct ddp_transfer *next; /* among those that wait for a message, or for the peer */
	struct ddp_net *net;
	int peer;
	bool done;
	ddp_envelope envelope;     /* sent, or expected */
	void *buffer;              /* to receive into */
	const void *data;          /* to send */
	size_t bytes;
} ddp_transfer;

/* Opens a worker; *address is what peers need (freed by the caller). */
ddp_status ddp_net_open(ddp_comm *comm, void **address, size_t *bytes);
/* Takes all ranks' addresses over; those of this node are not used. Once the
   world has them, the job's hosts are let in. */
ddp_status ddp_net_set_addresses(ddp_comm *comm, void **addresses, const size_t *sizes);
/* Makes the connections that most operations use; so an unreachable node is
   found before the first operation. Collective; of the world, once all ranks
   have all addresses. */
ddp_status ddp_net_greet(ddp_comm *comm);
void ddp_net_close(ddp_comm *comm);

/* The tag of message `number` (0 .. 2^24 - 1) of the running operation. */
static inline uint64_t ddp_net_tag(const ddp_comm *comm, uint32_t number)
{
	return comm->sequence << 24 | number;
}

/* Start a transfer that belongs to the running operation. A message of
   another size or operation than the receiver's breaks the communicator. */
ddp_status ddp_net_send(ddp_comm *comm, int peer, uint64_t tag, const void *buffer, size_t bytes,
                        ddp_transfer *transfer);
void ddp_net_recv(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes,
                  ddp_transfer *transfer);
/* The same with an envelope of the caller's, for send and recv: the tag holds
   DDP_NET_PAIR_TAG, and messages with the same tag are taken in order. */
#define DDP_NET_PAIR_TAG (1ull << 63)
/* Tags that hold this one are comm/shrink's: only they are taken by a broken
   communicator. */
#define DDP_NET_MEETING_TAG (DDP_NET_PAIR_TAG | 1ull << 24)
ddp_status ddp_net_send_as(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                           const void *buffer, size_t bytes, ddp_transfer *transfer);
void ddp_net_recv_as(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                     size_t bytes, ddp_transfer *transfer);
/* Data of messages that this rank was asked to send so far. */
uint64_t ddp_net_sent_bytes(const ddp_comm *comm);
/* Waits until `count` transfers are done. */
ddp_status ddp_net_wait(ddp_comm *comm, const ddp_transfer *transfers, int count);
/* The same where more messages follow: while the program computes, they may
   gather for so long, so that it is not interrupted by each. */
ddp_status ddp_net_wait_gathering(ddp_comm *comm, const ddp_transfer *transfers, int count,
                                  uint64_t gather_ns);

/* Lets messages move; true if some did. */
bool ddp_net_progress(ddp_comm *comm);
/* Breaks the communicator if a message did not fit its receiver, a peer sent
   its failure, or the connection to the rank `missing` is lost. */
ddp_status ddp_net_check(ddp_comm *comm, int missing);

/* For comm/verdict: asks a rank of another node what it waits for; what it last
   answered, and when that came. */
void ddp_net_inquire(ddp_comm *comm, int peer);
ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer);

/* Prepares to sleep: false if there is something to progress first. */
bool ddp_net_arm(ddp_comm *comm);
/* After that: sleeps until a message arrives, or a kick, or time is over (-1:
   never). Needs no run_lock. */
void ddp_net_sleep(ddp_comm *comm, int timeout_ms);
/* Sleeps for so long, or until a kick. */
void ddp_net_rest(ddp_comm *comm, uint64_t ns);
/* Takes the kicks that have come off the pipe. */
void ddp_net_quiet_bell(ddp_comm *comm);
/* Ends such a sleep of the node's i-th rank. Any thread. */
void ddp_net_kick(ddp_comm *comm, int i);

/* The communicator is broken: tells the other nodes, unless they told us, and
   ends all transfers. When it returns, their buffers are not touched any more:
   a peer that does not take or give what is under way, within 0.8 s, loses its
   connection. */
void ddp_net_shut_down(ddp_comm *comm);

/* For comm/shrink: lets transfers be started again on a broken communicator,
   or not any more. */
void ddp_net_revive(ddp_comm *comm, bool alive);
/* Gives up all transfers, as ddp_net_shut_down() does. */
void ddp_net_forget(ddp_comm *comm);
/* UCX did not end what was given up, and all connections with it. */
bool ddp_net_ended(const ddp_comm *comm);
bool ddp_net_lost(const ddp_comm *comm, int peer);

/* The doorbell is a pipe, which peers open through /proc, as the memory. */
int ddp_net_doorbell(const ddp_comm *comm);
ddp_status ddp_net_open_doorbells(ddp_comm *comm, const int *fds);

#endif
