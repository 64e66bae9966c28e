/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/listener: the listening TCP sockets of UCX. UCX takes whoever connects there for a peer whom it may trust,
   so a guard checks who connects (comm/net/guard), and the kernel is asked to drop what comes from elsewhere: from
   everybody before the ranks know each other, from all but the job's hosts while they connect, and from everybody
   again when all are connected. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "ddp.h"

enum { DDP_LISTENERS_MAX = 16, DDP_HOST_PLACES_MAX = 32 };

/* An internet address and a TCP port, both in network order. */
typedef struct ddp_place {
	uint16_t family; /* AF_INET: the first four bytes of address count; AF_INET6 */
	uint16_t port;
	unsigned char address[16];
} ddp_place;

/* False: the address is of another family. */
bool ddp_place_of(const struct sockaddr *address, ddp_place *place);
/* The two ends of a TCP socket; the far one's family is 0 if there is none. */
bool ddp_socket_places(int fd, ddp_place *near, ddp_place *far);
/* Does the socket listen, and where? */
bool ddp_socket_listens(int fd, ddp_place *place);

typedef struct ddp_listeners {
	int count;
	int fds[DDP_LISTENERS_MAX];
	ddp_place places[DDP_LISTENERS_MAX];
} ddp_listeners;

/* The process listens at these places. */
typedef struct ddp_listening {
	int count, room, error; /* error: an errno; the list is not complete */
	ddp_place *places;      /* the caller frees them */
} ddp_listening;

void ddp_listeners_list(ddp_listening *all);
/* The process's listening sockets that are not among `before` and whose port `address`
   holds. 0, or an errno: they are not known, or more than DDP_LISTENERS_MAX. */
int ddp_listeners_find(ddp_listeners *listeners, const ddp_listening *before, const void *address, size_t bytes);

/* Drops what comes to the listeners. Established connections are not touched. 0, or an
   errno: the kernel takes no filter, which some keep from ordinary users. */
int ddp_listeners_shut(const ddp_listeners *listeners);
/* Closes the listening sockets, for as long as the process runs; UCX keeps their descriptors. 0, or an errno. */
int ddp_listeners_end(const ddp_listeners *listeners);
/* Lets in who comes from one of these addresses; ports do not count. Of so many that the filter would be too long,
   only the first bits[0] of IPv4's and bits[1] of IPv6's count. 0, or an errno: listeners are as they were before. */
int ddp_listeners_admit(const ddp_listeners *listeners, const ddp_place *hosts, int count, int bits[2]);

/* The addresses of this host's interfaces; at most DDP_HOST_PLACES_MAX. */
int ddp_host_places(ddp_place *places);

/* Does this process wait for connections that it began? */
bool ddp_sockets_connecting(void);

/* Sockets that a child inherited would hide this process's death from its peers. Those between `listeners` or from
   here to `peers` do not outlive exec() from now on; and those of all nets that were announced are closed in children
   that fork() makes. `listeners` and `peers` stay in place until withdrawn. */
void ddp_sockets_close_on_exec(const ddp_listeners *listeners, const ddp_place *peers, int count);

typedef struct ddp_own_sockets {
	struct ddp_own_sockets *next;
	const ddp_listeners *listeners;
	const ddp_place *peers;
	int peer_count;
} ddp_own_sockets;

void ddp_fork_announce(ddp_own_sockets *own_sockets);
void ddp_fork_withdraw(ddp_own_sockets *own_sockets);
