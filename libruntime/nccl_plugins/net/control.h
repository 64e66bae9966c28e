/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/control: the TCP socket that each connection has beside UCX. The handshake
   runs over it, and as long as it is open the peer lives: UCX alone would not notice
   the death of one that sends to us, or that shares memory with us. */
#pragma once

#include <sys/socket.h>

#include "nccl_plugins/net/handshake.h"

/* Where listeners of this host are reached by others: the interface that
   NCCL_SOCKET_IFNAME names; else the one towards MASTER_ADDR; else the first that is
   no loopback, container's or virtual machine's. The port is 0. */
ddp_status net_control_address(struct sockaddr_storage *address);

/* Does NCCL_SOCKET_IFNAME, if it is set, allow this interface? */
bool net_control_allows(const char *interface);

/* A socket that listens at `address`, whose port is set. */
ddp_status net_control_listen(struct sockaddr_storage *address, int *fd);
/* Begins to connect. The descriptor is kept (base/descriptors.h). */
ddp_status net_control_connect(const struct sockaddr_storage *address, int *fd);
/* Has the kernel give up a peer whose host falls silent for some seconds. */
void net_control_watch(int fd);

/* Sends and receives what can be without waiting. *hung_up: the peer has closed the connection. */
ddp_status net_control_move(int fd, net_handshake *h, bool *hung_up);

/* The last that a receiver says: how many messages it has had. */
typedef struct net_close_notice {
	unsigned char bytes[sizeof(uint64_t)]; /* little-endian */
	size_t had;                            /* of these */
} net_close_notice;

/* After the handshake: tells the peer, if it is there. */
void net_control_notify_close(int fd, uint64_t received);
/* Has the peer told that it received so many? */
bool net_close_notice_tells(const net_close_notice *notice, uint64_t received);

/* After the handshake: is the peer there? `*why` tells why not; `notice` takes what the peer
   said before. */
bool net_control_alive(int fd, net_close_notice *notice, const char **why);
