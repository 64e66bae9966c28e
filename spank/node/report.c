/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/report.h"

#include <signal.h>
#include <sys/wait.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/progress_page.h"

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
	struct progress_text progress;

	progress_text_read(&failure->progress, failure->now_ns, &progress);
	if (!progress.known)
		return;
	sink_add(sink, ", ");
	progress_text_add(sink, &progress);
	if (progress.error[0] != '\0')
		sink_add(sink, ": %s", progress.error);
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
