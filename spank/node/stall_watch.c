/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/stall_watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/relay.h"

/* A look costs some 20 us for each rank. */
enum { PERIOD_MIN_MS = 250, PERIOD_MAX_MS = 5000, LOOKS = 4 };

int stall_watch_period_ms(uint32_t seconds)
{
	uint64_t period_ms = (uint64_t)seconds * 1000 / LOOKS;

	if (seconds == 0)
		return STALL_START_MS;
	if (period_ms < PERIOD_MIN_MS)
		return PERIOD_MIN_MS;
	return period_ms < PERIOD_MAX_MS ? (int)period_ms : PERIOD_MAX_MS;
}

bool stall_watch_open(struct stall_watch *watch, const struct supervise *supervise, uint32_t seconds,
                      struct error *error)
{
	size_t count = supervise->local_tasks, bytes = DDP_RECORD_FILE_BYTES(count);
	void *pages, *ranks;

	*watch = (struct stall_watch){ .shared = supervise->shared, .opened_ns = ddp_now_ns(), .count = supervise->local_tasks,
		                       .seconds = seconds, .period_ms = stall_watch_period_ms(seconds),
		                       .address = supervise->shared->srun_address };
	if (supervise->contained)
		return error_set(error, "stall=: SlurmdParameters=contain_spank of slurm.conf keeps this node from "
		                 "watching its ranks' progress: the administrator should remove it, or stall= be left out");
	if (supervise->progress_fd < 0)
		return error_set(error, "stall=: this node has no memory for its ranks' progress");
	pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, supervise->progress_fd, 0);
	ranks = mmap(NULL, count * sizeof(*watch->ranks), PROT_READ | PROT_WRITE,
	             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || ranks == MAP_FAILED) {
		int reason = errno;
		if (pages != MAP_FAILED)
			munmap(pages, bytes);
		if (ranks != MAP_FAILED)
			munmap(ranks, count * sizeof(*watch->ranks));
		return error_set(error, "stall=: this node cannot watch its ranks: %s", strerror(reason));
	}
	watch->pages = pages;
	watch->ranks = ranks;
	watch->node = (void *)(watch->pages + DDP_RECORD_NODE_OFFSET(count));
	/* A witness that goes on with another one's watch goes on counting. */
	if (seconds > 0) {
		watch->node->stall_seconds = seconds;
		watch->node->magic = DDP_PROGRESS_NODE_MAGIC;
	}
	return true;
}

static void close_watch(struct stall_watch *watch)
{
	munmap(watch->pages, DDP_RECORD_FILE_BYTES(watch->count));
	munmap(watch->ranks, watch->count * sizeof(*watch->ranks));
}

static void read_task(struct stall_watch *watch, uint32_t local, uint64_t now_ns)
{
	const struct supervise_task *task = &watch->shared->task[local];
	enum stall_end end = (enum stall_end)atomic_load(&task->end);
	struct supervise_process process = { .cpu_ms = 0 };
	struct ddp_progress slots[DDP_PROGRESS_SLOTS], page;

	if (end == STALL_NO_END)
		process = supervise_process_of(task->pid);
	/* The rank may be writing it. */
	memcpy(slots, watch->pages + (size_t)local * DDP_PROGRESS_BYTES, sizeof(slots));
	slots_read(slots, &page);
	watch->ranks[local].rank = task->rank;
	stall_see(&watch->ranks[local], &page, end, process.stopped, now_ns);
	stall_see_task(&watch->ranks[local], (uint32_t)task->pid, process.cpu_ms, now_ns);
}

/* Looks at the node's ranks and returns their present state. */
static struct stall_node read_ranks(struct stall_watch *watch, char name[HOST_NAME_MAX_BYTES], uint64_t now_ns)
{
	memset(name, 0, HOST_NAME_MAX_BYTES);
	memcpy(name, watch->shared->node, HOST_NAME_MAX_BYTES - 1);
	for (uint32_t i = 0; i < watch->count; i++)
		read_task(watch, i, now_ns);
	return (struct stall_node){ .name = name, .world_size = watch->shared->world_size,
		                    .seconds = watch->seconds, .ranks = watch->ranks,
		                    .count = watch->count };
}

