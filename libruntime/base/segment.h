/* SPDX-License-Identifier: Apache-2.0 */
/* segment: memory that processes of a node share: a memfd that one of them makes and the others open through
   /proc/PID/fd. It has no name, so nothing is left behind however a process ends.
   (UCX's posix transport does the same; done here, a job on one node needs no UCX.) */
#pragma once

#include <errno.h>

#include "ddp.h"

/* A segment that other processes of the node can open: returns its descriptor,
   or -1 with errno. `bytes` may be sparse. */
int ddp_segment_create(size_t bytes);
/* Returns the end of a message about this errno. */
static inline const char *ddp_segment_remedy(int error)
{
	return error == EMFILE ? " (raise ulimit -n)" : error == EFBIG ? " (raise ulimit -f)" : "";
}

/* Opens a peer's segment, which nobody can cut; -1 with errno: ENOENT or, where its
   descriptor is another file's by now, ESTALE if the peer has closed it. */
int ddp_segment_open(int64_t pid, int fd);

enum { DDP_SEGMENT_NONCE_BYTES = 16 };

/* Where a process has a segment that begins with a nonce. Processes whose localities differ are on different nodes. */
typedef struct ddp_segment_offer {
	uint64_t locality;
	int64_t pid;
	int32_t fd, unused;
	unsigned char nonce[DDP_SEGMENT_NONCE_BYTES];
} ddp_segment_offer;

/* Makes such a segment of this process: returns its descriptor, or -1 with errno. */
int ddp_segment_make_offer(size_t bytes, ddp_segment_offer *offer);
/* Opens the segment of another process, if it is the one that was offered: returns the descriptor, or -1 with errno. */
int ddp_segment_take_offer(const ddp_segment_offer *offer);

enum { DDP_BOOT_ID_MAX = 40 };

/* Tells machines apart; "" where it is not known. */
void ddp_boot_id(char id[DDP_BOOT_ID_MAX]);
