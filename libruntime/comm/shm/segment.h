/* SPDX-License-Identifier: Apache-2.0 */
/* comm/shm/segment: the control segment, which the ranks of a node share above all. */
#pragma once

#include "base/segment.h"

/* A control segment's size before it is mapped. */
enum { DDP_SEGMENT_START_BYTES = 4096 };

/* Returns the error for a segment of a rank that could not be opened, by errno. A rank that has failed
   since it offered the segment has closed it: that is DDP_ERR_PEER. */
ddp_status ddp_segment_not_opened(const ddp_comm *comm, int rank, int error);

/* Maps the control segment, which any of its ranks makes large enough; fd
   stays open. */
ddp_status ddp_node_map(ddp_comm *comm, int fd);
void ddp_node_unmap(ddp_comm *comm);
