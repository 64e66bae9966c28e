#include "comm/hier/tune.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/hier/recursive_doubling.h"
#include "comm/hier/slices.h"
#include "comm/shm/node.h"
#include "comm/shm/stage.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	BATCHES = 3,            /* the best counts; one more, before, does not: it warms up, and
	                           empties the bucket of a limited link */
	PINGS = 8,              /* exchanges in a batch */
	BURST = 32,             /* small messages behind each other */
	LARGE_BYTES = 1 << 20,  /* of a node, shared by its ranks, */
	LEAST_BYTES = 512 * 1024, /* of each at least so much */
	/* A message of the smaller size, with its envelope, is a single packet of
	   UCX over sockets, which is received without being put together first. */
	CHUNK_BYTES = 60 * 1024,
	LARGE_CHUNK_BYTES = 256 * 1024,
	/* What goes with a message on the wire: its own time is at least that. */
	HEADER_BYTES = 256,
	MESSAGES = LARGE_BYTES / CHUNK_BYTES + 1,
	TAGS = 0xfff000         /* beyond those of any operation's first chunks */
};

/* ---- measuring -------------------------------------------------------------------------------- */

/* What it takes, on the slowest node. */
enum { EXCHANGE, BURSTS, FINE, COARSE, FIGURES };

/* Each node sends to the next one, and hears from the one before, all at once, as in the
   collectives: what two nodes could do alone is not what all can. */
typedef struct trial {
	ddp_comm *comm;
	int next, before;       /* ranks */
	size_t bytes;           /* of large transfers, which the buffers hold */
	char *out, *in;
	ddp_transfer *transfers; /* [2 * MESSAGES or BURST] */
	uint32_t tag;
} trial;

/* `bytes` each way, in messages of `each` bytes. */
static ddp_status exchange(trial *t, size_t bytes, size_t each)
{
	ddp_status status = DDP_OK;
	int count = 0;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += each) {
		const size_t now = bytes - at < each ? bytes - at : each;
		const uint64_t tag = ddp_message_tag(t->comm, t->tag++);
		ddp_message_recv(t->comm, t->before, tag, t->in + at, now, &t->transfers[count++]);
		status = ddp_message_send(t->comm, t->next, tag, t->out + at, now, &t->transfers[count++]);
	}
	return status == DDP_OK ? ddp_await_transfers(t->comm, t->transfers, count) : status;
}

/* Of an exchange; on the average of a batch, since who is late finds its message there. */
static ddp_status shortest(trial *t, int exchanges, size_t bytes, size_t each, double *seconds)
{
	ddp_status status = DDP_OK;

	*seconds = 1e9;
	for (int batch = 0; batch <= BATCHES && status == DDP_OK; batch++) {
		const uint64_t start = ddp_now_ns();
		for (int i = 0; i < exchanges && status == DDP_OK; i++)
			status = exchange(t, bytes, each);
		const double now = ddp_seconds_since(start) / exchanges;
		if (batch > 0 && now < *seconds)
			*seconds = now;
	}
	return status;
}

static ddp_status measure(ddp_comm *comm, size_t bytes, double *figures)
{
	const int node = comm->topology.node_of[comm->rank], nodes = comm->topology.nodes;
	const int self = comm->node.self;
	const size_t transfers = 2 * (size_t)(MESSAGES > BURST ? MESSAGES : BURST);
	trial t = { .comm = comm, .next = ddp_channel_rank(comm, (node + 1) % nodes, self),
	            .before = ddp_channel_rank(comm, (node + nodes - 1) % nodes, self), .bytes = bytes,
	            .out = calloc(2, bytes), .transfers = calloc(transfers, sizeof(ddp_transfer)), .tag = TAGS };
	ddp_status status = DDP_OK;

	if (t.out == NULL || t.transfers == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "out of memory");
	} else {
		t.in = t.out + bytes;
		status = shortest(&t, PINGS, 8, 8, &figures[EXCHANGE]);
		if (status == DDP_OK)
			status = shortest(&t, 1, (size_t)8 * BURST, 8, &figures[BURSTS]);
		if (status == DDP_OK)
			status = shortest(&t, 1, bytes, CHUNK_BYTES, &figures[FINE]);
		if (status == DDP_OK)
			status = shortest(&t, 1, bytes, LARGE_CHUNK_BYTES, &figures[COARSE]);
	}
	/* Nothing is under way in them after an error, either. */
	if (status != DDP_OK)
		status = ddp_message_give_up(comm, status);
	free(t.out);
	free(t.transfers);
	return status;
}

