/* SPDX-License-Identifier: Apache-2.0 */
/* runtime: the fake GPU within: its streams, and the threads that do their work. What ends in
   _locked is called with the GPU's lock held; the others must not be. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "tests/device/fake_gpu.h"
#include "tests/device/include/cuda_runtime_api.h"
#include "tests/device/memory.h"
#include "tests/device/order.h"

enum { FAKE_GPU_TEXT = 512, FAKE_GPUS = 8 };

typedef struct CUstream_st gpu_stream;
typedef struct CUevent_st gpu_event;

/* A record of an event: it stands while the event or somebody who waits needs it. */
typedef struct gpu_mark {
	int references;
	bool reached;
	uint64_t reached_ns;
	gpu_clock clock;
} gpu_mark;

typedef enum gpu_kind { GPU_COPY, GPU_FILL, GPU_LAUNCH, GPU_RECORD, GPU_WAIT } gpu_kind;

typedef struct gpu_work {
	gpu_kind kind;
	unsigned char value;
	void *to;
	const void *from;
	size_t bytes;
	cudaHostFn_t function;
	void *argument;
	gpu_mark *mark; /* RECORD, WAIT: one of its references is ours */
	gpu_clock clock;
	struct gpu_work *next;
} gpu_work;

typedef struct fake_gpu_device {
	pid_t owner;          /* the process, whose threads these are */
	atomic_int objects;   /* memory, streams and events that the process has */
	uint64_t seed;        /* as in fake_gpu_switches, */
	unsigned delay_us;
	bool check_order;     /* when it was opened */
	pthread_mutex_t lock; /* of all that follows, and of streams, events and marks */
	pthread_cond_t changed;
	gpu_memory memory;
	gpu_order order;
	gpu_stream *streams, *standard;
	bool broken;
	char reason[FAKE_GPU_TEXT / 2];
} fake_gpu_device;

struct CUstream_st {
	fake_gpu_device *gpu;
	int number; /* in gpu->order */
	pthread_t thread;
	gpu_work *first, **last; /* the first is being done */
	uint64_t given, done;    /* pieces of work, so far */
	bool closing;
	bool working;            /* outside the lock */
	uint64_t random;
	gpu_stream *next;
};

struct CUevent_st {
	fake_gpu_device *gpu;
	bool timed;
	gpu_mark *mark; /* NULL: never recorded */
};

/* What the calling thread runs for a stream; NULL: it is not a stream's. */
typedef struct gpu_running {
	gpu_stream *stream;
	const gpu_work *work;
} gpu_running;
const gpu_running *fake_gpu_running(void);

/* Makes this the thread's last error, of which cudaGetErrorString() gives the sentence. */
cudaError_t fake_gpu_fail(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *fake_gpu_reason(void);

/* Those that were opened; NULL: it was not. */
extern fake_gpu_device *fake_gpus[FAKE_GPUS];

/* Whether a test wants this call to fail. */
cudaError_t fake_gpu_refuse(const char *call);
/* For a call of CUDA's, which a stream's function does not make, nor a thread that captures: `captured`, unless it is
   NULL, is wrong with it. If it is cudaSuccess, the thread's GPU is locked until fake_gpu_leave(), which returns
   `error`; likewise with a stream, NULL becoming the default one, and with an event. */
cudaError_t fake_gpu_enter(const char *call, const char *captured, fake_gpu_device **gpu);
cudaError_t fake_gpu_enter_stream(const char *call, const char *captured, cudaStream_t *stream, fake_gpu_device **gpu);
cudaError_t fake_gpu_enter_event(const char *call, const char *captured, cudaEvent_t event, fake_gpu_device **gpu);
cudaError_t fake_gpu_leave(fake_gpu_device *gpu, cudaError_t error);
cudaError_t fake_gpu_broken_locked(const fake_gpu_device *gpu);
/* So many more pieces of memory, streams or events. */
void fake_gpu_count(fake_gpu_device *gpu, int change);

/* The GPU of the calling thread's context; NULL: it has none. */
fake_gpu_device *fake_gpu_here(void);

/* For a function that a stream runs, and until it returns: where it finds these bytes of the GPU's memory
   (or of the host's, which are where they are). What writes may read, too. */
cudaError_t fake_gpu_view(const void *address, size_t bytes, bool writes, void **view);

/* As cudaLaunchHostFunc(), cudaMemcpyAsync() and cudaStreamSynchronize(), whatever the thread's GPU is. */
cudaError_t fake_gpu_copy(gpu_stream *stream, void *to, const void *from, size_t bytes);
cudaError_t fake_gpu_launch(gpu_stream *stream, cudaHostFn_t function, void *argument);
cudaError_t fake_gpu_sync(gpu_stream *stream);
/* The default one, if `stream` is NULL, of this GPU, which is open. */
gpu_stream *fake_gpu_stream_of(int index, cudaStream_t stream);

/* The calling thread captures a graph from the one to the other, which returns what was refused
   first, or NULL. */
void fake_gpu_capture_begin(void);
const char *fake_gpu_capture_end(void);

cudaError_t fake_gpu_stream_create(fake_gpu_device *gpu, gpu_stream **stream);

/* When all its work is done. */
void fake_gpu_stream_free(gpu_stream *stream);

/* Enqueues a copy of `work`. */
cudaError_t fake_gpu_give_locked(gpu_stream *stream, const gpu_work *work);

/* Until so many pieces of work are done, or the GPU is broken. */
void fake_gpu_stream_wait_locked(gpu_stream *stream, uint64_t given);

void fake_gpu_mark_release_locked(gpu_mark *mark);

/* All work from now on, and what was to come, is left undone. */
cudaError_t fake_gpu_break_locked(fake_gpu_device *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The host knows that what this clock stands for is over. */
void fake_gpu_host_knows_locked(fake_gpu_device *gpu, const gpu_clock *clock);

/* Notes what a piece of work of a stream reads or writes; if that is not ordered with other work, the GPU
   is broken. */
cudaError_t fake_gpu_access_locked(gpu_stream *stream, const gpu_clock *clock, const char *what, const void *address,
                                   size_t bytes, bool writes);