static bool send_note(const struct stall_watch *watch, const struct stall_note *note)
{
	char address[sizeof(watch->shared->srun_address)] = "";
	unsigned char bytes[STALL_NOTE_BYTES];

	memcpy(address, watch->address, sizeof(address) - 1);
	stall_pack(note, bytes);
	return relay_tell(&watch->relay, address, &(struct relay_news){ .text = "", .stall = bytes,
	                                                                .generation = watch->generation });
}

/* A step that is suspended stops the witness with its ranks. */
static void forget_pause(struct stall_watch *watch, uint64_t now_ns)
{
	uint64_t period_ns = (uint64_t)watch->period_ms * 1000000;
	uint64_t since_ns = watch->looked_ns != 0 ? now_ns - watch->looked_ns : 0;

	if (since_ns > 2 * period_ns)
		stall_forget_time(watch->ranks, watch->count, since_ns - period_ns);
	watch->looked_ns = now_ns;
}

/* A rank that comes late is waited for long, so that its end may be noticed later. */
static int start_look_ms(const struct stall_watch *watch, uint64_t now_ns)
{
	enum { SHARE = 16 };
	uint64_t age_ms = (now_ns - watch->opened_ns) / 1000000, next_ms = age_ms / SHARE;

	if (watch->started || age_ms >= STALL_START_SECONDS * 1000ull)
		return 0;
	if (next_ms < STALL_START_MS)
		return STALL_START_MS;
	return next_ms < STALL_START_MAX_MS ? (int)next_ms : STALL_START_MAX_MS;
}

/* A rank that is stopped is to be known before ranks of other nodes give up, and those of its own
   node are seen by slurmstepd. So often it is looked for; 0: never. */
static int late_look_ms(const struct stall_watch *watch)
{
	enum { PART = 4 };
	uint32_t least_ms = 0;

	if (watch->shared->world_size <= watch->count)
		return 0;
	for (uint32_t i = 0; i < watch->count; i++) {
		const struct stall_rank *rank = &watch->ranks[i];
		uint32_t timeout_ms = rank->page.magic == DDP_PROGRESS_MAGIC ? rank->page.timeout_ms : 0;
		if (rank->end == STALL_NO_END && timeout_ms > 0 && (least_ms == 0 || timeout_ms < least_ms))
			least_ms = timeout_ms;
	}
	if (least_ms == 0)
		return 0;
	if (least_ms / PART < STALL_LATE_MIN_MS)
		return STALL_LATE_MIN_MS;
	return least_ms / PART < STALL_LATE_MAX_MS ? (int)least_ms / PART : STALL_LATE_MAX_MS;
}

/* Returns the shorter of two times, of which 0 is for ever. */
static int sooner(int one_ms, int other_ms)
{
	return one_ms == 0 || (other_ms > 0 && other_ms < one_ms) ? other_ms : one_ms;
}

static int next_look_ms(const struct stall_watch *watch, uint64_t now_ns)
{
	int next_ms = sooner(watch->seconds > 0 ? stall_watch_period_ms(watch->seconds) : start_look_ms(watch, now_ns),
	                     late_look_ms(watch));

	if (watch->pace.ranks != NULL)
		next_ms = sooner(next_ms, PACE_LOOK_MS);
	/* Nobody tells the witness that another generation begins. */
	return watch->generation > 0 ? sooner(next_ms, STALL_START_MAX_MS) : next_ms;
}

/* Says when to tell srun again what it may not have heard: less and less often, also on a node that needs no other
   look. 0: it has heard all. */
static int again_ms(const struct stall_watch *watch)
{
	if (!watch->unanswered)
		return 0;
	if (watch->again_ms == 0)
		return STALL_START_MS;
	return watch->again_ms < STALL_START_MAX_MS / 2 ? watch->again_ms * 2 : STALL_START_MAX_MS;
}

