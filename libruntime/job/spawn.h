/* SPDX-License-Identifier: Apache-2.0 */
/* spawn: what ddp_spawn() leaves behind in each of the ranks that it forked. */
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include "job/job.h"

enum { DDP_SPAWN_MAX = 1024 };

typedef struct ddp_spawned {
	int rank;
	int world_size;
	ddp_key key;
	/* Where the ranks meet: a socket without a name in the file system and
	   without a port. */
	struct sockaddr_un rendezvous;
	socklen_t rendezvous_bytes;
	int listener; /* rank 0's, listening as long as it lives; -1 elsewhere */
} ddp_spawned;

/* NULL if this process is not a rank of ddp_spawn(). */
const ddp_spawned *ddp_spawned_get(void);

/* A descriptor of rank 0's listener, which the caller closes: each world of the process has one.
   -1 and errno if there is none left. */
int ddp_spawned_listener(void);
