/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/flight.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/node/stall.h"

enum { END_WAIT_MS = 3000, STALL_WAIT_MS = 3000, WRITERS_LOOK_MS = 20 };

static bool is_wanted(const struct flight *flight, const struct supervise *supervise)
{
	return flight->place.dir[0] != '\0' && supervise->shared != NULL && supervise->progress_fd >= 0;
}

static void describe_task(const struct supervise *supervise, uint32_t local, struct record_task *task)
{
	const struct task_reaped *reaped = &supervise->reaped[local];

	*task = (struct record_task){ .local_task = local, .rank = supervise->shared->task[local].rank };
	if (reaped->ns != 0)
		record_end_text(reaped->wait_status, task->end, sizeof(task->end));
	else
		task->pid = supervise_pid(supervise, local);
}

/* Waits so long for all of them together. */
static void reap_children(struct flight *flight, struct supervise_shared *shared, int ms)
{
	const uint64_t deadline_ns = ddp_now_ns() + (uint64_t)ms * 1000000;
	char text[96];
	int wait_status;

	for (int i = 0; i < FLIGHT_CHILDREN; i++) {
		const uint64_t now_ns = ddp_now_ns();
		const int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / 1000000) : 0;
		if (flight->children[i] <= 0 || !child_reap(flight->children[i], left_ms, &wait_status))
			continue;
		flight->children[i] = 0;
		if (wait_status < 0 || !WIFSIGNALED(wait_status))
			continue;
		snprintf(text, sizeof(text), "the writer was ended by signal %d%s", WTERMSIG(wait_status),
		         WTERMSIG(wait_status) == SIGALRM ? ", as the file server did not answer" : "");
		record_note_lost(&shared->record_lost, text);
	}
}

/* Writes the records in a child, unless so many children are still at work that one more would be lost. `writers`:
   where others see the child; NULL. */
static void write_beside(struct flight *flight, struct record_order order, const struct rings_source *source,
                         _Atomic pid_t *writers)
{
	for (int i = 0; i < FLIGHT_CHILDREN; i++) {
		if (flight->children[i] > 0)
			continue;
		order.writer = writers != NULL ? &writers[i] : NULL;
		const pid_t child = record_dump_beside(&order, source);
		flight->children[i] = child > 0 ? child : 0;
		return;
	}
	record_note_lost(order.lost, "earlier ones are still being written");
}

static void write_records(struct flight *flight, const struct supervise *supervise, const char *reason, bool stacks)
{
	const struct rings_source source = supervise_source(supervise);
	struct record_task *tasks = calloc(supervise->local_tasks, sizeof(*tasks));
	char name[sizeof(supervise->shared->node)] = "";
	const struct record_order order = { .place = &flight->place, .reason = reason, .node = name, .tasks = tasks,
		                            .count = supervise->local_tasks, .generation = supervise->generation,
		                            .world_size = supervise->shared->world_size, .stacks = stacks,
		                            .lost = &supervise->shared->record_lost };

	if (tasks == NULL)
		return;
	reap_children(flight, supervise->shared, 0);
	memcpy(name, supervise->shared->node, sizeof(name) - 1);
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		describe_task(supervise, i, &tasks[i]);
	write_beside(flight, order, &source, NULL);
	free(tasks);
}

void flight_note_failure(struct flight *flight, const struct supervise *supervise)
{
	if (!is_wanted(flight, supervise) || flight->failed)
		return;
	flight->failed = true;
	write_records(flight, supervise, "failure", true);
}

void flight_note_end(struct flight *flight, const struct supervise *supervise)
{
	if (!is_wanted(flight, supervise) || !flight->failed)
		return;
	/* Its lines come before the last ones. */
	reap_children(flight, supervise->shared, END_WAIT_MS);
	write_records(flight, supervise, "end", false);
	reap_children(flight, supervise->shared, END_WAIT_MS);
}

/* Nobody may have reaped a process that has ended, so kill(2) alone does not tell. */
static bool process_runs(pid_t pid)
{
	struct pollfd process = { .fd = handle_open(pid), .events = POLLIN };

	if (process.fd < 0)
		return kill(pid, 0) == 0;
	const bool ended = poll(&process, 1, 0) != 0;
	close(process.fd);
	return !ended;
}

/* The witness's writers are not children of this process. A writer that was killed has left its number behind. */
static bool witness_writes(const struct supervise_shared *shared)
{
	for (int i = 0; i < SUPERVISE_WRITERS; i++) {
		const pid_t writer = atomic_load(&shared->record_writers[i]);
		if (writer > 0 && process_runs(writer))
			return true;
	}
	return false;
}

/* Whether writers are at work. */
static bool await_writers(const struct flight *flight, const struct supervise_shared *shared)
{
	const uint64_t deadline_ns = ddp_now_ns() + END_WAIT_MS * 1000000ull;
	bool own = false;

	for (int i = 0; i < FLIGHT_CHILDREN; i++)
		own |= flight->children[i] > 0;
	while (witness_writes(shared) && ddp_now_ns() < deadline_ns)
		pause_ms(WRITERS_LOOK_MS);
	return own || witness_writes(shared);
}

void flight_tell_lost(const struct flight *flight, const struct supervise *supervise, void (*say)(const char *text))
{
	const struct error *lost = &supervise->shared->record_lost;
	bool writes;
	char text[RECORD_DIR_MAX + sizeof(lost->text) + HOST_NAME_MAX_BYTES + 128];
	struct sink sink = sink_on(text, sizeof(text));

	if (!is_wanted(flight, supervise))
		return;
	writes = await_writers(flight, supervise->shared);
	if (lost->text[0] == '\0' && !writes)
		return;
	sink_add(&sink, "flight records of node ");
	sink_add_untrusted(&sink, supervise->shared->node, HOST_NAME_MAX_BYTES);
	if (lost->text[0] == '\0') {
		sink_add(&sink, " are not yet written to %s: the file server has not answered in time", flight->place.dir);
	} else {
		sink_add(&sink, " were not written to %s: ", flight->place.dir);
		sink_add_untrusted(&sink, lost->text, sizeof(lost->text));
	}
	say(text);
}

void flight_note_stall(struct flight *flight, const struct flight_view *view, bool begins)
{
	struct supervise_shared *shared = view->shared;
	const struct rings_source source = { .file = -1, .memory = view->pages, .tasks = view->count,
		                             .bytes = DDP_RECORD_FILE_BYTES(view->count) };
	struct record_task *tasks;
	char name[sizeof(shared->node)] = "";

	reap_children(flight, shared, 0);
	if (!begins || flight->place.dir[0] == '\0' || (tasks = calloc(view->count, sizeof(*tasks))) == NULL)
		return;
	memcpy(name, shared->node, sizeof(name) - 1);
	for (uint32_t i = 0; i < view->count; i++)
		tasks[i] = (struct record_task){ .local_task = i, .rank = shared->task[i].rank,
			.pid = atomic_load(&shared->task[i].end) == STALL_NO_END ? shared->task[i].pid : 0 };
	write_beside(flight, (struct record_order){ .place = &flight->place, .reason = "stall", .node = name,
		.count = view->count, .generation = view->generation, .world_size = shared->world_size, .stacks = true,
		.tasks = tasks, .lost = &shared->record_lost }, &source, shared->record_writers);
	free(tasks);
	/* With stall-action=kill the ranks end as soon as srun hears of it, and so does the child. */
	reap_children(flight, shared, STALL_WAIT_MS);
}