/* Forgets the ranks of an earlier generation: they say nothing of those that run now. */
static void take_generation(struct stall_watch *watch, uint64_t now_ns)
{
	uint32_t generation = atomic_load(&watch->shared->generation);

	if (watch->generation == generation)
		return;
	memset(watch->ranks, 0, watch->count * sizeof(*watch->ranks));
	watch->generation = generation;
	watch->opened_ns = now_ns;
	watch->started = watch->told = watch->stalls = watch->late = watch->unanswered = false;
	watch->again_ms = 0;
	pace_forget(&watch->pace);
}

static void look_at_program(void *about, uint32_t local_task, struct program *program)
{
	const struct stall_watch *watch = about;

	program_of(watch->shared->task[local_task].pid, program);
}

static bool is_unseen(struct stall_watch *watch, const struct stall_node *node, uint64_t now_ns,
                      struct stall_note *note)
{
	const uint64_t age_ms = (now_ns - watch->opened_ns) / 1000000;
	const struct unseen_watch unseen = { .wanted = watch->wanted, .seconds = watch->seconds, .look = look_at_program,
		                             .about = watch, .age_ms = age_ms < UINT32_MAX ? (uint32_t)age_ms : UINT32_MAX };

	if (watch->unseen_told || !(watch->wanted.stall || watch->wanted.watch || watch->wanted.python))
		return false;
	return unseen_judge(&unseen, node, note);
}

/* Returns whether the ranks have made no progress for the time of stall=. The note may also say that they wait in
   ddp_init(), which is no stall: the rank for which they wait may be slow to start, and srun knows if it has ended. */
static bool judge_stall(struct stall_watch *watch, const struct stall_node *node, uint64_t now_ns,
                        struct stall_note *note)
{
	struct stall_note stall;

	watch->started = !stall_judge_start(node, now_ns, note);
	if (watch->seconds == 0)
		return false;
	stall_judge_node(node, now_ns, &stall);
	if (!note->stalled)
		*note = stall;
	return stall.stalled;
}

/* A stall is counted and recorded when it begins. */
static void note_stall(struct stall_watch *watch, bool stalls)
{
	const bool begins = stalls && !watch->stalls;

	if (begins)
		watch->node->stalls++;
	watch->stalls = stalls;
	flight_note_stall(&watch->flight,
	                  &(struct flight_view){ watch->shared, watch->pages, watch->count, watch->generation }, begins);
}

/* A note that srun does not take is lost: the next one tells as much. */
static void look_at_pace(struct stall_watch *watch, uint64_t now_ns)
{
	char address[sizeof(watch->shared->srun_address)] = "";
	unsigned char bytes[PACE_NOTE_BYTES];
	struct pace_note note;

	for (uint32_t i = 0; i < watch->count; i++) {
		struct ddp_progress slots[DDP_PROGRESS_SLOTS];
		memcpy(slots, watch->pages + (size_t)i * DDP_PROGRESS_BYTES, sizeof(slots));
		pace_add_page(&watch->pace, i, watch->ranks[i].rank, slots, watch->ranks[i].end != STALL_NO_END);
	}
	if (!pace_next_note(&watch->pace, watch->shared->world_size, now_ns, &note))
		return;
	memcpy(note.node, watch->shared->node, sizeof(note.node) - 1);
	memcpy(address, watch->address, sizeof(address) - 1);
	pace_pack(&note, bytes);
	relay_tell(&watch->relay, address, &(struct relay_news){ .text = "", .pace = bytes, .generation = watch->generation });
}

