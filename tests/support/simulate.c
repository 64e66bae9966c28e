/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/simulate.h"

#include <stdlib.h>

#include "comm/hier/plan.h"

typedef struct simulation {
	const ddp_link *link;
	const ddp_shape *shape;
	ddp_plan plan;
	size_t count, chunk, chunks; /* elements of a channel, of a chunk; and how many chunks */
	size_t depth, lag;
	double *clock;   /* [nodes]: when a rank is through with what it did */
	double *out_free, *in_free; /* [nodes]: of links */
	double *arrival; /* [nodes][depth]: of what was last sent for a chunk */
} simulation;

static double later(double a, double b)
{
	return a > b ? a : b;
}

static size_t elements_of(const simulation *m, size_t s)
{
	const size_t rest = m->count - s * m->chunk;

	return rest < m->chunk ? rest : m->chunk;
}

/* What came for chunk s in a round was awaited. */
static void take(simulation *m, int node, size_t s, int round)
{
	const ddp_exchange e = ddp_plan_round(&m->plan, node, s, round);
	const double came = m->arrival[(size_t)node * m->depth + s % m->depth];

	if (e.peer >= 0 && e.recv.count > 0 && came > m->clock[node])
		m->clock[node] = came;
}

static void send(simulation *m, int node, size_t s, int round)
{
	const ddp_exchange e = ddp_plan_round(&m->plan, node, s, round);
	const size_t element = round < m->plan.reductions ? m->shape->wide : m->shape->element;

	if (e.peer < 0 || e.send.count == 0)
		return;
	const size_t sent = ddp_halving_elements(m->shape, &m->plan, e.send, e.share, elements_of(m, s));
	const double bytes = (double)(sent * element);
	const double seconds = bytes * m->shape->channels * m->link->byte_seconds;
	m->clock[node] += m->link->message_seconds;
	const double start = later(m->out_free[node], m->clock[node]);
	m->out_free[node] = start + seconds;
	m->in_free[e.peer] = later(m->in_free[e.peer], start + m->link->latency_seconds) + seconds;
	m->arrival[(size_t)e.peer * m->depth + s % m->depth] = m->in_free[e.peer];
}

/* All nodes take before any sends: what is sent now is taken in a later step. */
static void run_chunk(simulation *m, size_t s, size_t r)
{
	for (int node = 0; node < m->plan.nodes && r > 0; node++)
		take(m, node, s, (int)r - 1);
	for (int node = 0; node < m->plan.nodes && r < (size_t)m->plan.rounds; node++)
		send(m, node, s, (int)r);
}

static double run(simulation *m)
{
	const size_t rounds = (size_t)m->plan.rounds;
	double last = 0;

	for (size_t step = 0; step < m->chunks + m->lag * rounds; step++) {
		for (size_t r = rounds + 1; r-- > 0;) {
			if (step >= m->lag * r && step - m->lag * r < m->chunks)
				run_chunk(m, step - m->lag * r, r);
		}
	}
	for (int node = 0; node < m->plan.nodes; node++) {
		last = later(last, later(m->clock[node], m->out_free[node]));
	}
	return last;
}

double simulate(ddp_algorithm algorithm, const ddp_link *link, const ddp_shape *shape)
{
	const size_t nodes = (size_t)shape->nodes, channels = (size_t)shape->channels;
	const size_t slices = shape->kind == DDP_REDUCE_SCATTER ? channels * shape->blocks : channels;
	simulation m = { .link = link, .shape = shape, .depth = 1, .lag = 1,
	                 .count = (shape->count + slices - 1) / slices };

	m.chunk = m.count;
	if (algorithm == DDP_RECURSIVE_HALVING) {
		m.plan = ddp_halving_plan(shape, shape->nodes - 1);
		m.chunk = ddp_halving_chunk(link, shape);
		m.depth = ddp_halving_depth(shape, m.chunk, m.count);
		m.lag = DDP_HALVING_LAG;
	} else {
		m.plan = ddp_plan_doubling(shape->nodes);
	}
	m.chunks = (m.count + m.chunk - 1) / m.chunk;
	m.clock = calloc(nodes, sizeof(*m.clock));
	m.out_free = calloc(nodes, sizeof(*m.out_free));
	m.in_free = calloc(nodes, sizeof(*m.in_free));
	m.arrival = calloc(nodes * m.depth, sizeof(*m.arrival));
	const bool good = m.clock != NULL && m.out_free != NULL && m.in_free != NULL && m.arrival != NULL;
	const double seconds = good ? run(&m) : -1;
	free(m.clock);
	free(m.out_free);
	free(m.in_free);
	free(m.arrival);
	return seconds;
}
