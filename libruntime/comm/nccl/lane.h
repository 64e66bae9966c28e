/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/lane: what one lane of a communicator has of NCCL, and an operation on it.
   NCCL's communicators do not block the host: a call may return before what it does is on
   the queue, and until then the next call has to wait. So an operation has stages, and
   whoever looks after the lane takes it from one to the next. What the files of this folder do with a lane is declared
   behind it. */
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

/* ---- collective.c -------------------------------------------------------------------- */

/* An operation as calls of NCCL's, and copies of the device around. */

/* Enqueues the work before NCCL's part, and that part. NCCL is ready. */
ddp_status ddp_nccl_begin_collective(ddp_nccl_operation *operation);
/* Enqueues the work after NCCL's part, which is on the queue. */
ddp_status ddp_nccl_finish_collective(ddp_nccl_operation *operation);

/* Frees the device's memory for what could not be done in place. The queue has done its work. */
void ddp_nccl_scratch_free(ddp_nccl_lane *lane);

/* ---- memory.c ------------------------------------------------------------------------ */

/* Memory of the device that NCCL sends from without a copy. */

/* These do what a backend's alloc, free and adopt do. */
ddp_status ddp_nccl_memory_alloc(ddp_nccl_lane *lane, size_t bytes, void **memory);
ddp_status ddp_nccl_memory_free(ddp_nccl_lane *lane, void *memory);
void ddp_nccl_memory_adopt(ddp_nccl_lane *lane, ddp_nccl_lane *former, void *memory);

/* NCCL forgets what memory is left; before its communicator ends. */
void ddp_nccl_memory_forget(ddp_nccl_lane *lane);
/* Memory that the program has not freed stays the program's, but is not known here any more. */
void ddp_nccl_memory_close(ddp_nccl_lane *lane);

/* ---- message.c ----------------------------------------------------------------------- */

/* Sends and receives. NCCL matches them by their order alone, and a
   kernel that waits for its counterpart keeps the queue, and maybe the GPU, for itself.
   So ranks match them by the host first, by peer and tag as ddp.h has it: the sender tells
   of its message, the receiver answers with the message's turn, and NCCL is given what is
   certain to come. Between two ranks, each direction has a communicator and a queue of its
   own, so that no message waits for one of other ranks. */

/* Opens what messages need, but for links, which are made when they are used. Collective. */
ddp_status ddp_nccl_messages_open(ddp_nccl_lane *lane);

/* Tells the peer of a message that is sent, or expects one. */
ddp_status ddp_nccl_message_begin(ddp_nccl_operation *operation);
/* Takes all messages as far as they go. */
ddp_status ddp_nccl_messages_advance(ddp_nccl_lane *lane);
/* Frees what the operation has for it: it is ENQUEUED or FAILED, or all are aborted. */
void ddp_nccl_message_free(ddp_nccl_operation *operation);

/* The communicator is to be closed: when all ranks close theirs, or it has failed, messages
   fail that are not matched, on both ranks or on none. To be called until true, and messages
   to be advanced between, which others may wait for before they close. */
bool ddp_nccl_messages_stop(ddp_nccl_lane *lane);
/* All fail; the first call begins that, so that other communicators of NCCL's may be ended
   beside links', and the second one waits. */
void ddp_nccl_messages_begin_abort(ddp_nccl_lane *lane);
void ddp_nccl_messages_await_abort(ddp_nccl_lane *lane);
/* Is all done that links' queues were given? */
bool ddp_nccl_messages_rest(ddp_nccl_lane *lane);
/* No message is under way. Collective unless the communicator has failed. */
void ddp_nccl_messages_close(ddp_nccl_lane *lane);

/* ---- reduction.c --------------------------------------------------------------------- */

/* Types and ops as NCCL has them, and what it cannot do. */

int ddp_nccl_type_of(ddp_type type);

/* DDP_ERR_UNSUPPORTED: NCCL does not reduce so, and the sentence says what does. */
ddp_status ddp_nccl_check_reduction(const ddp_nccl_lane *lane, const ddp_operation *c);

/* Finds the op of a reduction, or makes it; until ddp_nccl_free_op(). A result of NCCL's. */
int ddp_nccl_make_op(ddp_nccl_operation *operation);
void ddp_nccl_free_op(ddp_nccl_operation *operation);
