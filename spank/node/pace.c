/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/pace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "spank/base/child.h"
#include "spank/wire/progress_page.h"

enum { THREADS_MAX = 1024 };

static const uint64_t ns_per_ms = 1000000;

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
	char path[96], text[96];
	unsigned long long ran, waited;
	ssize_t got;
	int file;

	if (waits->threads++ >= THREADS_MAX)
		return;
	snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)waits->pid, number);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return;
	got = read(file, text, sizeof(text) - 1);
	close(file);
	text[got > 0 ? got : 0] = '\0';
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

static void begin(struct pace_watch *watch, uint64_t now_ns)
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

static void add(struct pace_note *note, const struct pace_rank *rank)
{
	const uint64_t steps = rank->steps - rank->began_steps, ns = rank->ns - rank->began_ns;
	const uint64_t now_ns = pace_wait_ns(rank->pid), wait_ns = now_ns > rank->began_wait_ns ? now_ns - rank->began_wait_ns : 0;

	note->steps = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
	note->ranks[note->count++] = (struct pace_rank_note){ .rank = rank->rank, .host_us = microseconds(ns / steps),
		.own_us = wait_ns < ns ? microseconds((ns - wait_ns) / steps) : 0 };
}

static bool fill(struct pace_watch *watch, uint32_t world_size, struct pace_note *note)
{
	*note = (struct pace_note){ .world_size = world_size };
	for (; watch->next < watch->count && note->count < PACE_RANKS_MAX; watch->next++)
		if (is_in_window(&watch->ranks[watch->next]) && watch->ranks[watch->next].steps > watch->ranks[watch->next].began_steps)
			add(note, &watch->ranks[watch->next]);
	return note->count > 0;
}

bool pace_next_note(struct pace_watch *watch, uint32_t world_size, uint64_t now_ns, struct pace_note *note)
{
	bool none, filled;

	if (watch->next >= watch->count) {
		const bool complete = is_complete(watch, (now_ns - watch->window_ns) / ns_per_ms, &none);
		if (none)
			begin(watch, now_ns);
		if (!complete)
			return false;
		watch->next = 0;
	}
	filled = fill(watch, world_size, note);
	if (watch->next >= watch->count)
		begin(watch, now_ns);
	return filled;
}
