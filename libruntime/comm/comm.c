/* The public calls, and what is checked before an operation runs. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "comm/await.h"
#include "comm/blocks.h"
#include "comm/execute.h"
#include "comm/inter.h"
#include "comm/node.h"
#include "comm/node_run.h"
#include "comm/pairs.h"

void ddp_comm_set_page(ddp_comm *comm, struct ddp_progress *page)
{
	pthread_mutex_lock(&comm->run_lock);
	comm->roster->page = page;
	pthread_mutex_unlock(&comm->run_lock);
}

int ddp_comm_rank(const ddp_comm *comm)
{
	return comm->rank;
}

int ddp_comm_size(const ddp_comm *comm)
{
	return comm->size;
}

int ddp_comm_nodes(const ddp_comm *comm)
{
	return comm->nodes;
}

/* ---- checks -------------------------------------------------------------------- */

static bool takes_counts(ddp_kind kind)
{
	return kind == DDP_REDUCE_SCATTER || kind == DDP_ALL_GATHER || kind == DDP_GATHER ||
	       kind == DDP_SCATTER || kind == DDP_ALL_TO_ALL;
}

static bool is_integer(ddp_type type)
{
	return type == DDP_I32 || type == DDP_I64 || type == DDP_U8;
}

static ddp_status invalid(const ddp_collective *c, const char *why)
{
	return ddp_fail(DDP_ERR_INVALID, "%s: %s", ddp_kind_name(c->kind), why);
}

/* Sums of counts must not overflow, also not in bytes. */
static bool count_fits(const ddp_comm *comm, const size_t *counts, size_t count, size_t element)
{
	size_t limit = SIZE_MAX / 4, sum = 0;

	if (counts == NULL)
		return !__builtin_mul_overflow(count, element * (size_t)comm->size, &sum) && sum <= limit;
	limit /= element;
	for (int r = 0; r < comm->size; r++) {
		if (counts[r] > limit - sum)
			return false;
		sum += counts[r];
	}
	return true;
}

static ddp_status check_shape(const ddp_comm *comm, const ddp_collective *c)
{
	size_t element = ddp_type_bytes(c->type);

	if ((unsigned int)c->kind > DDP_BARRIER)
		return invalid(c, "no such kind");
	if (c->kind == DDP_BARRIER)
		return DDP_OK;
	if (element == 0)
		return invalid(c, "no such type");
	if (ddp_kind_reduces(c->kind) && (unsigned int)c->op > DDP_MAX)
		return invalid(c, "no such op");
	if (c->scale != 0 && !c->scaled)
		return invalid(c, "a scale is given, but `scaled` is false");
	if (ddp_kind_reduces(c->kind) && !isfinite(c->scale) && is_integer(c->type))
		return invalid(c, "the scale of integers must be finite");
	if ((c->counts != NULL || c->recv_counts != NULL) && !takes_counts(c->kind))
		return invalid(c, "has no v-form, counts must be NULL");
	if (c->kind == DDP_ALL_TO_ALL && (c->counts == NULL) != (c->recv_counts == NULL))
		return invalid(c, "counts and recv_counts go together");
	if (!count_fits(comm, c->counts, c->count, element) ||
	    (c->recv_counts != NULL && !count_fits(comm, c->recv_counts, c->count, element)))
		return invalid(c, "the counts are too large");
	if (c->kind == DDP_ALL_TO_ALL && c->counts != NULL &&
	    c->counts[comm->rank] != c->recv_counts[comm->rank])
		return invalid(c, "counts and recv_counts differ in what this rank gives itself");
	if ((ddp_kind_has_root(c->kind) || c->kind == DDP_SEND || c->kind == DDP_RECV) &&
	    (c->root < 0 || c->root >= comm->size))
		return ddp_fail(DDP_ERR_INVALID, "%s: rank %d is not among the communicator's %d",
		                ddp_kind_name(c->kind), c->root, comm->size);
	if ((c->kind == DDP_SEND || c->kind == DDP_RECV) && (c->tag < 0 || c->tag > 65535))
		return invalid(c, "the tag must be in 0 .. 65535");
	if (c->kind == DDP_ALL_TO_ALL && c->counts != NULL && (c->send == NULL || c->send == c->recv))
		return invalid(c, "the v-form does not work in place");
	return DDP_OK;
}

/* Where the input lies that `send` NULL leaves in `recv`. */
static const void *input_of(const ddp_comm *comm, const ddp_collective *c)
{
	size_t offset = 0;

	if (c->send != NULL || c->recv == NULL)
		return c->send;
	if (c->kind == DDP_ALL_GATHER || (c->kind == DDP_GATHER && c->root == comm->rank))
		offset = ddp_block_offset(c, comm->rank) * ddp_type_bytes(c->type);
	return (const char *)c->recv + offset;
}

