#include "comm/hier/recursive_halving.h"

#include <string.h>

#include "comm/hier/cost.h"
#include "comm/hier/local.h"
#include "comm/hier/plan.h"
#include "comm/hier/slices.h"
#include "comm/hier/store.h"
#include "comm/ops/combine_nodes.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"

/* The slice of this rank's channel, of whose chunks several are in different rounds. */
typedef struct halving {
	ddp_reduction *x;
	ddp_plan plan;
	const ddp_slice *slice;
	size_t first;        /* the number of this window's first chunk */
	size_t wide;         /* bytes of an element in accumulator form */
} halving;

/* A chunk under way. */
typedef struct flight {
	char *work, *incoming;    /* partial results, in accumulator form */
	char *output;             /* this rank's */
	ddp_range range;
	ddp_transfer *recvs, *sends; /* [rounds] */
} flight;

static ddp_plan plan_of(const ddp_reduction *x)
{
	return ddp_plan_halving(x->nodes);
}

static size_t buffer_bytes(const ddp_reduction *x)
{
	return x->chunk_count * ddp_type_bytes(ddp_accumulator(x->c->type));
}

ddp_status ddp_recursive_halving_prepare(ddp_reduction *x)
{
	const size_t transfers = 2 * (size_t)plan_of(x).rounds;

	return ddp_hier_store_grow(x->comm, x->depth * 2 * buffer_bytes(x), x->depth * transfers);
}

static flight flight_of(const halving *h, size_t s)
{
	const ddp_reduction *x = h->x;
	const ddp_hier_store *store = x->comm->hier.store;
	const size_t rounds = (size_t)h->plan.rounds, at = s % x->depth;
	const ddp_range range = ddp_window(ddp_window_of(x, h->slice), x->chunk_count, s);
	char *work = store->buffers + at * 2 * buffer_bytes(x);
	ddp_transfer *transfers = store->transfers + at * 2 * rounds;

	return (flight){ .work = work, .incoming = work + buffer_bytes(x),
	                 .output = (char *)((uintptr_t)x->output + range.begin * x->element),
	                 .range = range, .recvs = transfers, .sends = transfers + rounds };
}

static ddp_exchange exchange_of(const halving *h, size_t s, int round)
{
	return ddp_plan_round(&h->plan, h->x->node, h->first + s, round);
}

/* This node's partial result of chunk s. */
static void begin(const halving *h, size_t s)
{
	const flight f = flight_of(h, s);

	for (int round = 0; round < h->plan.rounds; round++)
		f.recvs[round].done = f.sends[round].done = true;
	ddp_local_combine_wide(h->x, h->x->mine[0], f.range, f.incoming, f.work);
}

/* Starts a round; results lie in this rank's output. */
static ddp_status exchange(const halving *h, size_t s, int round)
{
	ddp_comm *comm = h->x->comm;
	const ddp_exchange e = exchange_of(h, s, round);
	const flight f = flight_of(h, s);
	const bool results = round >= h->plan.reductions;
	const size_t element = results ? h->x->element : h->wide;
	const size_t number = (h->first + s) * (size_t)h->plan.rounds + (size_t)round;
	const uint64_t tag = ddp_message_tag(comm, number & 0xffffff);

	if (e.peer < 0)
		return DDP_OK;
	const ddp_range out = ddp_plan_elements(&h->plan, e.send, f.range.count);
	const ddp_range in = ddp_plan_elements(&h->plan, e.recv, f.range.count);
	const int peer = ddp_channel_rank(comm, e.peer, h->slice->channel);
	if (in.count > 0)
		ddp_message_recv(comm, peer, tag, (results ? f.output : f.incoming) + in.begin * element,
		                 in.count * element, &f.recvs[round]);
	if (out.count == 0)
		return DDP_OK;
	return ddp_message_send(comm, peer, tag, (results ? f.output : f.work) + out.begin * element,
	                        out.count * element, &f.sends[round]);
}

/* What a round was to bring is there. */
static ddp_status take(const halving *h, size_t s, int round)
{
	const ddp_collective *c = h->x->c;
	const flight f = flight_of(h, s);
	const ddp_exchange e = exchange_of(h, s, round);
	const ddp_range in = ddp_plan_elements(&h->plan, e.recv, f.range.count);
	ddp_status status = ddp_await_transfers(h->x->comm, &f.recvs[round], 1);

	if (status == DDP_OK && round < h->plan.reductions && in.count > 0) {
		char *ours = f.work + in.begin * h->wide, *theirs = f.incoming + in.begin * h->wide;
		ddp_combine_pair(c->type, c->op, e.below ? theirs : ours, e.below ? ours : theirs, ours, in.count);
	}
	if (status == DDP_OK && round == h->plan.reductions - 1) {
		const ddp_range own = ddp_plan_elements(&h->plan, ddp_plan_own(&h->plan, h->x->node, h->first + s),
		                                        f.range.count);
		void *place[1] = { f.output + own.begin * h->x->element };
		ddp_local_round(h->x, f.work + own.begin * h->wide, own.count, place, 1);
	}
	return status;
}

/* The result is in this rank's output: it goes to the node's other ranks. */
static ddp_status finish(const halving *h, size_t s)
{
	ddp_comm *comm = h->x->comm;
	const flight f = flight_of(h, s);
	void **places = comm->node.dst;
	const int count = ddp_local_places(h->x, h->x->mine[0], f.range, places);

	for (int i = 1; i < count; i++)
		memcpy(places[i], f.output, f.range.count * h->x->element);
	return ddp_await_transfers(comm, f.sends, h->plan.rounds);
}

/* Chunk s is in round r while chunk s + DDP_HALVING_LAG is in round r - 1: between the two,
   messages of others keep the network busy. */
ddp_status ddp_recursive_halving_run(ddp_reduction *x)
{
	halving h = { .x = x, .plan = plan_of(x), .slice = &x->slices[x->mine[0]],
	              .first = x->window * (x->width / x->chunk_count),
	              .wide = ddp_type_bytes(ddp_accumulator(x->c->type)) };
	const size_t count = ddp_window_of(x, h.slice).count, rounds = (size_t)h.plan.rounds;
	const size_t chunks = (count + x->chunk_count - 1) / x->chunk_count;
	ddp_status status = DDP_OK;

	for (size_t step = 0; chunks > 0 && step < chunks + DDP_HALVING_LAG * rounds; step++) {
		for (size_t r = rounds + 1; r-- > 0 && status == DDP_OK;) {
			const size_t s = step - DDP_HALVING_LAG * r;
			if (step < DDP_HALVING_LAG * r || s >= chunks)
				continue;
			if (r == 0)
				begin(&h, s);
			else
				status = take(&h, s, (int)r - 1);
			if (status == DDP_OK)
				status = r < rounds ? exchange(&h, s, (int)r) : finish(&h, s);
		}
	}
	return status;
}
