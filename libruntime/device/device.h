/* SPDX-License-Identifier: Apache-2.0 */
/* device: where tensors lie, and what works on them. Two kinds:

     cpu    the host: its memory is the host's, and a queue does its work at once, in the
            thread that enqueues it;
     cuda   a GPU, by the module libddp_cuda.so, which is loaded at the first use.

   Tests load a fake GPU in place of the module (tests/device/fake_gpu.h).

   What holds for each of them:
    - Queues. Work of one queue is done in the order in which it was enqueued; work of
      different queues in any order and at the same time, unless an event says otherwise.
      A call that enqueues may return before the work is done. Until then its buffers
      stay: nobody frees or writes them, nor reads what is written.
    - Events. ddp_device_event_record() makes the event stand for all that its queue was
      given so far. To wait for an event that was never recorded is to wait for nothing.
      One that is recorded again stands for the later record; who waits already still
      waits for the earlier. It may be freed while queues wait for it.
    - What the host did before a call that enqueues is there for the work; what work did
      is there for the host after ddp_device_queue_sync() or ddp_device_event_sync(), or
      a query that says done.
    - Memory. A device's own is reached by its queues alone: copy, fill and kernels. The host's side of a copy can be any
      memory; if it comes from ddp_device_host_alloc(), a GPU copies faster, and really
      beside the host.
    - Handles. A queue is what CUDA calls a stream: a cudaStream_t of the program's is
      given as a ddp_device_queue *, and so is a cudaEvent_t as a ddp_device_event *.
      NULL is the device's default queue, which has the same rules; CUDA's also waits
      for those of the program's streams that were made to.
    - Threads. All calls may come from any thread. A function that a queue runs calls
      nothing of the device.
    - Captures. A thread that captures a graph of kernels (kernels.h) gives the device no other
      work until the capture ends, allocates and frees nothing, and does not wait: that ends the
      capture, or is missing from the graph. The fake GPU refuses it.
    - Errors. Work that fails breaks the device: each call from then on, also one that
      waits, ends with a sentence about it; only what frees still does. Other errors belong
      to their call. */
#pragma once

#include "ddp.h"

typedef struct ddp_device ddp_device;
typedef struct ddp_device_queue ddp_device_queue;
typedef struct ddp_device_event ddp_device_event;

enum { DDP_DEVICE_ALIGNMENT = 256 }; /* bytes, of all memory that a device gives */

typedef struct ddp_device_info {
	const char *kind;     /* "cpu" or "cuda" */
	int index;            /* which of its kind */
	char name[256];       /* as its maker calls it */
	size_t memory_bytes;  /* what it has in all */
	int capability;       /* of a GPU: 80 for compute capability 8.0 */
	bool is_host_memory;  /* the host may read and write its memory */
} ddp_device_info;

/* Opens "cpu", "cuda" or, with the index, "cuda:1". Without it, the index is
   DDP_LOCAL_DEVICE of the environment, and 0 if that is not set. Each call gives a device
   of its own, which counts its queues, events and memory.
   DDP_ERR_UNSUPPORTED: there is none here, and the sentence says what is missing. */
ddp_status ddp_device_open(const char *name, ddp_device **device);

/* Takes a reference, which ddp_device_close() gives back. */
void ddp_device_keep(ddp_device *device);
/* DDP_ERR_STATE: memory, queues or events of the device are left, and the sentence says how many. */
ddp_status ddp_device_freed(ddp_device *device);
/* Gives a reference back, and closes the device if that was the last one. DDP_ERR_STATE: memory, queues or events of
   the device are left, so the device and the last reference stay. A broken device is closed whatever is left. NULL is
   allowed. */
ddp_status ddp_device_close(ddp_device *device);

/* Valid until the device is closed. */
const ddp_device_info *ddp_device_describe(const ddp_device *device);

/* DDP_OK, or how work failed that was enqueued earlier, as far as is known now. */
ddp_status ddp_device_error(ddp_device *device);

typedef void (*ddp_device_function)(void *argument);

/* Calls the function at once, in the calling thread, for which the device is meanwhile the
   one that CUDA's own calls are for: to call libraries that have no word for a device.
   Unless it is DDP_OK, the device cannot be used any more, and nothing was called. */
ddp_status ddp_device_within(ddp_device *device, ddp_device_function function, void *argument);

/* ---- memory ---- */

/* Not initialised. */
ddp_status ddp_device_alloc(ddp_device *device, size_t bytes, void **memory);

/* No work that uses it may be under way. NULL is fine. */
ddp_status ddp_device_free(ddp_device *device, void *memory);

/* Memory of the host that is good for copies. */
ddp_status ddp_device_host_alloc(ddp_device *device, size_t bytes, void **memory);
ddp_status ddp_device_host_free(ddp_device *device, void *memory);

/* Whether the address is in memory of the device that the host cannot use. Memory of a
   GPU counts, too, that the program allocated itself. */
bool ddp_device_owns(ddp_device *device, const void *address);

/* The open device that owns the address; NULL: it is the host's memory. */
ddp_device *ddp_device_of(const void *address);

/* ---- queues ---- */

typedef enum ddp_device_priority {
	DDP_DEVICE_NORMAL,
	DDP_DEVICE_HIGH, /* goes first where two queues have work: for communication */
} ddp_device_priority;

ddp_status ddp_device_queue_create(ddp_device *device, ddp_device_priority priority,
                                   ddp_device_queue **queue);

/* Waits for its work. NULL is fine, and does nothing. */
ddp_status ddp_device_queue_free(ddp_device *device, ddp_device_queue *queue);

/* Is all work done that it was given so far? */
ddp_status ddp_device_queue_query(ddp_device *device, ddp_device_queue *queue, bool *done);
ddp_status ddp_device_queue_sync(ddp_device *device, ddp_device_queue *queue);

/* Work that the queue gets from now on waits for the event; the host does not. */
ddp_status ddp_device_queue_wait(ddp_device *device, ddp_device_queue *queue,
                                 ddp_device_event *event);

/* Between host and device, or within either; the two must not overlap. */
ddp_status ddp_device_copy(ddp_device *device, ddp_device_queue *queue, void *to,
                           const void *from, size_t bytes);

/* Sets each byte of the device's memory. */
ddp_status ddp_device_fill(ddp_device *device, ddp_device_queue *queue, void *to,
                           unsigned char value, size_t bytes);

/* Runs a function of the host when all earlier work of the queue is done, and before
   any later. It may tell other threads so. On a GPU it should be short, since other queues'
   functions may wait for it. */
ddp_status ddp_device_launch(ddp_device *device, ddp_device_queue *queue,
                             ddp_device_function function, void *argument);

/* ---- events ---- */

ddp_status ddp_device_event_create(ddp_device *device, ddp_device_event **event);
/* One that also knows when its queue came to it, which costs a little more. */
ddp_status ddp_device_event_create_timed(ddp_device *device, ddp_device_event **event);
ddp_status ddp_device_event_free(ddp_device *device, ddp_device_event *event); /* NULL is fine */
ddp_status ddp_device_event_record(ddp_device *device, ddp_device_event *event,
                                   ddp_device_queue *queue);
ddp_status ddp_device_event_query(ddp_device *device, ddp_device_event *event, bool *done);
ddp_status ddp_device_event_sync(ddp_device *device, ddp_device_event *event);
/* The time from one to the other by the device's clock, below 0 if `to` came first. Both are timed and
   were recorded, and a query has said that they are done. */
ddp_status ddp_device_event_seconds(ddp_device *device, ddp_device_event *from, ddp_device_event *to,
                                    double *seconds);
