/* SPDX-License-Identifier: Apache-2.0 */
/* graphs: a model's passes as graphs (kernels.h). A pass is cut into parts, each of which becomes
   a graph: between parts the program waits for parameters and is told of gradients, which
   is other work each time. Each shape of a pass has graphs of its own; a part is captured when
   its shape comes for the second time, as the first makes what later ones need. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ddp.h"
#include "kernels.h"

/* All that decides which kernels a pass is given, and with which arguments. */
typedef struct pass_shape {
	int batch, length;
	double dropout; /* probability */
	bool trains;
} pass_shape;

struct graph_part {
	dk_graph *graph; /* NULL: not yet */
	bool passed;     /* once, without one */
	int *told;       /* the gradients that are complete behind the graph, in order */
	int count;       /* of these */
};

struct graph_set {
	pass_shape shape;
	struct graph_part *parts;
	bool captured;   /* some of them */
	uint64_t used;   /* in which pass; 0: never */
};

enum { GRAPH_SHAPES = 4 };

typedef struct graphs {
	bool wanted;                  /* and no capture has failed */
	int parts;
	struct graph_set sets[GRAPH_SHAPES];
	struct graph_set *set;        /* of the pass at hand; NULL: it goes kernel by kernel */
	uint64_t passes;
	struct graph_part *captured;  /* that is captured just now */
	int *told;                    /* of all parts */
	char failure[256];            /* why capturing was given up; empty: it was not */
	ddp_status (*ready)(void *user, int param);
	void *user;
	ddp_status status;            /* of the first `ready` that failed */
} graphs;

/* Opens graphs for passes of so many parts. Each part tells of `most_told` gradients at most. Graphs are not
   wanted yet. False: out of memory. */
bool graphs_open(graphs *g, int parts, int most_told);
/* Before the queue that captured them is closed. Also of one that is all zero. */
void graphs_close(graphs *g);

void graphs_want(graphs *g, bool wanted);
/* Memory or arguments that no shape tells of have changed. */
void graphs_forget(graphs *g);

/* A pass begins. Of the shapes, GRAPH_SHAPES have graphs at most: those that came first twice. */
void graphs_begin(graphs *g, const pass_shape *shape);

/* Whom graphs_tell() tells, from now on. */
void graphs_listen(graphs *g, ddp_status (*ready)(void *user, int param), void *user);

/* Enqueues a part of the pass: by its graph, or by `work`, which may change nothing but what
   kernels work on, since a launch does without. */
typedef void graphs_work(void *model, int part);
void graphs_run(graphs *g, int part, graphs_work *work, void *model);

/* For `work`: a gradient is complete. Of a graph, behind each launch. */
void graphs_tell(graphs *g, int param);
