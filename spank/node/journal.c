/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/journal.h"

#include <sys/wait.h>

#include "spank/base/sink.h"

struct summary {
	uint32_t low, high;  /* the lowest and the highest rank */
	uint32_t bad, open;  /* tasks that have ended badly, and that have not ended */
	uint32_t first;      /* the local task that ended badly before the others */
};

static struct summary look(const struct supervise *supervise)
{
	struct summary sum = { .low = UINT32_MAX };

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		const struct task_reaped *end = &supervise->reaped[i];
		uint32_t rank = supervise->shared->task[i].rank;

		if (rank != UINT32_MAX) {
			sum.low = rank < sum.low ? rank : sum.low;
			sum.high = rank > sum.high ? rank : sum.high;
		}
		if (end->ns == 0) {
			sum.open++;
		} else if (end->wait_status != 0) {
			if (sum.bad == 0 || end->ns < supervise->reaped[sum.first].ns)
				sum.first = i;
			sum.bad++;
		}
	}
	return sum;
}

static void add_first(struct sink *sink, const struct supervise *supervise, uint32_t task)
{
	uint32_t rank = supervise->shared->task[task].rank;
	int status = supervise->reaped[task].wait_status;

	if (rank != UINT32_MAX)
		sink_add(sink, "rank %u ", rank);
	else
		sink_add(sink, "task %u of the node ", task);
	if (WIFSIGNALED(status))
		sink_add(sink, "was killed by signal %d", WTERMSIG(status));
	else
		sink_add(sink, "exited with code %d", WEXITSTATUS(status));
}

void journal_step(const struct supervise *supervise, uint32_t job_id, uint32_t step_id,
                  const char *version, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	struct summary sum = look(supervise);

	sink_add(&sink, "step %u.%u: ", job_id, step_id);
	if (sum.low == UINT32_MAX)
		sink_add(&sink, "%u tasks that have no rank", supervise->local_tasks);
	else if (sum.low == sum.high)
		sink_add(&sink, "rank %u of %u", sum.low, supervise->shared->world_size);
	else
		sink_add(&sink, "%u ranks from %u to %u of %u", supervise->local_tasks, sum.low, sum.high,
		         supervise->shared->world_size);
	sink_add(&sink, " on ");
	sink_add_untrusted(&sink, supervise->shared->node, sizeof(supervise->shared->node));
	sink_add(&sink, ": ");
	if (sum.bad > 0)
		add_first(&sink, supervise, sum.first);
	else
		sink_add(&sink, sum.open > 0 ? "none ended badly" : "ended well");
	if (sum.bad > 1)
		sink_add(&sink, " first, and %u more did not end well", sum.bad - 1);
	if (sum.open > 0)
		sink_add(&sink, ", %u were not seen to end", sum.open);
	sink_add(&sink, "; plugin %s", version);
}