static ddp_status check_buffers(const ddp_comm *comm, const ddp_collective *c)
{
	bool root = c->root == comm->rank;
	size_t mine = ddp_block_count(c, comm->rank), all = ddp_block_offset(c, comm->size);
	size_t send = mine, recv = mine;

	switch (c->kind) {
	case DDP_BARRIER: return DDP_OK;
	case DDP_REDUCE: recv = root ? mine : 0; break;
	case DDP_BROADCAST: send = 0; break;
	case DDP_REDUCE_SCATTER: send = all; break;
	case DDP_ALL_GATHER: recv = all; break;
	case DDP_GATHER: recv = root ? all : 0; break;
	case DDP_SCATTER: send = root ? all : 0; recv = root ? 0 : mine; break;
	case DDP_ALL_TO_ALL: send = all; recv = ddp_recv_offset(c, comm->size); break;
	case DDP_SEND: recv = 0; break;
	case DDP_RECV: send = 0; break;
	default: break;
	}
	if (send > 0 && c->send == NULL)
		return invalid(c, "send is NULL");
	if (recv > 0 && c->recv == NULL)
		return invalid(c, "recv is NULL");
	return DDP_OK;
}

ddp_status ddp_collective_complete(const ddp_comm *comm, const ddp_collective *given,
                                   ddp_collective *c)
{
	ddp_status status = check_shape(comm, given);

	if (status != DDP_OK)
		return status;
	*c = *given;
	if (c->kind == DDP_BARRIER)
		return DDP_OK;
	if (c->counts != NULL)
		c->count = 0;
	if (!c->scaled)
		c->scale = 1;
	c->send = input_of(comm, given);
	return check_buffers(comm, c);
}

/* ---- running --------------------------------------------------------------------- */

static ddp_status run_on_node(ddp_comm *comm, const ddp_collective *c)
{
	const ddp_entry nothing = { .payload = NULL };

	if (c->kind == DDP_BARRIER)
		return ddp_node_enter(comm, c, &nothing);
	return ddp_kind_reduces(c->kind) ? ddp_node_reduction(comm, c) : ddp_node_copy(comm, c);
}

static ddp_status run_between_nodes(ddp_comm *comm, const ddp_collective *c)
{
	if (c->kind == DDP_BARRIER)
		return ddp_inter_barrier(comm, c);
	if (c->kind == DDP_ALL_GATHER)
		return ddp_inter_all_gather(comm, c);
	return ddp_kind_reduces(c->kind) ? ddp_inter_reduction(comm, c) : ddp_node_copy(comm, c);
}

ddp_status ddp_execute(ddp_comm *comm, const ddp_collective *c)
{
	ddp_status status = ddp_comm_check(comm);

	/* Operations may follow each other so fast that none of them waits for long
	   enough to look after these. */
	if (status == DDP_OK)
		status = ddp_pairs_check(comm);
	if (status == DDP_OK && comm->net != NULL &&
	    (status = ddp_net_check(comm, DDP_NOBODY)) != DDP_OK)
		status = ddp_inter_give_up(comm, status);
	if (status != DDP_OK)
		return status;
	comm->sequence++;
	comm->running = c;
	comm->deadline_ns = 0;
	if (comm->is_world)
		ddp_page_collective(comm->roster->page, comm->sequence);
	status = comm->nodes == 1 ? run_on_node(comm, c) : run_between_nodes(comm, c);
	ddp_comm_tell_end(comm);
	return status;
}

bool ddp_comm_broken(ddp_comm *comm)
{
	return ddp_comm_check(comm) != DDP_OK;
}

ddp_status ddp_comm_abort(ddp_comm *comm, const char *reason)
{
	if (comm == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_comm_abort(): comm is NULL");
	ddp_comm_break(comm, DDP_ERR_ABORTED, comm->rank, "%s aborted: %s",
	               ddp_rank_text(comm, comm->rank), reason != NULL ? reason : "no reason given");
	return DDP_OK;
}

/* ---- one call per kind -------------------------------------------------------------- */

ddp_status ddp_all_reduce(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type, ddp_op op)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op });
}

ddp_status ddp_reduce(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                      ddp_op op, int root)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_REDUCE, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op, .root = root });
}

ddp_status ddp_broadcast(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int root)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_BROADCAST, .recv = buffer, .count = count,
	                                        .type = type, .root = root });
}

ddp_status ddp_reduce_scatter(ddp_comm *comm, const void *send, void *recv, size_t count,
                              ddp_type type, ddp_op op)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_REDUCE_SCATTER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .op = op });
}

ddp_status ddp_all_gather(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_ALL_GATHER, .send = send, .recv = recv,
	                                        .count = count, .type = type });
}

ddp_status ddp_gather(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                      int root)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_GATHER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .root = root });
}

ddp_status ddp_scatter(ddp_comm *comm, const void *send, void *recv, size_t count, ddp_type type,
                       int root)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_SCATTER, .send = send, .recv = recv,
	                                        .count = count, .type = type, .root = root });
}

ddp_status ddp_all_to_all(ddp_comm *comm, const void *send, void *recv, size_t count,
                          ddp_type type)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_ALL_TO_ALL, .send = send, .recv = recv,
	                                        .count = count, .type = type });
}

ddp_status ddp_send(ddp_comm *comm, const void *buffer, size_t count, ddp_type type, int peer,
                    int tag)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_SEND, .send = buffer, .count = count,
	                                        .type = type, .root = peer, .tag = tag });
}

ddp_status ddp_recv(ddp_comm *comm, void *buffer, size_t count, ddp_type type, int peer, int tag)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_RECV, .recv = buffer, .count = count,
	                                        .type = type, .root = peer, .tag = tag });
}

ddp_status ddp_barrier(ddp_comm *comm)
{
	return ddp_run(comm, &(ddp_collective){ .kind = DDP_BARRIER });
}
