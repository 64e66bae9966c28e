/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/connection: one direction between two processes, from the first byte of the
   handshake to the end. A receiver is made by a listener, a sender by the text ("handle")
   that the listener's process gave it. No call waits, but net_connection_close().

     talking    the handshake, over the control socket
     settling   the sender has sent a message through UCX, and waits until it was received
     open
     gone       the peer, or what leads to it; what no message has come for fails

   A receiver that closes tells, over the control socket, how many messages it has had: what
   has been sent by then and is among them needs no acknowledgement of UCX's any more, which
   may be lost with the receiver's worker.

   User memory is given to UCX only when the way to the peer and back is known to work,
   as UCX 1.13 cannot give up a connection that is being made. */
#pragma once

#include "nccl_plugins/net/abi.h"
#include "nccl_plugins/net/control.h"
#include "nccl_plugins/net/message.h"
#include "nccl_plugins/net/worker.h"

typedef struct net_request {
	struct net_connection *connection;
	struct net_request *next; /* that is free, too */
	net_operation *operations;
	int count;
	bool busy, flushes;
} net_request;

typedef struct net_counters {
	uint64_t messages, bytes, exhausted;
	int under_way, under_way_max;
} net_counters;

typedef struct net_connection {
	bool sends;
	net_worker *worker;
	int fd;
	bool settling, open;
	net_handshake handshake;
	struct sockaddr_storage address; /* a sender's: of the listener */
	uint64_t begun_ns, again_ns; /* when the sender began, and when it connects again */
	uint64_t dropped_ns;       /* when its connection was first dropped; 0: never */
	char peer[96];             /* "rank 3 on node7" */
	uint32_t own_id, peer_id;

	/* the rest with the worker's lock */
	ucp_ep_h ep;               /* a sender's */
	ucs_status_t lost;         /* as UCX tells */
	uint64_t lost_ns;          /* when that was first looked at */
	bool gone, told;           /* told: the user was */
	bool cut;                  /* gone: a receive was given up, so what comes is for none */
	bool delivered;            /* gone: a receiver that had got all that was sent to it by then */
	net_close_notice notice;   /* of a receiver */
	uint64_t gone_ns;
	char why[128];
	net_operation hello_in, hello_out, end_in, end_out, closing;
	unsigned int idle;         /* tests in which nothing moved */
	net_request *requests, *free;
	net_operation *operations;
	int request_count;
	unsigned char flushed;     /* what a flush reads */
	net_counters counters;
} net_connection;

/* ---- making one --------------------------------------------------------------------------- */

/* Begins a sender. `handle` is as net_listener_open() wrote it, up to its last part, which
   net_handle_attempt() gives. */
ddp_status net_sender_begin(int device, const ddp_key *step, const void *handle, net_connection **sender);
/* Begins a receiver with a user of the worker, by the control socket of a peer that has proven the
   key by this hello. Takes over the socket, whatever comes. */
ddp_status net_receiver_begin(net_worker *worker, const ddp_hello *hello, int fd, net_connection **receiver);

/* One step of the handshake; `open` tells when it is over. */
ddp_status net_connection_step(net_connection *c);
/* Gives up one that is not open yet. */
void net_connection_abandon(net_connection *c);

/* ---- open ones ---------------------------------------------------------------------------- */

/* Ends what is under way, and lets the peer know. Waits for a second or two at most. */
void net_connection_close(net_connection *c);

/* With the lock: ends what is under way with this memory. A sender that has such is gone
   then. Waits for a second or two at most. False: UCX still uses the memory. */
bool net_connection_withdraw(net_connection *c, const void *memory);

/* With the lock: is the peer still there? Called when nothing moves. One that UCX has lost, but
   whose control socket is open, is not gone before its last word has had the time to come. */
void net_connection_look(net_connection *c);

/* With the lock: a receive has ended without the message that is its own, and is gone. */
void net_connection_cut(net_connection *c, const char *why);
