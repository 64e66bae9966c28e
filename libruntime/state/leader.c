/* SPDX-License-Identifier: Apache-2.0 */
#include "state/leader.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/wait.h"
#include "comm/api.h"
#include "reduce/model_state.h"

enum { MESSAGE_MAX = 1024 };

struct verdict {
	int32_t done;
	int32_t status;
	char message[MESSAGE_MAX];
};

struct task {
	ddp_status (*work)(void *);
	void *argument;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct verdict verdict; /* under lock */
};

static void *work_aside(void *argument)
{
	struct task *task = argument;
	ddp_status status = task->work(task->argument);

	pthread_mutex_lock(&task->lock);
	task->verdict.status = (int32_t)status;
	if (status != DDP_OK)
		snprintf(task->verdict.message, MESSAGE_MAX, "%s", ddp_last_error());
	task->verdict.done = 1;
	pthread_cond_signal(&task->changed);
	pthread_mutex_unlock(&task->lock);
	return NULL;
}

/* The verdict as it is once the work is done or `ms` have passed. */
static struct verdict look(struct task *task, int ms)
{
	uint64_t deadline_ns = ddp_ms_from_now(ms);

	pthread_mutex_lock(&task->lock);
	while (!task->verdict.done && ddp_condition_wait(&task->changed, &task->lock, deadline_ns))
		continue;
	struct verdict seen = task->verdict;
	pthread_mutex_unlock(&task->lock);
	return seen;
}

static ddp_status tell(ddp_comm *comm, struct verdict *verdict)
{
	return ddp_broadcast(comm, verdict, sizeof(*verdict), DDP_U8, 0);
}

static ddp_status lead(ddp_comm *comm, int beat_ms, ddp_status (*work)(void *), void *argument,
                       struct verdict *verdict)
{
	struct task task = { .work = work, .argument = argument };
	pthread_t thread;
	ddp_status told;

	pthread_mutex_init(&task.lock, NULL);
	ddp_condition_init(&task.changed);
	bool aside = ddp_thread_start(&thread, work_aside, &task) == 0;
	if (!aside)
		work_aside(&task);
	do {
		*verdict = look(&task, beat_ms);
		told = tell(comm, verdict);
	} while (told == DDP_OK && !verdict->done);
	if (aside)
		pthread_join(thread, NULL);
	pthread_cond_destroy(&task.changed);
	pthread_mutex_destroy(&task.lock);
	return told;
}

static ddp_status follow(ddp_comm *comm, struct verdict *verdict)
{
	ddp_status told;

	do
		told = tell(comm, verdict);
	while (told == DDP_OK && !verdict->done);
	verdict->message[MESSAGE_MAX - 1] = '\0';
	return told;
}

ddp_status ddp_leader_run(const ddp_model *model, ddp_status (*work)(void *), void *argument,
                          void *result, size_t bytes)
{
	ddp_comm *comm = model->comm;
	const int timeout_ms = model->context->timeout_ms;
	struct verdict verdict = { 0 };
	const int beat_ms = timeout_ms / 4 > 0 ? timeout_ms / 4 : 1;

	if (ddp_comm_size(comm) == 1)
		return work(argument);
	ddp_status told = ddp_comm_rank(comm) == 0
	                      ? lead(comm, beat_ms, work, argument, &verdict)
	                      : follow(comm, &verdict);
	if (told != DDP_OK)
		return told;
	if (verdict.status != DDP_OK) {
		const int leader = ddp_comm_world_rank(comm, 0);
		ddp_fail((ddp_status)verdict.status, "%s", verdict.message);
		if (ddp_comm_rank(comm) != 0)
			ddp_fail_context((ddp_status)verdict.status, "rank %d", leader);
		return ddp_error_about((ddp_status)verdict.status, leader);
	}
	if (bytes == 0)
		return DDP_OK;
	return ddp_broadcast(comm, result, bytes, DDP_U8, 0);
}
