/* SPDX-License-Identifier: Apache-2.0 */
/* socket: the rendezvous of ranks over a network, and input and output that end at a
   deadline. All sockets are non-blocking and closed on exec. */
#pragma once

#include <sys/socket.h>

#include "job/job.h"

enum { DDP_RENDEZVOUS_ADDRESSES = 8, DDP_RENDEZVOUS_PORTS = 6, DDP_WHERE_MAX = DDP_HOST_MAX + 16 };

/* Where rank 0 may listen. MASTER_PORT comes first. Another program may hold it: torchrun's agent keeps it for its
   store, and PyTorch's init_process_group() listens there on rank 0. All ranks therefore derive the same further ports,
   which are libddp's own. Each connection proves the step's key, so a port that a third program holds is noticed and
   passed over. */
typedef struct ddp_ports {
	int count;
	uint16_t port[DDP_RENDEZVOUS_PORTS];
	bool master_first; /* port[0] is MASTER_PORT; all others are libddp's own */
} ddp_ports;

/* Rank 0 listens here: at one of the ports of one of the addresses, or at a local socket. */
typedef struct ddp_rendezvous {
	ddp_ports ports; /* count 1 for a local socket, which has none */
	int count;
	struct sockaddr_storage addresses[DDP_RENDEZVOUS_ADDRESSES];
	socklen_t bytes[DDP_RENDEZVOUS_ADDRESSES];
	bool same_user;            /* no key: both ends ask the kernel whose the other one is */
	char where[DDP_WHERE_MAX]; /* "n0:20001", for messages */
} ddp_rendezvous;

/* Listens at the first of the addresses that is this node's, and at no other, at the first
   port that is free; `where` then names that port. */
ddp_status ddp_rendezvous_listen(const ddp_job *job, ddp_rendezvous *rendezvous, int *fd);

/* Begins to connect to port `index` of one of the addresses, without waiting. *error: 0: *fd is
   connected; EINPROGRESS: poll() tells POLLOUT once ddp_rendezvous_connected() knows more;
   otherwise why not (*fd is -1). Returns an error where no other try can succeed. */
ddp_status ddp_rendezvous_connect(const ddp_rendezvous *rendezvous, int index, int address, int *fd, int *error);
/* 0, or the errno of what failed. */
int ddp_rendezvous_connected(int fd);

/* `where`, with port `index`. */
const char *ddp_rendezvous_where(const ddp_rendezvous *rendezvous, int index, char text[DDP_WHERE_MAX]);

/* Whether the other end of a local socket is a process of this process's user. */
bool ddp_socket_is_same_user(int fd);

/* Milliseconds until the deadline, at most `cap_ms`, for poll(); 0 if over. */
int ddp_poll_ms(uint64_t deadline_ns, int cap_ms);

/* Has a node fallen silent during wire-up? That is read from what its kernel acknowledges: data and keepalive
   probes, also while the process there is stopped. */

/* Makes this end's kernel ask each second whether the other end's kernel is there. A local socket stays as it is. */
void ddp_socket_keep_alive(int fd);

/* A thread that waits for a connection notes here what it has seen of it. */
typedef struct ddp_silence_checks {
	uint64_t next_ns;
	int silent; /* checks, one after the other, at which the other end had been silent for too long */
} ddp_silence_checks;

/* How many milliseconds the other end has been silent, if that is `limit_ms` or more at this check and the last one,
   which are at least half a second apart; otherwise 0. Two checks are needed because this process, or its node, may not
   have run before the first one. 0 also if limit_ms is 0, or if the socket is no TCP socket. */
int ddp_socket_silent_ms(ddp_silence_checks *checks, int fd, int limit_ms);

/* Waits until there is something to read, or an error, or the deadline. DDP_ERR_PEER: the other end's node has been
   silent for silence_ms; 0: that is not looked for. */
ddp_status ddp_socket_await(int fd, uint64_t deadline_ns, int silence_ms);

/* Reads at least 1 byte and at most `bytes`, or writes all. DDP_ERR_TIMEOUT at the deadline, DDP_ERR_PEER if the peer
   has closed the connection. */
ddp_status ddp_socket_read_some(int fd, void *to, size_t bytes, uint64_t deadline_ns, size_t *got);
ddp_status ddp_socket_write(int fd, const void *from, size_t bytes, uint64_t deadline_ns);

/* "10.0.0.2:4242", or "a local process". */
const char *ddp_socket_peer(int fd, char *text, size_t bytes);
