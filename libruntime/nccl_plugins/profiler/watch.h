/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/profiler/watch: keeps this rank's progress page for a program that uses NCCL, not
   libddp: which operation it waits for, or which was the last. An operation is under
   way from its call until its kernel has ended on each of its channels, or a later one
   of its communicator has. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddp_nccl_comm ddp_nccl_comm;

/* NCCL tells this of an operation; the texts are constants of NCCL's. */
typedef struct ddp_nccl_call {
	const char *function; /* "AllReduce" */
	const char *type;     /* "ncclFloat32" */
	size_t count;
	int peer;             /* of send and recv; -1: a collective */
	int channels;
	int root;             /* of collectives that have one */
} ddp_nccl_call;

/* Is there a page to write to? Not if the plugin gave none, and not if libddp writes it:
   such a program describes itself. */
bool ddp_nccl_watch_open(void);
/* A communicator of so many ranks, with a number that all of them have for it; NULL: no memory. The first of all
   ranks is the one whose operations have numbers in the page. */
ddp_nccl_comm *ddp_nccl_watch_comm(int ranks, uint64_t id);
void ddp_nccl_watch_comm_end(ddp_nccl_comm *comm);

/* An operation was called: its handle, which lasts for the next 4095 of `comm`. */
void *ddp_nccl_watch_call(ddp_nccl_comm *comm, const ddp_nccl_call *call);
/* Its kernel runs on a channel: the handle of that; and has ended there. A CUDA graph
   that is launched again begins an operation again. */
void *ddp_nccl_watch_kernel(void *call_handle);
/* Either handle is used no more. */
void ddp_nccl_watch_stop(void *handle);
