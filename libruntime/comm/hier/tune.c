/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/hier/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/hier/algorithms.h"
#include "comm/hier/slices.h"
#include "comm/shm/memory.h"
#include "comm/shm/node.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

enum {
	/* The slowest rank of a batch counts, because a rank that comes late finds its messages there. The
	   fastest batch counts, because in some of them all ranks have a core. One more batch comes first and
	   does not count. It warms up, and empties the bucket of a limited link. */
	BATCHES = 4, PING_BATCHES = 8, /* of large transfers, of small messages */
	PINGS = 4,              /* exchanges in a batch */
	BURST = 32,             /* small messages behind each other */
	LARGE_BYTES = 1 << 20,  /* of a node, shared by its ranks, */
	LEAST_BYTES = 512 * 1024, /* of each at least so much */
	/* A message of the smaller size, with its envelope, is a single packet of
	   UCX over sockets, which is received without being put together first. */
	CHUNK_BYTES = 60 * 1024,
	LARGE_CHUNK_BYTES = 256 * 1024,
	/* So many bytes go with a message on the wire. A message takes at least their time. */
	HEADER_BYTES = 256,
	MESSAGES = LARGE_BYTES / CHUNK_BYTES + 1,
	TAGS = 0xfff000         /* beyond those of any operation's first chunks */
};

/* ---- measuring -------------------------------------------------------------------------------- */

/* Seconds of each batch. */
enum { EXCHANGE, BURSTS, FINE, COARSE, KINDS };
typedef double figures[KINDS][PING_BATCHES];

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

/* An exchange, on the average of a batch; of each batch. */
static ddp_status repeat(trial *t, int batches, int exchanges, size_t bytes, size_t each, double *seconds)
{
	ddp_status status = DDP_OK;

	for (int batch = 0; batch <= batches && status == DDP_OK; batch++) {
		const uint64_t start = ddp_now_ns();
		for (int i = 0; i < exchanges && status == DDP_OK; i++)
			status = exchange(t, bytes, each);
		if (batch > 0)
			seconds[batch - 1] = ddp_seconds_since(start) / exchanges;
	}
	return status;
}

static ddp_status measure(ddp_comm *comm, size_t bytes, figures seconds)
{
	const int node = comm->topology.node_of[comm->rank], nodes = comm->topology.nodes;
	const int self = comm->node.self;
	const size_t transfers = 2 * (size_t)(MESSAGES > BURST ? MESSAGES : BURST);
	trial t = { .comm = comm, .next = ddp_channel_rank(comm, (node + 1) % nodes, self),
	            .before = ddp_channel_rank(comm, (node + nodes - 1) % nodes, self), .bytes = bytes,
	            .out = calloc(2, bytes), .transfers = calloc(transfers, sizeof(ddp_transfer)), .tag = TAGS };
	ddp_status status = DDP_OK;

	if (t.out == NULL || t.transfers == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "no memory to measure the network with messages of %zu bytes",
		                  bytes);
	} else {
		t.in = t.out + bytes;
		status = repeat(&t, PING_BATCHES, PINGS, 8, 8, seconds[EXCHANGE]);
		if (status == DDP_OK)
			status = repeat(&t, PING_BATCHES, 1, (size_t)8 * BURST, 8, seconds[BURSTS]);
		if (status == DDP_OK)
			status = repeat(&t, BATCHES, 1, bytes, CHUNK_BYTES, seconds[FINE]);
		if (status == DDP_OK)
			status = repeat(&t, BATCHES, 1, bytes, LARGE_CHUNK_BYTES, seconds[COARSE]);
	}
	/* Nothing is under way in them after an error, either. */
	if (status != DDP_OK)
		status = ddp_message_give_up(comm, status);
	free(t.out);
	free(t.transfers);
	return status;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static double shortest(const double *seconds, int batches)
{
	double least = seconds[0];

	for (int i = 1; i < batches; i++)
		least = seconds[i] < least ? seconds[i] : least;
	return least;
}

/* `bytes` were sent by each of the channels. However late messages were where processes had
   no core: a link without a rate would be one that takes everything from everybody. */
static void set_link(ddp_link *link, figures seconds, size_t bytes, int channels)
{
	const double exchange = shortest(seconds[EXCHANGE], PING_BATCHES);
	const double burst = shortest(seconds[BURSTS], PING_BATCHES), fine = shortest(seconds[FINE], BATCHES);
	const bool coarse = shortest(seconds[COARSE], BATCHES) < 0.9 * fine;
	const size_t chunk = coarse ? LARGE_CHUNK_BYTES : CHUNK_BYTES;
	const double large = coarse ? shortest(seconds[COARSE], BATCHES) : fine;
	const double messages = (double)((bytes + chunk - 1) / chunk);
	/* An exchange holds that of its sender and of its receiver. */
	const double own = larger(burst - exchange, 0) / (BURST - 1);
	const double message = own < exchange / 2 ? own : exchange / 2;
	const double latency = larger(exchange - message, 0);

	link->measured = true;
	link->chunk_bytes = chunk;
	link->latency_seconds = latency;
	link->byte_seconds = larger(large - latency - messages * message, large / 4) / ((double)bytes * channels);
	link->message_seconds = larger(message, HEADER_BYTES * link->byte_seconds);
}

/* The slowest of a node's ranks, then of all nodes. The figures of each rank pass
   through its slot; those of all come in that of the first. */
