/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/report.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "spank/base/sink.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/blame.h"
#include "spank/wire/doing.h"
#include "spank/wire/judge.h"

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

/* Returns what is known of a local task; its node's name lies in `node`. */
static struct blamed know(const struct supervise *supervise, uint32_t local, uint64_t now_ns,
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
static uint32_t find(const struct supervise *supervise, uint32_t rank)
{
	uint32_t local = 0;

	while (local < supervise->local_tasks &&
	       (rank == UINT32_MAX || supervise->shared->task[local].rank != rank))
		local++;
	return local;
}

bool blame_is_local(const struct supervise *supervise, uint32_t rank)
{
	return find(supervise, rank) < supervise->local_tasks;
}

bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes)
{
	uint32_t local = find(supervise, rank);
	char node[HOST_NAME_MAX_BYTES];
	struct blamed blamed;

	if (local == supervise->local_tasks)
		return false;
	blamed = know(supervise, local, now_ns, node);
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
		blamed = know(supervise, i, now_ns, node);
		return blame_describe(&blamed, text, bytes);
	}
	return false;
}

/* sigabbrev_np() is too young for the C libraries of older distributions. */
static const char *signal_name(int number)
{
	static const struct { int number; const char *name; } names[] = {
		{ SIGHUP, "SIGHUP" }, { SIGINT, "SIGINT" }, { SIGQUIT, "SIGQUIT" }, { SIGILL, "SIGILL" },
		{ SIGTRAP, "SIGTRAP" }, { SIGABRT, "SIGABRT" }, { SIGBUS, "SIGBUS" },
		{ SIGFPE, "SIGFPE" }, { SIGKILL, "SIGKILL" }, { SIGUSR1, "SIGUSR1" },
		{ SIGSEGV, "SIGSEGV" }, { SIGUSR2, "SIGUSR2" }, { SIGPIPE, "SIGPIPE" },
		{ SIGALRM, "SIGALRM" }, { SIGTERM, "SIGTERM" }, { SIGXCPU, "SIGXCPU" },
		{ SIGXFSZ, "SIGXFSZ" }, { SIGSYS, "SIGSYS" },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].number == number)
			return names[i].name;
	return "another";
}

static void add_end(struct sink *sink, const struct failure *failure)
{
	int status = failure->wait_status;

	if (failure->node_tasks > 0) {
		sink_add(sink, "were killed by signal 9 (SIGKILL)");
	} else if (status == 0) {
		sink_add(sink, "failed after %.1f s, though its task exited with code 0", failure->seconds);
		return;
	} else if (WIFSIGNALED(status)) {
		sink_add(sink, "was killed by signal %d (%s)", WTERMSIG(status), signal_name(WTERMSIG(status)));
		if (WCOREDUMP(status))
			sink_add(sink, ", leaving a core dump,");
	} else {
		sink_add(sink, "exited with code %d", WEXITSTATUS(status));
	}
	sink_add(sink, " after %.1f s", failure->seconds);
	if (failure->out_of_memory)
		sink_add(sink, ": the kernel's out-of-memory killer has ended a process of this step there");
}

static void add_progress(struct sink *sink, const struct failure *failure)
{
	struct doing doing;

	doing_read(&failure->progress, failure->now_ns, &doing);
	if (!doing.known)
		return;
	sink_add(sink, ", ");
	doing_add(sink, &doing);
	if (doing.error[0] != '\0')
		sink_add(sink, ": %s", doing.error);
}

static void add_name(struct sink *sink, const struct failure *failure)
{
	bool all = failure->node_tasks > 0;

	if (all)
		sink_add(sink, "all %u tasks on ", failure->node_tasks);
	else if (failure->launcher)
		sink_add(sink, "launcher on node %u of %u (", failure->rank, failure->world_size);
	else
		sink_add(sink, "rank %u of %u on ", failure->rank, failure->world_size);
	sink_add_untrusted(sink, failure->node, HOST_NAME_MAX_BYTES);
	sink_add(sink, !all && failure->launcher ? ") " : " ");
}

void report_failure(const struct failure *failure, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	add_name(&sink, failure);
	add_end(&sink, failure);
	if (failure->node_tasks == 0)
		add_progress(&sink, failure);
}

void report_unstarted(const char *node, uint32_t count, uint32_t tasks, int wait_status, char *text,
                      size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	sink_add(&sink, "tasks did not start on ");
	sink_add_untrusted(&sink, node, HOST_NAME_MAX_BYTES);
	sink_add(&sink, " (%u of %u): before the program, ", count, tasks);
	if (WIFSIGNALED(wait_status))
		sink_add(&sink, "they were killed by signal %d (%s)", WTERMSIG(wait_status),
		         signal_name(WTERMSIG(wait_status)));
	else
		sink_add(&sink, "another plugin or Slurm itself ended them with code %d",
		         WEXITSTATUS(wait_status));
	sink_add(&sink, "; see the log of slurmd on that node");
}

void report_slurmstepd(const char *node, uint32_t tasks, uint32_t world_size, char *text,
                       size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	sink_add(&sink, "slurmstepd on ");
	sink_add_untrusted(&sink, node, HOST_NAME_MAX_BYTES);
	sink_add(&sink, " has died, with %u of the step's %u tasks in its care: nothing is known of them "
	         "any more", tasks, world_size);
}
