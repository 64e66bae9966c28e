#include "device/host_graph.h"

#include <stdlib.h>

#include "device/test_device.h"

struct host_graph {
	dk_graph base;
	task *tasks;
	size_t count, room;
	const char *why; /* it cannot be; NULL: it can */
};

static const host_graph *of(const dk_graph *graph)
{
	return (const host_graph *)graph;
}

void ddp_host_graph_spoil(host_graph *graph, const char *why)
{
	if (graph->why == NULL)
		graph->why = why;
}

void ddp_host_graph_keep(host_graph *graph, const task *what)
{
	if (graph->count == graph->room) {
		const size_t room = graph->room == 0 ? 32 : 2 * graph->room;
		task *grown = realloc(graph->tasks, room * sizeof(*grown));
		if (grown == NULL) {
			ddp_host_graph_spoil(graph, "out of memory for a graph");
			return;
		}
		graph->tasks = grown;
		graph->room = room;
	}
	graph->tasks[graph->count++] = *what;
}

/* A queue that has failed, or has no memory, works as without graphs. */
bool ddp_host_graph_begin(dk_queue *queue)
{
	host_queue *q = ddp_host_own(queue);

	if (queue->table->failure(queue) == NULL)
		q->capture = calloc(1, sizeof(*q->capture));
	if (q->capture != NULL)
		ddp_test_capture_begin();
	return q->capture != NULL;
}

dk_graph *ddp_host_graph_end(dk_queue *queue, const char **why)
{
	host_queue *q = ddp_host_own(queue);
	host_graph *graph = q->capture;
	const char *refused = ddp_test_capture_end();

	q->capture = NULL;
	if (refused != NULL)
		ddp_host_graph_spoil(graph, refused);
	if (graph->why == NULL)
		return &graph->base;
	*why = graph->why;
	ddp_host_graph_free(queue, &graph->base);
	return NULL;
}

void ddp_host_graph_launch(dk_queue *queue, const dk_graph *graph)
{
	for (size_t i = 0; i < of(graph)->count; i++) {
		const task *t = &of(graph)->tasks[i];
		if (t->run != NULL)
			ddp_host_enqueue(queue, t);
		else
			ddp_host_copy(queue, (void *)(uintptr_t)t->operands[0].address, t->operands[1].address,
			              t->operands[0].bytes);
	}
}

void ddp_host_graph_free(dk_queue *queue, dk_graph *graph)
{
	host_graph *g = (host_graph *)graph;

	(void)queue;
	free(g->tasks);
	free(g);
}