static ddp_status agree_on(ddp_comm *comm, figures mine)
{
	enum { COUNT = KINDS * PING_BATCHES };
	const size_t bytes = sizeof(figures);
	char *first = ddp_result_slot(comm, 0, 0);
	figures theirs;
	ddp_status status;

	memcpy(ddp_result_slot(comm, comm->node.self, 0), mine, bytes);
	if ((status = ddp_node_step(comm)) != DDP_OK)
		return status;
	if (comm->node.self == 0) {
		for (int i = 1; i < comm->topology.channels; i++) {
			memcpy(theirs, ddp_result_slot(comm, i, 0), bytes);
			for (int f = 0; f < COUNT; f++) {
				const int kind = f / PING_BATCHES, batch = f % PING_BATCHES;
				mine[kind][batch] = larger(mine[kind][batch], theirs[kind][batch]);
			}
		}
		status = ddp_recursive_doubling_of(comm, DDP_F64, DDP_MAX, mine, theirs, COUNT, TAGS - 256);
		if (status != DDP_OK)
			return ddp_message_give_up(comm, status);
		memcpy(first, mine, bytes);
	}
	if ((status = ddp_node_step(comm)) != DDP_OK)
		return status;
	memcpy(mine, first, bytes);
	/* The operation may use the slots now. */
	return ddp_node_step(comm);
}

ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes)
{
	const int channels = comm->topology.channels;
	const size_t share = LARGE_BYTES / (size_t)channels, each = share > LEAST_BYTES ? share : LEAST_BYTES;
	ddp_link *link = &comm->hier.link;
	figures seconds = { { 0 } };
	ddp_status status = DDP_OK;

	/* With two nodes, a small operation has nothing to choose. */
	if (link->measured || (comm->topology.nodes == 2 && bytes <= DDP_SMALL_BYTES)) {
		if (!link->measured)
			link->chunk_bytes = CHUNK_BYTES;
		return DDP_OK;
	}
	if (comm->node.self < channels)
		status = measure(comm, each, seconds);
	if (status == DDP_OK)
		status = agree_on(comm, seconds);
	if (status != DDP_OK)
		return status;
	set_link(link, seconds, each, channels);
	ddp_log(DDP_LOG_INFO, "between nodes: %.1f us, %.2f us a message, %.2f GB/s, messages of %zu KiB",
	        link->latency_seconds * 1e6, link->message_seconds * 1e6,
	        link->byte_seconds > 0 ? 1e-9 / link->byte_seconds : 0, link->chunk_bytes / 1024);
	return DDP_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------- */

static void name_algorithms(unsigned int set, char *text, size_t bytes)
{
	size_t used = 0;

	text[0] = '\0';
	for (ddp_algorithm i = 0; i < DDP_ALGORITHMS; i++) {
		if ((set >> i & 1) != 0 && used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
			                         ddp_algorithm_of(i)->name);
	}
}

static ddp_status want(ddp_wanted_list *wanted, const char *list, const char *name, size_t length)
{
	char word[32], choices[128];

	snprintf(word, sizeof(word), "%.*s", (int)length, name);
	const ddp_algorithm algorithm = ddp_algorithm_named(word);
	if (algorithm == DDP_ALGORITHMS || wanted->count == DDP_WANTED_MAX) {
		name_algorithms((1u << DDP_ALGORITHMS) - 1, choices, sizeof(choices));
		return ddp_fail(DDP_ERR_INVALID, "DDP_ALGORITHM is \"%.80s\": it must be one of %s, or several of them "
		                "with commas between, of which each operation takes the first that it can", list, choices);
	}
	wanted->order[wanted->count++] = (int)algorithm;
	return DDP_OK;
}

ddp_status ddp_hier_want(const char *list, ddp_wanted_list *wanted)
{
	ddp_status status = DDP_OK;

	wanted->count = 0;
	for (const char *at = list; *at != '\0' && status == DDP_OK;) {
		const size_t length = strcspn(at, ",");
		status = want(wanted, list, at, length);
		at += length;
		/* A name must follow a comma. Otherwise the empty name is refused. */
		if (*at == ',' && *++at == '\0' && status == DDP_OK)
			status = want(wanted, list, at, 0);
	}
	return status;
}

/* Between two nodes an operation has nothing to choose. */
static unsigned int candidates_of(const ddp_reduction *x)
{
	const unsigned int all = ddp_algorithm_candidates(x->c->kind, x->small);

	return x->nodes == 2 ? all & -all : all;
}

static ddp_status choose_wanted(const ddp_reduction *x, ddp_algorithm *chosen)
{
	const ddp_wanted_list *wanted = &x->comm->roster->wanted;
	const unsigned int possible = candidates_of(x);
	char choices[128];

	for (int i = 0; i < wanted->count; i++) {
		*chosen = (ddp_algorithm)wanted->order[i];
		if ((possible >> *chosen & 1) != 0)
			return DDP_OK;
	}
	name_algorithms(possible, choices, sizeof(choices));
	return ddp_fail(DDP_ERR_INVALID, "%s of %zu bytes between %d nodes cannot be done by what DDP_ALGORITHM names: "
	                "add one that can to it, with a comma (%s)", ddp_kind_name(x->c->kind),
	                x->total * x->element, x->nodes, choices);
}

ddp_status ddp_hier_choose(const ddp_reduction *x, const ddp_algorithm_row **algorithm)
{
	const ddp_shape shape = ddp_shape_of(x);
	ddp_algorithm chosen = DDP_DIRECT;

	if (x->comm->roster->wanted.count == 0)
		chosen = ddp_algorithm_cheapest(&x->comm->hier.link, &shape, candidates_of(x));
	else if (choose_wanted(x, &chosen) != DDP_OK)
		return DDP_ERR_INVALID;
	*algorithm = ddp_algorithm_of(chosen);
	atomic_store_explicit(&x->comm->hier.ran, (*algorithm)->name, memory_order_relaxed);
	return DDP_OK;
}
