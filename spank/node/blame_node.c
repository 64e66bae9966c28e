/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/blame_node.h"

#include <string.h>
#include <sys/wait.h>

#include "spank/wire/judge.h"
#include "spank/wire/progress_page.h"

/* Returns what is known of a local task; its node's name lies in `node`. */
static struct blamed task_facts(const struct supervise *supervise, uint32_t local, uint64_t now_ns,
                          char node[HOST_NAME_MAX_BYTES])
{
	const struct supervise_shared *shared = supervise->shared;
	uint64_t reaped_ns = supervise->reaped[local].ns;
	struct blamed blamed = { .rank = shared->task[local].rank, .world_size = shared->world_size,
		                 .node = node, .seconds_ago = -1, .now_ns = now_ns };
	enum task_state state;

	memset(node, 0, HOST_NAME_MAX_BYTES);
	memcpy(node, shared->node, HOST_NAME_MAX_BYTES - 1);
	state = supervise_state(supervise, local, &blamed.wait_status);
	blamed.runs = state == TASK_RUNS;
	blamed.stopped = blamed.runs && supervise_is_stopped(supervise_pid(supervise, local));
	/* Its own report follows. */
	if (state == TASK_GONE)
		blamed.wait_status = W_EXITCODE(1, 0);
	if (reaped_ns != 0 && now_ns >= reaped_ns)
		blamed.seconds_ago = (double)(now_ns - reaped_ns) * 1e-9;
	supervise_read(supervise, local, &blamed.progress);
	return blamed;
}

/* Local number of the task, or local_tasks. */
static uint32_t find_task(const struct supervise *supervise, uint32_t rank)
{
	uint32_t local = 0;

	while (local < supervise->local_tasks &&
	       (rank == UINT32_MAX || supervise->shared->task[local].rank != rank))
		local++;
	return local;
}

bool blame_is_local(const struct supervise *supervise, uint32_t rank)
{
	return find_task(supervise, rank) < supervise->local_tasks;
}

bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes)
{
	uint32_t local = find_task(supervise, rank);
	char node[HOST_NAME_MAX_BYTES];
	struct blamed blamed;

	if (local == supervise->local_tasks)
		return false;
	blamed = task_facts(supervise, local, now_ns, node);
	return blame_describe(&blamed, text, bytes);
}

bool blame_early_end(const struct supervise *supervise, uint64_t now_ns, char *text, size_t bytes)
{
	char node[HOST_NAME_MAX_BYTES];

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		const struct task_reaped *reaped = &supervise->reaped[i];
		struct blamed blamed;
		if (reaped->ns == 0 || judge_task_end(reaped->wait_status) != END_FINE ||
		    supervise->shared->task[i].rank == UINT32_MAX)
			continue;
		blamed = task_facts(supervise, i, now_ns, node);
		return blame_describe(&blamed, text, bytes);
	}
	return false;
}
