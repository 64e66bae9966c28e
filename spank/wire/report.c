/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/report.h"

#include <ctype.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/progress_page.h"

static const char note_begin[] = "[ddp: failure ", requeue_begin[] = "[ddp: run ";

static const char *const kinds[] = {
	[EVENT_NOTHING] = "nothing", [EVENT_EXIT] = "exit", [EVENT_CRASH] = "crash", [EVENT_KILLED] = "killed",
	[EVENT_MEMORY] = "memory", [EVENT_STOPPED] = "stopped", [EVENT_PEER] = "peer", [EVENT_UNSTARTED] = "unstarted",
	[EVENT_STALL] = "stall", [EVENT_SILENCE] = "silence", [EVENT_NODE] = "node", [EVENT_RESTARTS] = "restarts",
};

enum event_kind event_kind_of(const struct end_facts *facts)
{
	if (facts->node_failed)
		return EVENT_NODE;
	if (facts->silent)
		return EVENT_SILENCE;
	if (judge_is_hearsay(facts))
		return EVENT_PEER;
	switch (facts->end) {
	case END_FINE:
		return EVENT_NOTHING;
	case END_CODE:
		return EVENT_EXIT;
	case END_CRASH:
		return EVENT_CRASH;
	case END_BY_REQUEST:
		return EVENT_STOPPED;
	case END_BY_KILL:
		return facts->out_of_memory ? EVENT_MEMORY : EVENT_KILLED;
	}
	return EVENT_NOTHING;
}

struct event event_begin(enum event_kind kind)
{
	return (struct event){ .kind = kind, .job_id = EVENT_NONE, .step_id = EVENT_NONE, .uid = EVENT_NONE,
		               .rank = EVENT_NONE, .world_size = EVENT_NONE, .seconds = -1, .peer = EVENT_NONE,
		               .stalls = EVENT_NONE };
}

static void add_number(struct sink *sink, const char *key, uint32_t number)
{
	if (number != EVENT_NONE)
		sink_add(sink, " %s=%u", key, number);
}

/* A word has no spaces and no signs, whatever somebody called a node. */
static void add_word(struct sink *sink, const char *key, const char *word)
{
	if (word == NULL || word[0] == '\0')
		return;
	sink_add(sink, " %s=", key);
	for (; *word != '\0'; word++)
		sink_add(sink, "%c", isalnum((unsigned char)*word) || strchr("._-", *word) != NULL ? *word : '?');
}

static void add_status(struct sink *sink, int wait_status)
{
	if (wait_status == 0)
		return;
	if (WIFSIGNALED(wait_status))
		sink_add(sink, " signal=%d", WTERMSIG(wait_status));
	else
		sink_add(sink, " code=%d", WEXITSTATUS(wait_status));
}

/* Brackets would end a note in a comment. */
static char shown(char byte)
{
	if (byte == '[')
		return '(';
	if (byte == ']')
		return ')';
	return byte >= ' ' && byte <= '~' ? byte : '?';
}

static void add_text(struct sink *sink, const char *text)
{
	size_t end = sink->used + EVENT_TEXT_MAX;

	if (text == NULL || text[0] == '\0')
		return;
	sink_add(sink, " text=\"");
	for (; *text != '\0' && sink->used < end && sink->used + 4 < sink->bytes; text++)
		sink_add(sink, *text == '"' || *text == '\\' ? "\\%c" : "%c", shown(*text));
	sink_add(sink, "\"");
}

static void add_event(struct sink *sink, const struct event *event)
{
	sink_add(sink, "failure v=%d kind=%s", EVENT_VERSION, kinds[event->kind]);
	add_number(sink, "job", event->job_id);
	add_number(sink, "step", event->step_id);
	add_number(sink, "uid", event->uid);
	add_word(sink, "node", event->node);
	add_number(sink, "rank", event->rank);
	add_number(sink, "ranks", event->world_size);
	add_status(sink, event->wait_status);
	add_number(sink, "peer", event->peer);
	add_number(sink, "stalls", event->stalls);
	if (event->seconds >= 0 && event->seconds < 1e9)
		sink_add(sink, " seconds=%.1f", event->seconds);
	if (event->training_step > 0)
		sink_add(sink, " training_step=%llu", (unsigned long long)event->training_step);
	add_number(sink, "generation", event->generation > 0 ? event->generation : EVENT_NONE);
	if (event->time > 0)
		sink_add(sink, " time=%lld", (long long)event->time);
	add_text(sink, event->text);
}

void event_write(const struct event *event, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	add_event(&sink, event);
}

bool event_comment(const struct event *event, const char *comment, char *text, size_t bytes)
{
	const char *before = comment != NULL ? comment : "", *earlier = strstr(before, note_begin);
	const char *end = earlier != NULL ? strchr(earlier, ']') : NULL, *rest = end != NULL ? end + 1 : "";
	const char *requeue = strstr(before, requeue_begin);
	size_t kept = end != NULL ? (size_t)(earlier - before) : strlen(before);
	struct sink sink = sink_on(text, bytes);
	char line[EVENT_LINE_MAX];

	if (end == NULL && requeue != NULL) {
		kept = (size_t)(requeue - before);
		rest = requeue;
	}
	while (kept > 0 && before[kept - 1] == ' ')
		kept--;
	rest += strspn(rest, " ");
	event_write(event, line, sizeof(line));
	sink_add(&sink, "%.*s%s[ddp: %s]%s%s", (int)kept, before, kept > 0 ? " " : "", line, rest[0] != '\0' ? " " : "", rest);
	return !sink.full;
}

/* ---- for people ---- */

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
