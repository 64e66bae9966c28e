/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/schedule.h"

#include <stddef.h>

static int bits(int nodes)
{
	int count = 0;

	while (1 << count < nodes)
		count++;
	return count;
}

int preflight_rounds(int nodes)
{
	if (nodes < 2)
		return 0;
	return nodes <= PREFLIGHT_ALL_PAIRS ? nodes + nodes % 2 - 1 : bits(nodes) + 1;
}

/* The last node of an even number stays, and the others turn. */
static int circle(int nodes, int round, int node)
{
	int even = nodes + nodes % 2, others = even - 1, peer;

	if (node == others)
		peer = round;
	else
		peer = (2 * round - node + 2 * others) % others;
	if (peer == node)
		peer = others;
	return peer < nodes ? peer : -1;
}

/* The last round connects the neighbours that differ in more than their last bit. */
static int hypercube(int nodes, int round, int node)
{
	int peer;

	if (round < bits(nodes))
		peer = node ^ 1 << round;
	else if (node % 2 == 1)
		peer = node + 1 < nodes ? node + 1 : nodes % 2 == 0 ? 0 : -1;
	else
		peer = node > 0 ? node - 1 : nodes % 2 == 0 ? nodes - 1 : -1;
	return peer < nodes ? peer : -1;
}

int preflight_peer(int nodes, int round, int node)
{
	if (round < 0 || round >= preflight_rounds(nodes) || node < 0 || node >= nodes)
		return -1;
	return nodes <= PREFLIGHT_ALL_PAIRS ? circle(nodes, round, node) : hypercube(nodes, round, node);
}

bool preflight_leave_out(const unsigned char *late, bool *out, int nodes)
{
	int all = 0, added = 0;

	for (int n = 0; n < nodes; n++)
		all += late[n] >= PREFLIGHT_LATE_ROUNDS || out[n];
	if (4 * all > nodes)
		return false;
	for (int n = 0; n < nodes; n++)
		if (late[n] >= PREFLIGHT_LATE_ROUNDS && !out[n]) {
			out[n] = true;
			added++;
		}
	return added > 0;
}

static unsigned next(unsigned *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static bool collide(const struct preflight_item *x, const struct preflight_item *y)
{
	return x->machine_a == y->machine_a || (y->machine_b >= 0 && x->machine_a == y->machine_b) ||
	       (x->machine_b >= 0 && (x->machine_b == y->machine_a || x->machine_b == y->machine_b));
}

int preflight_take_turns(struct preflight_item *items, int count, unsigned seed)
{
	unsigned state = seed * 2654435761u + 1;
	int turns = 0;

	for (int i = count - 1; i > 0; i--) {
		int j = (int)(next(&state) % (unsigned)(i + 1));
		struct preflight_item kept = items[i];
		items[i] = items[j];
		items[j] = kept;
	}
	for (int i = 0; i < count; i++) {
		bool moved = true;
		items[i].turn = 0;
		while (moved) {
			moved = false;
			for (int j = 0; j < i; j++)
				if (items[j].turn == items[i].turn && collide(&items[i], &items[j])) {
					items[i].turn++;
					moved = true;
				}
		}
		if (items[i].turn >= turns)
			turns = items[i].turn + 1;
	}
	return turns;
}

int preflight_alone_ms(int ranks)
{
	int ms = PREFLIGHT_ALONE_MS / (ranks > 0 ? ranks : 1);

	if (ms < PREFLIGHT_ALONE_LEAST_MS)
		return PREFLIGHT_ALONE_LEAST_MS;
	return ms > PREFLIGHT_ALONE_MOST_MS ? PREFLIGHT_ALONE_MOST_MS : ms;
}
