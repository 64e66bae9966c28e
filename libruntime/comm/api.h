/* SPDX-License-Identifier: Apache-2.0 */
/* comm/api: communicators as the rest of the library sees them. The public
   operations are in ddp.h. */
#pragma once

#include "comm/ops/names.h"
#include "comm/request.h"
#include "ddp.h"
#include "job/job.h"
#include "watch/progress.h"
#include "wireup/wireup.h"

struct ddp_device; /* device/device.h */
struct ddp_watch;  /* watch/watch.h */

/* Opens the world communicator. Collective. timeout_ms is each operation's deadline and that of opening. `former`: a
   communicator of this rank with many of the same ranks, which has measured the network between nodes; NULL: none. */
ddp_status ddp_comm_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms, const ddp_comm *former,
                         ddp_comm **comm);
/* From now on operations of the job's communicators tell in the progress page of `watch` that they wait, and are
   recorded in its ring, if it has one. The communicators keep `watch`. */
void ddp_comm_set_watch(ddp_comm *world, struct ddp_watch *watch);
/* Sets the device of DDP_MEMORY_DEVICE of the job's communicators, which keep it. A device whose memory is the host's
   is ignored. */
void ddp_comm_use_device(ddp_comm *comm, struct ddp_device *device);
/* How many CTAs of a GPU its communication may take; 0: as NCCL likes. */
void ddp_comm_limit_ctas(ddp_comm *comm, int max_ctas);
/* The caller has met a failure, and returns nothing: closing the communicator returns it. */
void ddp_comm_leave_failure(ddp_comm *comm);
/* ddp_comm_abort(), by a rank that leaves: its peers hear that it left, and why. False: another rank's failure has
   broken the communicator before. */
bool ddp_comm_fail(ddp_comm *comm, const char *reason);
/* DDP_ERR_STATE in a forked child of the process that opened the communicator. */
ddp_status ddp_comm_check_owner(const ddp_comm *comm, const char *what);

/* Waits for all ranks before the world is closed; for nobody if it has failed. */
ddp_status ddp_comm_await_all(ddp_comm *comm);
/* Closes it; collective unless it has failed. Returns the error of waiting for the other ranks, or a
   failure that the program has not learnt of; everything is released in any case. */
ddp_status ddp_comm_close(ddp_comm *comm);

/* *comm becomes what an option `comm` means: `given`, or `world` where it is NULL. DDP_ERR_INVALID, with
   `function` in its message, if `given` is a communicator of another context. */
ddp_status ddp_comm_choose(ddp_comm *world, ddp_comm *given, const char *function, ddp_comm **comm);

/* Another model is trained on it (1), or one no more (-1): it is not freed meanwhile. */
void ddp_comm_keep(ddp_comm *comm, int change);
int ddp_comm_models(const ddp_comm *comm);

/* The rank in the world of a rank of the communicator. */
int ddp_comm_world_rank(const ddp_comm *comm, int rank);

/* Has an error ended all its operations, past and to come? */
bool ddp_comm_broken(ddp_comm *comm);

/* dead[ddp_comm_local_size(comm)] becomes which ranks of this node are not in `left`, which ddp_comm_shrink() has
   made of `comm`. Waits until their processes have ended, for they could still write to shared memory. DDP_ERR_STATE:
   one does not end in time. Local. */
ddp_status ddp_comm_lost(ddp_comm *comm, const ddp_comm *left, bool *dead);

/* The number of nodes that the ranks are on. */
int ddp_comm_nodes(const ddp_comm *comm);
/* Which of them this rank is on: 0 .. nodes - 1, that of rank 0 first. */
int ddp_comm_node(const ddp_comm *comm);
/* The ranks on this node: how many there are, and which of them, in the order of ranks, this
   one is; and how many there are on the node that has the fewest. */
int ddp_comm_local_size(const ddp_comm *comm);
int ddp_comm_local_rank(const ddp_comm *comm);
int ddp_comm_rank_at(const ddp_comm *comm, int i); /* the rank of the i-th of them */
int ddp_comm_least_local_size(const ddp_comm *comm);

/* Writes where the copies of `memory` that the ranks of this node have lie in this process:
   copies[ddp_comm_local_size()], in the order of ranks. `memory` is of ddp_mem_alloc(). DDP_ERR_INVALID: the ranks
   do not share it. The callers order by collectives what they read and write there. */
ddp_status ddp_comm_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);
