/* SPDX-License-Identifier: Apache-2.0 */
/* host_task: a function of kernels.h as work for a stream of the fake GPU: what it does, and what
   memory it reads and writes. Kept by value until it runs. */
#pragma once

#include <fenv.h>
#include <pthread.h>

#include "table.h"
#include "tests/device/runtime.h"

enum { OPERANDS = 8, NUMBERS = 5 };

/* Memory that a kernel uses; its address is NULL where it has none. */
typedef struct operand {
	const void *address;
	size_t bytes;
	bool writes;
	bool tensor; /* of the queue's type: half as long if that is bf16 */
} operand;

typedef struct host_queue {
	dk_queue base;
	gpu_stream *stream;
	dk_queue *mixed;      /* whose functions run, if the type is DK_MIXED; else NULL */
	struct host_graph *capture; /* keeps what the queue is given; NULL: that is done */
	pthread_mutex_t lock; /* of what follows */
	struct task *tasks;   /* that have not run */
	double result;        /* of the last function that has one */
	char failure[512];    /* the first; empty: none */
} host_queue;

typedef struct task {
	void (*run)(struct task *task, void **at); /* at [OPERANDS]: where the operands are; NULL:
	                                              a graph's copy, of operand 1 to operand 0 */
	operand operands[OPERANDS];
	operand table;        /* of which only what the indices say is used */
	int64_t n[NUMBERS];
	union {
		dk_update_args update;
		dk_gemm_args gemm;
		dk_estimate estimate;
		struct {
			uint64_t stream;
			bool refill;
		} rows;
		struct {
			float a;
			double b;
			dk_ratio ratio;
			bool has_ratio;
		} mix;
		double weight;
		float factor;
		dk_window window;
		double momentum;
		struct {
			double probability;
			uint64_t ahead;
		} dropout;
	};
	host_queue *queue;
	struct task *next, **link;
	int threads;
	fenv_t environment;
} task;

static inline host_queue *ddp_host_own(dk_queue *queue)
{
	return (host_queue *)queue;
}

void ddp_host_enqueue(dk_queue *queue, const task *what);
/* The same, and waits for the result; NaN after a failure. */
double ddp_host_fetch(dk_queue *queue, const task *what);
/* The same of a copy. */
void ddp_host_copy(dk_queue *queue, void *to, const void *from, size_t bytes);

/* A kernel with these parameters: a task with these fields and operands. `call` is what it does when it runs; there
   at[i] is the address of operand i. */
#define HOST_KERNEL(name, parameters, fields, call, ...) \
	static void run_##name(task *t, void **at) \
	{ \
		call; \
	} \
	static void name parameters \
	{ \
		ddp_host_enqueue(queue, &(task){ .run = run_##name, fields, .operands = { __VA_ARGS__ } }); \
	}
#define FIELDS(...) __VA_ARGS__

/* Graphs (kernels.h): of kernels/table.h. */
bool ddp_host_graph_begin(dk_queue *queue);
dk_graph *ddp_host_graph_end(dk_queue *queue, const char **why);
void ddp_host_graph_launch(dk_queue *queue, const dk_graph *graph);
void ddp_host_graph_free(dk_queue *queue, dk_graph *graph);

/* For a task that runs: where the operand is; false: it cannot be seen. */
bool ddp_host_look(const task *t, const operand *o, void **at);
/* Takes a task off its queue. */
void ddp_host_forget(task *t);
/* Keeps the calling thread's last error, if it is the first. */
void ddp_host_note_failure(host_queue *q);

/* Of the queue's type. */
static inline operand reads_tensor(const float *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(float), false, true };
}

static inline operand writes_tensor(const float *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(float), true, true };
}

/* Of f32, whatever that is. */
static inline operand reads(const float *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(float), false, false };
}

static inline operand writes(const float *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(float), true, false };
}

static inline operand reads_indices(const int32_t *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), false, false };
}

static inline operand writes_short(const uint16_t *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), true, false };
}

static inline operand reads_short(const uint16_t *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), false, false };
}

static inline operand writes_double(const double *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), true, false };
}

static inline operand reads_double(const double *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), false, false };
}

/* What the table has for images, for optimizers of whole tensors, and for factors. */
extern const dk_image_table ddp_host_image_kernels;
extern const dk_whole_table ddp_host_whole_kernels;
extern const dk_factor_table ddp_host_factor_kernels;
