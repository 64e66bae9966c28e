/* SPDX-License-Identifier: Apache-2.0 */
/* socket: the rendezvous of ranks over a network, and input and output that end at a
   deadline. All sockets are non-blocking and closed on exec. */
#ifndef DDP_WIREUP_SOCKET_H
#define DDP_WIREUP_SOCKET_H

#include <sys/socket.h>

#include "job/job.h"
#include "wireup/ports.h"

enum { DDP_RENDEZVOUS_ADDRESSES = 8, DDP_WHERE_MAX = DDP_HOST_MAX + 16 };

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

/*
 * Begins to connect to port `index` of one of the addresses, without waiting. *error: 0: *fd is
 * connected; EINPROGRESS: poll() tells POLLOUT once ddp_rendezvous_connected() knows more;
 * otherwise why not (*fd is -1). Returns an error where no other try can succeed.
 */
ddp_status ddp_rendezvous_connect(const ddp_rendezvous *rendezvous, int index, int address, int *fd,
                                  int *error);
/* 0, or the errno of what failed. */
int ddp_rendezvous_connected(int fd);

/* `where`, with port `index`. */
const char *ddp_rendezvous_where(const ddp_rendezvous *rendezvous, int index,
                                 char text[DDP_WHERE_MAX]);

/* Whether the other end of a local socket is a process of this process's user. */
bool ddp_socket_is_same_user(int fd);

/* Milliseconds until the deadline, at most `cap_ms`, for poll(); 0 if over. */
int ddp_poll_ms(uint64_t deadline_ns, int cap_ms);

/* Waits until there is something to read, or an error, or the deadline. DDP_ERR_PEER: the other end's node has been
   silent for silence_ms (wireup/silence); 0: that is not looked for. */
ddp_status ddp_socket_await(int fd, uint64_t deadline_ns, int silence_ms);

/* Exactly `bytes`. DDP_ERR_TIMEOUT at the deadline, DDP_ERR_PEER if the peer
   has closed the connection. */
ddp_status ddp_socket_read(int fd, void *to, size_t bytes, uint64_t deadline_ns);
ddp_status ddp_socket_write(int fd, const void *from, size_t bytes, uint64_t deadline_ns);
/* Reads at least 1 byte, and at most `bytes`. */
ddp_status ddp_socket_read_some(int fd, void *to, size_t bytes, uint64_t deadline_ns,
                                size_t *got);

/* "10.0.0.2:4242", or "a local process". */
const char *ddp_socket_peer(int fd, char *text, size_t bytes);

#endif
