/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/pool: threads of the process that run the operations that communicators have queued. A communicator
   reserves a thread before it accepts an operation. So what has been accepted always gets a thread, also if no further
   thread can be started by then. A thread that was started stays for later tasks of any communicator. */
#pragma once

#include <pthread.h>

#include "ddp.h"

typedef struct ddp_task {
	void (*run)(void *argument);
	void *argument;
	struct ddp_task *next;
} ddp_task;

typedef struct ddp_pool {
	pthread_mutex_t lock;
	pthread_cond_t filled;
	ddp_task *first, **end;  /* tasks that no thread has taken yet */
	int started, reserved;   /* threads; there are no more tasks than reserved threads */
	bool closing;
	struct ddp_pool_thread *threads;
} ddp_pool;

void ddp_pool_init(ddp_pool *pool);
/* No task is queued or runs any more. Not to be called by one of its threads. */
void ddp_pool_destroy(ddp_pool *pool);

/* Reserves a thread, which is started if there is no other. An error says that none can be started. */
ddp_status ddp_pool_reserve(ddp_pool *pool);
/* Has the reserved thread run the task, which stays in place until then. It runs one task after the other. */
void ddp_pool_submit(ddp_pool *pool, ddp_task *task);
/* Gives the reserved thread back. Its task may call this at its end. */
void ddp_pool_give_back(ddp_pool *pool);
