/*
 * gpt: layers as graphs (kernels.h), where shapes stay: forward of a layer is one, backward another.
 * Between layers parameters are waited for and gradients told ready: the program then enqueues
 * what a graph cannot hold, which is other each time.
 */
#include <stdio.h>

#include "models/gpt_inside.h"

void gpt_use_graphs(gpt *g, bool wanted)
{
	gpt_forget_graphs(g);
	g->graphs = wanted;
}

const char *gpt_graph_failure(const gpt *g)
{
	return g->graph_failure[0] != '\0' ? g->graph_failure : NULL;
}

static bool capture(gpt *g, struct gpt_graph *own, void (*part)(gpt *g, struct gpt_graph *own))
{
	const char *why;

	own->count = 0;
	if (!dk_graph_begin())
		return false;
	part(g, own);
	own->graph = dk_graph_end(&why);
	if (own->graph != NULL)
		return true;
	snprintf(g->graph_failure, sizeof(g->graph_failure), "%s", why);
	g->graphs = false;
	return false;
}

/* The first time of a shape makes what later ones need; the second is captured. Another shape, as
   of an epoch's last batch, goes as it would without graphs. */
bool gpt_by_graph(gpt *g, struct gpt_graph *own, void (*part)(gpt *g, struct gpt_graph *own))
{
	const bool again = own->batch == g->batch && own->length == g->length;

	if (!g->graphs || g->dropout > 0)
		return false;
	if (own->graph == NULL) {
		own->batch = g->batch;
		own->length = g->length;
	}
	if (!again || (own->graph == NULL && !capture(g, own, part)))
		return false;
	dk_graph_launch(own->graph);
	return true;
}

void gpt_forget_graphs(gpt *g)
{
	for (int i = 0; i < 2 * g->config.layers && g->forward != NULL; i++) {
		dk_graph_free(g->forward[i].graph); /* and backward's, behind them */
		g->forward[i] = (struct gpt_graph){0};
	}
}
