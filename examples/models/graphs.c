/* SPDX-License-Identifier: Apache-2.0 */
#include "models/graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool graphs_open(graphs *g, int parts, int most_told)
{
	const size_t all = (size_t)GRAPH_SHAPES * (size_t)parts;
	struct graph_part *part = calloc(all, sizeof(*part));

	memset(g, 0, sizeof(*g));
	g->parts = parts;
	g->sets[0].parts = part;
	g->told = calloc(all * (size_t)most_told, sizeof(*g->told));
	if (part == NULL || g->told == NULL) {
		graphs_close(g);
		return false;
	}
	for (size_t i = 0; i < all; i++)
		part[i].told = g->told + i * (size_t)most_told;
	for (int i = 0; i < GRAPH_SHAPES; i++)
		g->sets[i].parts = part + (size_t)i * (size_t)parts;
	return true;
}

static void forget_set(const graphs *g, struct graph_set *set)
{
	for (int i = 0; i < g->parts && set->parts != NULL; i++) {
		dk_graph_free(set->parts[i].graph);
		set->parts[i].graph = NULL;
		set->parts[i].passed = false;
	}
	set->captured = false;
	set->used = 0;
}

void graphs_forget(graphs *g)
{
	for (int i = 0; i < GRAPH_SHAPES; i++)
		forget_set(g, &g->sets[i]);
	g->set = NULL;
}

void graphs_close(graphs *g)
{
	graphs_forget(g);
	free(g->sets[0].parts);
	free(g->told);
	memset(g, 0, sizeof(*g));
}

void graphs_want(graphs *g, bool wanted)
{
	graphs_forget(g);
	g->wanted = wanted;
}

static bool is_same(const pass_shape *a, const pass_shape *b)
{
	return a->batch == b->batch && a->length == b->length && a->dropout == b->dropout && a->trains == b->trains;
}

/* That of the shape; else the one that has waited longest in vain for its shape's second pass, for
   this shape; else none. */
static struct graph_set *find_set(graphs *g, const pass_shape *shape)
{
	struct graph_set *oldest = NULL;

	for (int i = 0; i < GRAPH_SHAPES; i++) {
		struct graph_set *set = &g->sets[i];
		if (set->used > 0 && is_same(&set->shape, shape))
			return set;
		if (!set->captured && (oldest == NULL || set->used < oldest->used))
			oldest = set;
	}
	if (oldest != NULL) {
		forget_set(g, oldest);
		oldest->shape = *shape;
	}
	return oldest;
}

void graphs_begin(graphs *g, const pass_shape *shape)
{
	g->set = g->wanted ? find_set(g, shape) : NULL;
	g->passes++;
	if (g->set != NULL)
		g->set->used = g->passes;
}

void graphs_listen(graphs *g, ddp_status (*ready)(void *user, int param), void *user)
{
	g->ready = ready;
	g->user = user;
	g->status = DDP_OK;
}

void graphs_tell(graphs *g, int param)
{
	if (g->captured != NULL)
		g->captured->told[g->captured->count++] = param;
	else if (g->status == DDP_OK)
		g->status = g->ready(g->user, param);
}

static bool capture(graphs *g, int part, graphs_work *work, void *model)
{
	struct graph_part *p = &g->set->parts[part];
	const char *why;

	if (!dk_graph_begin())
		return false;
	p->count = 0;
	g->captured = p;
	work(model, part);
	g->captured = NULL;
	p->graph = dk_graph_end(&why);
	if (p->graph != NULL) {
		g->set->captured = true;
		return true;
	}
	snprintf(g->failure, sizeof(g->failure), "%s", why);
	g->wanted = false;
	g->set = NULL;
	return false;
}

void graphs_run(graphs *g, int part, graphs_work *work, void *model)
{
	struct graph_part *p = g->set != NULL ? &g->set->parts[part] : NULL;

	if (p == NULL || !p->passed || (p->graph == NULL && !capture(g, part, work, model))) {
		work(model, part);
		if (p != NULL)
			p->passed = true;
		return;
	}
	dk_graph_launch(p->graph);
	for (int i = 0; i < p->count; i++)
		graphs_tell(g, p->told[i]);
}
