/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/completion: an issued operation, and how its request and callback learn of its end. */
#pragma once

#include <stdatomic.h>

#include "ddp.h"
#include "watch/recorder.h"

/* The program ends a complete request and frees it. If the program has let go of the request, the library does. */
typedef enum ddp_request_state { DDP_UNDER_WAY, DDP_COMPLETE, DDP_LET_GO } ddp_request_state;

struct ddp_request {
	ddp_comm *comm;
	ddp_operation operation;
	ddp_request *next;
	unsigned int forks;         /* of its communicator's roster */
	_Atomic uint32_t state;     /* futex: a ddp_request_state */
	ddp_status status;
	bool last;                  /* nothing runs after it */
	atomic_bool awaited;        /* by a thread of the program */
	atomic_bool claimed_to_run; /* by a thread, while it is in the queue; otherwise true */
	char *message;              /* of a failure; malloc'd */
	struct ddp_failure_debt *debt; /* of one that has failed and calls nobody back */
	bool told;                  /* by another rank: ddp_last_error_is_told() */
	uint64_t start_ns, end_ns;
	ddp_recorded recorded;      /* of send, recv and comm/follow */
	const struct ddp_lane *lane; /* while comm/follow asks for its end */
	void *work;                 /* of the lane's backend */
	struct ddp_comparison *comparison; /* of comm/follow, until it is made */
	uint64_t deadline_ns;       /* of send and recv, and of comm/follow */
	/* of send and recv: */
	size_t moved;        /* bytes of header and data written */
	uint64_t number;     /* of a message that has been announced; 0: it has not */
	bool wanted;         /* its receiver has asked for its data */
	bool open;           /* source, tag or size are still those of any message (comm/p2p/match) */
	bool claimed;        /* a message is received, or will be, into it */
	bool arrived;
	struct ddp_transfer *transfer; /* between nodes */
};

static inline bool ddp_request_done(const ddp_request *request)
{
	return atomic_load_explicit(&request->state, memory_order_acquire) == DDP_COMPLETE;
}

/* Frees a request that is complete, or only what it has. */
void ddp_request_release(ddp_request *request);
void ddp_request_clear(ddp_request *request);
/* Frees one whose end the program does not hear of. */
void ddp_request_forget(ddp_request *request);

/* Ends an operation, and wakes who waits for it; if it calls back, leaves that to
   ddp_requests_call_back(). */
void ddp_request_complete(ddp_request *request, ddp_status status);

/* Does the same, but calls back itself. No lock is held. */
void ddp_request_finish(ddp_request *request, ddp_status status);

/* These do the same in parts, for a thread that has run the first request of the queue. The thread notes how the
   operation ended, takes the request off the queue, and tells. One thread calls back at a time, in the order of the
   ends. So a request that calls back needs the turn, which ends after ddp_request_tell(). If a request does not get
   the turn, another thread calls back for it. */
void ddp_request_note_end(ddp_request *request, ddp_status status);
/* Does the caller tell? queue.lock is held, and the request is in no list. */
bool ddp_request_take_turn(ddp_request *request);
/* Calls back if the operation does, and wakes whoever waits, who may free the request. No lock is held. */
void ddp_request_tell(ddp_request *request);
/* queue.lock is held. */
void ddp_request_end_turn(ddp_comm *comm);

/* Gives the pool's thread back if the communicator has no work for it. queue.lock is held. */
void ddp_requests_give_back_thread(ddp_comm *comm);

/* Calls back for the operations that have ended, and ends their requests. By the
   thread that serves the communicator, or when none does any more; no lock is held. */
void ddp_requests_call_back(ddp_comm *comm);
/* Is there something to call back? */
bool ddp_requests_to_call_back(const ddp_comm *comm);
/* This counts the callbacks of all threads. Each operation asks, and a variable of each thread would take longer. */
extern atomic_int ddp_callbacks_running;
ddp_status ddp_request_look_for_callback(const char *what);

/* DDP_ERR_STATE if the calling thread is in a callback: `what` would wait there for
   itself. */
static inline ddp_status ddp_request_may_wait(const char *what)
{
	return atomic_load_explicit(&ddp_callbacks_running, memory_order_relaxed) == 0
		? DDP_OK : ddp_request_look_for_callback(what);
}

/* Does a thread of the program wait for a message or for what is queued? run.lock
   is held. */
bool ddp_requests_awaited(ddp_comm *comm);
