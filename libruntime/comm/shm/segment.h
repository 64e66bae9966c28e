/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/segment: memory that the ranks of a node share, above all the control
   segment: a memfd that one of them makes and the others open through
   /proc/PID/fd. It has no name, so nothing is left behind however a process ends.
   (UCX's posix transport does the same; done here, a job on one node needs no UCX.) */
#pragma once

#include <errno.h>

#include "ddp.h"

/* A control segment's size before it is mapped. */
enum { DDP_SEGMENT_START_BYTES = 4096 };

/* A segment that other ranks of the node can open: returns its descriptor,
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
/* Returns the error for a segment of a rank that could not be opened, by errno. A rank that has failed
   since it offered the segment has closed it: that is DDP_ERR_PEER. */
ddp_status ddp_segment_not_opened(const ddp_comm *comm, int rank, int error);

/* Maps the control segment, which any of its ranks makes large enough; fd
   stays open. */
ddp_status ddp_node_map(ddp_comm *comm, int fd);
void ddp_node_unmap(ddp_comm *comm);
