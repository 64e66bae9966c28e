/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/host_task.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A list of the tasks that a queue was given in a capture, which a launch gives it anew. */
typedef struct host_graph {
	dk_graph base;
	task *tasks;
	size_t count, room;
	const char *why; /* it cannot be; NULL: it can */
} host_graph;

static const host_graph *of(const dk_graph *graph)
{
	return (const host_graph *)graph;
}

static void spoil(host_graph *graph, const char *why)
{
	if (graph->why == NULL)
		graph->why = why;
}

static void keep(host_graph *graph, const task *what)
{
	if (graph->count == graph->room) {
		const size_t room = graph->room == 0 ? 32 : 2 * graph->room;
		task *grown = realloc(graph->tasks, room * sizeof(*grown));
		if (grown == NULL) {
			spoil(graph, "out of memory for a graph");
			return;
		}
		graph->tasks = grown;
		graph->room = room;
	}
	graph->tasks[graph->count++] = *what;
}

/* ---- tasks ---- */

void ddp_host_note_failure(host_queue *q)
{
	pthread_mutex_lock(&q->lock);
	if (q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "%s", fake_gpu_reason());
	pthread_mutex_unlock(&q->lock);
}

void ddp_host_forget(task *t)
{
	pthread_mutex_lock(&t->queue->lock);
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	pthread_mutex_unlock(&t->queue->lock);
	free(t);
}

bool ddp_host_look(const task *t, const operand *o, void **at)
{
	const size_t bytes = o->tensor && t->queue->mixed != NULL ? o->bytes / 2 : o->bytes;

	*at = (void *)(uintptr_t)o->address;
	if (o->address == NULL || bytes == 0 ||
	    fake_gpu_view(o->address, bytes, o->writes, at) == cudaSuccess)
		return true;
	ddp_host_note_failure(t->queue);
	return false;
}

/* In a stream's thread. */
static void run_task(void *argument)
{
	task *t = argument;
	void *at[OPERANDS];
	bool seen = true;

	for (int i = 0; i < OPERANDS && seen; i++)
		seen = ddp_host_look(t, &t->operands[i], &at[i]);
	if (seen) {
		fesetenv(&t->environment);
		dk_set_threads(t->threads);
		dk_use(t->queue->mixed);
		t->run(t, at);
		dk_use(NULL);
	}
	ddp_host_forget(t);
}

void ddp_host_enqueue(dk_queue *queue, const task *what)
{
	host_queue *q = ddp_host_own(queue);

	if (q->capture != NULL) {
		keep(q->capture, what);
		return;
	}
	task *t = malloc(sizeof(*t));
	if (t == NULL) {
		fake_gpu_fail(cudaErrorMemoryAllocation, "out of memory for a kernel");
		ddp_host_note_failure(q);
		return;
	}
	*t = *what;
	t->queue = q;
	t->threads = dk_threads();
	fegetenv(&t->environment);
	pthread_mutex_lock(&q->lock);
	t->next = q->tasks;
	t->link = &q->tasks;
	if (t->next != NULL)
		t->next->link = &t->next;
	q->tasks = t;
	pthread_mutex_unlock(&q->lock);
	if (fake_gpu_launch(q->stream, run_task, t) == cudaSuccess)
		return;
	ddp_host_note_failure(q);
	ddp_host_forget(t);
}

double ddp_host_fetch(dk_queue *queue, const task *what)
{
	host_queue *q = ddp_host_own(queue);

	q->result = NAN;
	if (q->capture != NULL) {
		spoil(q->capture, "a function has a result, for which a graph cannot wait");
		return NAN;
	}
	ddp_host_enqueue(queue, what);
	if (fake_gpu_sync(q->stream) != cudaSuccess)
		ddp_host_note_failure(q);
	return q->result;
}

/* CUDA's graphs would keep the address of memory of the host, where something else may lie later. */
static void capture_copy(host_queue *q, void *to, const void *from, size_t bytes)
{
	const task kept = { .operands = { { .address = to, .bytes = bytes }, { .address = from } } };

	if (fake_gpu_memory_owns(&q->stream->gpu->memory, to) && fake_gpu_memory_owns(&q->stream->gpu->memory, from))
		keep(q->capture, &kept);
	else
		spoil(q->capture, "a copy from or to the host's memory, which is not for graphs");
}

void ddp_host_copy(dk_queue *queue, void *to, const void *from, size_t bytes)
{
	host_queue *q = ddp_host_own(queue);

	if (q->capture != NULL)
		capture_copy(q, to, from, bytes);
	else if (fake_gpu_copy(q->stream, to, from, bytes) != cudaSuccess)
		ddp_host_note_failure(q);
}

/* ---- graphs ---- */

/* A queue that has failed, or has no memory, works as without graphs. */
bool ddp_host_graph_begin(dk_queue *queue)
{
	host_queue *q = ddp_host_own(queue);

	if (queue->table->failure(queue) == NULL)
		q->capture = calloc(1, sizeof(*q->capture));
	if (q->capture != NULL)
		fake_gpu_capture_begin();
	return q->capture != NULL;
}

dk_graph *ddp_host_graph_end(dk_queue *queue, const char **why)
{
	host_queue *q = ddp_host_own(queue);
	host_graph *graph = q->capture;
	const char *refused = fake_gpu_capture_end();

	q->capture = NULL;
	if (refused != NULL)
		spoil(graph, refused);
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