int stall_watch_check(struct stall_watch *watch, bool stopping, uint64_t now_ns)
{
	char name[HOST_NAME_MAX_BYTES];
	struct stall_note note;
	struct stall_node node;
	bool late = false, unseen = false, stalls;

	take_generation(watch, now_ns);
	forget_pause(watch, now_ns);
	node = read_ranks(watch, name, now_ns);
	stalls = judge_stall(watch, &node, now_ns, &note);
	if (stopping)
		note = (struct stall_note){ .ranks = note.ranks, .lowest = note.lowest,
			                    .world_size = note.world_size };
	else if (!note.stalled && watch->shared->world_size > watch->count)
		late = stall_judge_late(&node, now_ns, &note);
	unseen = !stopping && !late && !note.stalled && is_unseen(watch, &node, now_ns, &note);
	note_stall(watch, stalls && !stopping);
	if (watch->pace.ranks != NULL && !stopping)
		look_at_pace(watch, now_ns);
	/* Such a rank's times go on. */
	if (note.stalled != watch->told || late || unseen || watch->late || watch->unanswered) {
		watch->told = note.stalled;
		watch->late = late;
		if (late)
			atomic_store(&watch->shared->late, true);
		watch->unanswered = !send_note(watch, &note);
		watch->unseen_told |= unseen && !watch->unanswered;
		if (!late && !watch->unanswered)
			atomic_store(&watch->shared->late, false);
	}
	watch->again_ms = again_ms(watch);
	watch->period_ms = sooner(next_look_ms(watch, now_ns), watch->again_ms);
	return watch->period_ms;
}

void stall_watch_begin_again(struct stall_watch *watch)
{
	watch->unanswered = true;
}

bool stall_watch_give_up(const struct stall_watch *watch)
{
	struct supervise_shared *shared = watch->shared;
	struct stall_note note = { .ranks = watch->count, .lowest = UINT32_MAX, .world_size = shared->world_size };

	for (uint32_t i = 0; i < watch->count; i++)
		if (shared->task[i].rank < note.lowest)
			note.lowest = shared->task[i].rank;
	if (!send_note(watch, &note))
		return false;
	atomic_store(&shared->late, false);
	return true;
}

bool stall_tell_unwatched(const struct supervise *supervise, const struct relay *relay)
{
	const struct stall_watch watch = { .shared = supervise->shared, .count = supervise->local_tasks, .relay = *relay,
		                           .address = supervise->shared->srun_address,
		                           .generation = atomic_load(&supervise->shared->generation) };

	return stall_watch_give_up(&watch);
}

void stall_tell_end(const struct supervise *supervise, const struct relay *relay)
{
	uint64_t now_ns = ddp_now_ns();
	char name[HOST_NAME_MAX_BYTES];
	struct stall_watch watch;
	struct stall_note note;
	struct stall_node node;
	struct error ignored;

	if (!stall_watch_open(&watch, supervise, 0, &ignored))
		return;
	watch.relay = *relay;
	watch.generation = atomic_load(&supervise->shared->generation);
	node = read_ranks(&watch, name, now_ns);
	stall_judge_node(&node, now_ns, &note);
	if (note.stalled)
		send_note(&watch, &note);
	close_watch(&watch);
}

/* ---- slow= ---- */

enum { PACE_THREADS_MAX = 1024 };

