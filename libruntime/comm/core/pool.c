/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/pool.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"

struct ddp_pool_thread {
	struct ddp_pool_thread *next;
	pthread_t thread;
};

void ddp_pool_init(ddp_pool *pool)
{
	*pool = (ddp_pool){ .end = &pool->first };
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->filled, NULL);
}

void ddp_pool_destroy(ddp_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->closing = true;
	pthread_cond_broadcast(&pool->filled);
	pthread_mutex_unlock(&pool->lock);
	for (struct ddp_pool_thread *t = pool->threads, *next; t != NULL; t = next) {
		next = t->next;
		pthread_join(t->thread, NULL);
		free(t);
	}
	pthread_cond_destroy(&pool->filled);
	pthread_mutex_destroy(&pool->lock);
}

/* NULL when the pool closes. */
static ddp_task *take(ddp_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	while (pool->first == NULL && !pool->closing)
		pthread_cond_wait(&pool->filled, &pool->lock);
	ddp_task *task = pool->first;
	if (task != NULL) {
		pool->first = task->next;
		if (pool->first == NULL)
			pool->end = &pool->first;
	}
	pthread_mutex_unlock(&pool->lock);
	return task;
}

static void *work(void *argument)
{
	ddp_pool *pool = argument;
	ddp_task *task;

	while ((task = take(pool)) != NULL)
		task->run(task->argument);
	return NULL;
}

/* The lock is held. */
static ddp_status start_thread(ddp_pool *pool)
{
	struct ddp_pool_thread *t = malloc(sizeof(*t));

	if (t == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a thread");
	int error = ddp_thread_start(&t->thread, work, pool);
	if (error != 0) {
		free(t);
		return ddp_fail_errno(DDP_ERR_NOMEM, error, "cannot start a progress thread (see ulimit -u)");
	}
	t->next = pool->threads;
	pool->threads = t;
	pool->started++;
	return DDP_OK;
}

ddp_status ddp_pool_reserve(ddp_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	const ddp_status status = pool->reserved < pool->started ? DDP_OK : start_thread(pool);
	if (status == DDP_OK)
		pool->reserved++;
	pthread_mutex_unlock(&pool->lock);
	return status;
}

void ddp_pool_submit(ddp_pool *pool, ddp_task *task)
{
	pthread_mutex_lock(&pool->lock);
	task->next = NULL;
	*pool->end = task;
	pool->end = &task->next;
	pthread_cond_signal(&pool->filled);
	pthread_mutex_unlock(&pool->lock);
}

void ddp_pool_give_back(ddp_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->reserved--;
	pthread_mutex_unlock(&pool->lock);
}
