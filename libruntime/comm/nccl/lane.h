/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/lane: what one lane of a communicator has of NCCL, and an operation on it.
   NCCL's communicators do not block the host: a call may return before what it does is on
   the queue, and until then the next call has to wait. So an operation has stages, and
   whoever looks after the lane takes it from one to the next. */
#pragma once

#include <pthread.h>

#include "comm/core/comm.h"
#include "comm/nccl/load.h"
#include "device/device.h"

typedef enum ddp_nccl_stage {
	DDP_NCCL_WAITS,    /* for those before it; of a message: for its counterpart */
	DDP_NCCL_BEGUN,    /* NCCL puts it on the queue */
	DDP_NCCL_ENQUEUED, /* `end` is recorded */
	DDP_NCCL_FAILED,   /* and touches nothing: a message without a counterpart */
} ddp_nccl_stage;

typedef struct ddp_nccl_operation {
	ddp_operation c;
	struct ddp_nccl_lane *lane;
	struct ddp_nccl_operation *next;
	ddp_nccl_stage stage;
	ddp_device_event *begun;        /* what the program's queue held at issue */
	ddp_device_event *start;        /* NCCL's queue came to it, and */
	ddp_device_event *end;          /* had done it; timed, both */
	int op;                         /* NCCL's, of a reduction; made for it, if it is */
	bool op_made;                   /* by ncclRedOpCreatePreMulSum() */
	struct ddp_nccl_message *message; /* NULL: a collective */
	ddp_status status;
	char *text;                     /* of an error; malloc'd */
} ddp_nccl_operation;

typedef struct ddp_nccl_scratch {
	void *memory;
	size_t bytes;
	struct ddp_nccl_scratch *older; /* too small; work under way may use it */
} ddp_nccl_scratch;

/* How far the end of messages is; they go on meanwhile. */
typedef enum ddp_nccl_closing {
	DDP_NCCL_OPEN,
	DDP_NCCL_AWAITS_CLOSING, /* of all ranks */
	DDP_NCCL_COMPARES,       /* with all ranks, which messages are matched */
	DDP_NCCL_SETTLES,        /* answers that are under way come */
	DDP_NCCL_CLOSED,         /* nothing more is matched */
} ddp_nccl_closing;

typedef struct ddp_nccl_lane {
	ddp_comm *comm;
	ddp_device *device;
	const ddp_nccl *nccl;
	pthread_mutex_t lock;        /* of all that follows: NCCL wants one thread at a time */
	ddp_nccl_handle *handle;     /* NULL once it is aborted */
	ddp_device_queue *queue;
	ddp_nccl_operation *first, **last; /* collectives that are not on the queue yet */
	ddp_nccl_scratch *scratch;
	void *word;                  /* of the device, for barriers */
	/* of comm/nccl/message: */
	ddp_comm *talk, *reply;      /* twins, for what ranks tell each other of messages */
	struct ddp_nccl_link *links;
	struct ddp_nccl_message *messages; /* that are not on a queue yet, in order of issue */
	uint64_t sent;               /* messages */
	ddp_nccl_closing closing;
	ddp_request *together;       /* what all ranks do to close; NULL: this rank is to go on */
	int64_t *given;              /* [2][size] turns, to each rank and by each */
	/* of comm/nccl/memory: */
	struct ddp_nccl_buffer *buffers;
	/* An error that NCCL told, and when: */
	ddp_status error;
	uint64_t error_ns;
	char error_text[DDP_FAILURE_TEXT];
	bool aborted;
	uint64_t stop_by_ns;         /* 0: messages go on; otherwise those that are matched end by then */
} ddp_nccl_lane;