static double positive(double x)
{
	return x > 0 ? x : 0;
}

/* `bytes` were sent by each of the channels. */
static void set_link(ddp_link *link, const double *figures, size_t bytes, int channels)
{
	const bool coarse = figures[COARSE] < 0.9 * figures[FINE];
	const size_t chunk = coarse ? LARGE_CHUNK_BYTES : CHUNK_BYTES;
	const double messages = (double)((bytes + chunk - 1) / chunk);

	link->measured = true;
	link->chunk_bytes = chunk;
	link->message_seconds = positive(figures[BURSTS] - figures[EXCHANGE]) / (BURST - 1);
	link->latency_seconds = positive(figures[EXCHANGE] - link->message_seconds);
	link->byte_seconds = positive(figures[coarse ? COARSE : FINE] - link->latency_seconds -
	                              messages * link->message_seconds) / ((double)bytes * channels);
	if (link->message_seconds < HEADER_BYTES * link->byte_seconds)
		link->message_seconds = HEADER_BYTES * link->byte_seconds;
}

/* The slowest of a node's ranks, then of all nodes. The figures of each rank pass
   through its slot; those of all come in that of the first. */
static ddp_status agree_on_figures(ddp_comm *comm, double *figures)
{
	const size_t bytes = FIGURES * sizeof(*figures);
	char *first = ddp_result_slot(comm, 0, 0);
	double theirs[FIGURES];
	ddp_status status;

	memcpy(ddp_result_slot(comm, comm->node.self, 0), figures, bytes);
	if ((status = ddp_node_step(comm)) != DDP_OK)
		return status;
	if (comm->node.self == 0) {
		for (int i = 1; i < comm->topology.channels; i++) {
			memcpy(theirs, ddp_result_slot(comm, i, 0), bytes);
			for (int f = 0; f < FIGURES; f++)
				figures[f] = theirs[f] > figures[f] ? theirs[f] : figures[f];
		}
		status = ddp_recursive_doubling_of(comm, DDP_F64, DDP_MAX, figures, theirs, FIGURES, TAGS - 256);
		if (status != DDP_OK)
			return ddp_message_give_up(comm, status);
		memcpy(first, figures, bytes);
	}
	if ((status = ddp_node_step(comm)) != DDP_OK)
		return status;
	memcpy(figures, first, bytes);
	/* The operation may use the slots now. */
	return ddp_node_step(comm);
}

ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes)
{
	const int channels = comm->topology.channels;
	const size_t share = LARGE_BYTES / (size_t)channels, each = share > LEAST_BYTES ? share : LEAST_BYTES;
	ddp_link *link = &comm->hier.link;
	double figures[FIGURES] = { 0 };
	ddp_status status = DDP_OK;

	/* With two nodes, a small operation has nothing to choose. */
	if (link->measured || (comm->topology.nodes == 2 && bytes <= DDP_SMALL_BYTES)) {
		if (!link->measured)
			link->chunk_bytes = CHUNK_BYTES;
		return DDP_OK;
	}
	if (comm->node.self < channels)
		status = measure(comm, each, figures);
	if (status == DDP_OK)
		status = agree_on_figures(comm, figures);
	if (status != DDP_OK)
		return status;
	set_link(link, figures, each, channels);
	ddp_log(DDP_LOG_INFO, "between nodes: %.1f us, %.2f us a message, %.2f GB/s, messages of %zu KiB",
	        link->latency_seconds * 1e6, link->message_seconds * 1e6,
	        link->byte_seconds > 0 ? 1e-9 / link->byte_seconds : 0, link->chunk_bytes / 1024);
	return DDP_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------- */

/* Those that are possible. */
static unsigned int candidates(const ddp_reduction *x)
{
	if (x->c->kind == DDP_REDUCE_SCATTER)
		return 1u << DDP_SCATTER_GATHER;
	if (x->c->kind == DDP_REDUCE)
		return 1u << DDP_DIRECT | (x->small ? 0 : 1u << DDP_SCATTER_GATHER);
	return ddp_cost_candidates(x->small);
}

ddp_algorithm ddp_hier_choose(const ddp_reduction *x)
{
	const char *wanted = getenv("DDP_ALGORITHM");
	const unsigned int possible = candidates(x);
	const ddp_shape shape = ddp_shape_of(x);

	if (wanted != NULL && x->nodes > 2 && (possible >> ddp_algorithm_named(wanted) & 1) != 0)
		return ddp_algorithm_named(wanted);
	return ddp_cost_cheapest(&x->comm->hier.link, &shape, possible);
}
