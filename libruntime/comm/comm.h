/*
 * comm: the library's own view of communicators. The public operations are
 * in ddp.h.
 */
#ifndef DDP_COMM_COMM_H
#define DDP_COMM_COMM_H

#include "ddp.h"
#include "job/job.h"
#include "watch/progress.h"
#include "wireup/wireup.h"

/* Opens the world communicator. Collective. timeout_ms is each operation's
   deadline and that of opening. `job` must outlive it. */
ddp_status ddp_comm_open(const ddp_job *job, ddp_wireup *wireup, int timeout_ms,
                         ddp_comm **comm);
/* From now on operations tell in the rank's progress page that they wait. */
void ddp_comm_set_page(ddp_comm *comm, struct ddp_progress *page);
/* Closes the world communicator; collective unless it has failed. */
void ddp_comm_close(ddp_comm *comm);

/* Has an error ended all its operations, past and to come? */
bool ddp_comm_broken(ddp_comm *comm);

/* ddp_wait() that also tells when the progress thread began and ended work
   on the request, for the trace. The times are written on success only. */
ddp_status ddp_wait_timed(ddp_request *request, uint64_t *start_ns, uint64_t *end_ns);

/* The number of nodes that the ranks are on. */
int ddp_comm_nodes(const ddp_comm *comm);

/*
 * Where all ranks' copies of `memory`, which is of ddp_mem_alloc(), lie in
 * this process: copies[ddp_comm_size()], by rank. DDP_ERR_UNSUPPORTED if the
 * ranks are not on one node, DDP_ERR_INVALID if they do not share it. What
 * others read and write there is for the callers to order, by collectives.
 */
ddp_status ddp_comm_copies(ddp_comm *comm, const void *memory, size_t bytes, void **copies);

size_t ddp_type_bytes(ddp_type type);
const char *ddp_type_name(ddp_type type); /* "f32" */
const char *ddp_op_name(ddp_op op);       /* "sum" */
const char *ddp_kind_name(ddp_kind kind); /* "all_reduce" */
bool ddp_kind_reduces(ddp_kind kind);     /* op and scale matter */
bool ddp_kind_has_root(ddp_kind kind);
/* "all_reduce f32[100] sum" */
void ddp_collective_describe(const ddp_collective *c, char *text, size_t bytes);

#endif
