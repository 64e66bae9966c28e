/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what a queue is given goes to a stream of its own while it is captured. The
   program's may be CUDA's default stream, which cannot be captured; and a graph of the one
   may be launched on the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/functions.cuh"

struct cuda_graph {
	dk_graph base;
	cudaGraphExec_t made;
};

static bool begin_capture(dk_cuda_queue *q)
{
	return (q->capture != NULL ||
	        dk_cuda_check(q, cudaStreamCreateWithFlags(&q->capture, cudaStreamNonBlocking), "a stream for graphs")) &&
	       dk_cuda_check(q, cudaStreamBeginCapture(q->capture, cudaStreamCaptureModeThreadLocal),
	                     "cudaStreamBeginCapture");
}

/* Until the capture ends, the queue takes nothing. So each failure from now on is the capture's. */
bool dk_cuda_graph_begin(dk_queue *queue)
{
	dk_cuda_queue *q = own(queue);

	if (q->failure[0] != '\0')
		return false;
	q->captures = begin_capture(q);
	if (q->captures) {
		q->program = q->stream;
		q->stream = q->capture;
	}
	return true;
}

/* A capture that has failed ends, too, so that the stream is free again. */
static cudaGraph_t end_capture(dk_cuda_queue *q)
{
	cudaGraph_t graph = NULL;

	q->stream = q->program;
	q->captures = false;
	dk_cuda_check(q, cudaStreamEndCapture(q->capture, &graph), "cudaStreamEndCapture");
	return graph;
}

static cuda_graph *make_graph(dk_cuda_queue *q, cudaGraph_t graph)
{
	cuda_graph *g = static_cast<cuda_graph *>(calloc(1, sizeof(*g)));

	if (g != NULL && dk_cuda_check(q, cudaGraphInstantiateWithFlags(&g->made, graph, 0), "cudaGraphInstantiateWithFlags"))
		return g;
	if (g == NULL)
		snprintf(q->failure, sizeof(q->failure), "the host is out of memory for a graph");
	free(g);
	return NULL;
}

dk_graph *dk_cuda_graph_end(dk_queue *queue, const char **why)
{
	dk_cuda_queue *q = own(queue);
	cudaGraph_t graph = q->captures ? end_capture(q) : NULL;
	cuda_graph *made = q->failure[0] == '\0' ? make_graph(q, graph) : NULL;

	if (graph != NULL)
		cudaGraphDestroy(graph);
	if (made != NULL)
		return &made->base;
	/* The failure was the capture's. If the GPU is broken, the queue's next work fails, too. */
	memcpy(q->why_no_graph, q->failure, sizeof(q->why_no_graph));
	q->failure[0] = '\0';
	cudaGetLastError();
	*why = q->why_no_graph;
	return NULL;
}

void dk_cuda_graph_launch(dk_queue *queue, const dk_graph *graph)
{
	dk_cuda_queue *q = own(queue);

	if (q->failure[0] == '\0')
		dk_cuda_check(q, cudaGraphLaunch(reinterpret_cast<const cuda_graph *>(graph)->made, q->stream), "cudaGraphLaunch");
}

void dk_cuda_graph_free(dk_queue *queue, dk_graph *graph)
{
	cuda_graph *g = reinterpret_cast<cuda_graph *>(graph);

	dk_cuda_enter(queue);
	if (own(queue)->entered > 0) { /* else its context is gone, and all with it */
		cudaStreamSynchronize(own(queue)->stream);
		cudaGraphExecDestroy(g->made);
	}
	dk_cuda_leave(queue);
	free(g);
}

void dk_cuda_graphs_close(dk_cuda_queue *q)
{
	if (q->capture != NULL)
		cudaStreamDestroy(q->capture);
}