bool pace_open(struct pace_watch *watch, uint32_t count, uint32_t nodes)
{
	void *ranks = mmap(NULL, count * sizeof(*watch->ranks), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*watch = (struct pace_watch){ .ranks = ranks != MAP_FAILED ? ranks : NULL, .count = count, .next = count };
	watch->window_ms = nodes < PACE_WINDOW_MS / PACE_NODE_MS ? (uint32_t)PACE_WINDOW_MS : nodes * PACE_NODE_MS;
	return watch->ranks != NULL;
}

void pace_forget(struct pace_watch *watch)
{
	if (watch->ranks != NULL)
		memset(watch->ranks, 0, watch->count * sizeof(*watch->ranks));
	watch->next = watch->count;
	watch->window_ns = 0;
}

/* ---- what the kernel says --------------------------------------------------------------- */

struct waits {
	pid_t pid;
	uint32_t threads;
	uint64_t ns;
};

static void add_thread(const char *number, void *about)
{
	struct waits *waits = about;
	unsigned long long ran, waited;
	char text[96];

	if (waits->threads++ >= PACE_THREADS_MAX)
		return;
	proc_read(text, sizeof(text), "/proc/%d/task/%s/schedstat", (int)waits->pid, number);
	if (sscanf(text, "%llu %llu", &ran, &waited) == 2 && waited > waits->ns)
		waits->ns = waited;
}

uint64_t pace_wait_ns(pid_t pid)
{
	struct waits waits = { .pid = pid };
	char folder[64];

	snprintf(folder, sizeof(folder), "/proc/%d/task", (int)pid);
	proc_visit(folder, add_thread, &waits);
	return waits.ns;
}

/* ---- windows ---------------------------------------------------------------------------- */

void pace_add_page(struct pace_watch *watch, uint32_t local, uint32_t rank,
                   const struct ddp_progress slots[DDP_PROGRESS_SLOTS], bool ended)
{
	struct pace_rank *seen = &watch->ranks[local];
	struct slots_compute compute;

	seen->tells = !ended && rank != UINT32_MAX && slots_compute(slots, &compute);
	if (!seen->tells)
		return;
	/* Another program, or what somebody else has written there */
	if (compute.steps < seen->steps || compute.ns < seen->ns || (pid_t)compute.pid != seen->pid)
		seen->began_steps = 0;
	seen->rank = rank;
	seen->pid = (pid_t)compute.pid;
	seen->steps = compute.steps;
	seen->ns = compute.ns;
}

static void begin_window(struct pace_watch *watch, uint64_t now_ns)
{
	for (uint32_t i = 0; i < watch->count; i++) {
		struct pace_rank *rank = &watch->ranks[i];
		rank->began_steps = rank->tells ? rank->steps : 0;
		rank->began_ns = rank->ns;
		rank->began_wait_ns = rank->tells ? pace_wait_ns(rank->pid) : 0;
	}
	watch->window_ns = now_ns;
}

/* A rank that has come since the window began does without it. */
static bool is_in_window(const struct pace_rank *rank)
{
	return rank->tells && rank->began_steps > 0;
}

/* Whether all ranks that tell have made the steps of a window that has lasted so long; `none`: there is no such rank.
   */
static bool is_complete(const struct pace_watch *watch, uint64_t window_ms, bool *none)
{
	const uint64_t wanted = window_ms < PACE_LONG_MS ? PACE_STEPS : PACE_LONG_STEPS;
	bool complete = true;

	*none = true;
	for (uint32_t i = 0; i < watch->count; i++) {
		if (!is_in_window(&watch->ranks[i]))
			continue;
		*none = false;
		complete &= watch->ranks[i].steps - watch->ranks[i].began_steps >= wanted;
	}
	return complete && !*none && window_ms >= watch->window_ms;
}

static uint32_t microseconds(uint64_t ns)
{
	return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

static void add_pace_rank(struct pace_note *note, const struct pace_rank *rank)
{
	const uint64_t steps = rank->steps - rank->began_steps, ns = rank->ns - rank->began_ns;
	const uint64_t now_ns = pace_wait_ns(rank->pid);
	const uint64_t wait_ns = now_ns > rank->began_wait_ns ? now_ns - rank->began_wait_ns : 0;

	note->steps = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
	note->ranks[note->count++] = (struct pace_rank_note){ .rank = rank->rank, .host_us = microseconds(ns / steps),
		.own_us = wait_ns < ns ? microseconds((ns - wait_ns) / steps) : 0 };
}

static bool fill_pace_note(struct pace_watch *watch, uint32_t world_size, struct pace_note *note)
{
	*note = (struct pace_note){ .world_size = world_size };
	for (; watch->next < watch->count && note->count < PACE_RANKS_MAX; watch->next++) {
		const struct pace_rank *rank = &watch->ranks[watch->next];
		if (is_in_window(rank) && rank->steps > rank->began_steps)
			add_pace_rank(note, rank);
	}
	return note->count > 0;
}

bool pace_next_note(struct pace_watch *watch, uint32_t world_size, uint64_t now_ns, struct pace_note *note)
{
	bool none, filled;

	if (watch->next >= watch->count) {
		const bool complete = is_complete(watch, (now_ns - watch->window_ns) / NS_PER_MS, &none);
		if (none)
			begin_window(watch, now_ns);
		if (!complete)
			return false;
		watch->next = 0;
	}
	filled = fill_pace_note(watch, world_size, note);
	if (watch->next >= watch->count)
		begin_window(watch, now_ns);
	return filled;
}
