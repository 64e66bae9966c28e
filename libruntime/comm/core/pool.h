/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/core/pool: threads of the process that run the operations that communicators have queued. If there
 * is a task and no free thread, the pool starts a thread. The thread stays for later tasks of any
 * communicator.
 */
#ifndef DDP_COMM_CORE_POOL_H
#define DDP_COMM_CORE_POOL_H

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
	int waiting;             /* their number */
	int free;                /* threads that run none */
	bool closing;
	struct ddp_pool_thread *threads;
} ddp_pool;

void ddp_pool_init(ddp_pool *pool);
/* No task is queued or runs any more. Not to be called by one of its threads. */
void ddp_pool_destroy(ddp_pool *pool);

/* Has a thread run the task, which stays in place until then. */
ddp_status ddp_pool_submit(ddp_pool *pool, ddp_task *task);

#endif
