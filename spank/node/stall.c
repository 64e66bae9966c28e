/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/stall.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/base/child.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/progress_page.h"

/* Ranks come one after the other: a wait in ddp_init() that is shorter is not told. */
static const double start_seconds = 0.5;

/* The rank writes these numbers as it goes on; texts follow from them. For messages, and for
   collectives of groups, the time of the last wait is all that tells them apart. */
static bool same_place(const struct ddp_progress *a, const struct ddp_progress *b)
{
	return a->magic == b->magic && a->phase == b->phase && a->step == b->step &&
	       a->updated_ns == b->updated_ns && a->bucket == b->bucket &&
	       a->collective == b->collective && a->collective_ns == b->collective_ns &&
	       a->waiting == b->waiting && a->closed == b->closed && a->status == b->status &&
	       a->others == b->others;
}

void stall_see(struct stall_rank *rank, const struct ddp_progress *page, enum stall_end end,
               bool stopped, uint64_t now_ns)
{
	if (rank->changed_ns == 0 || end != rank->end || stopped != rank->stopped ||
	    !same_place(&rank->page, page))
		rank->changed_ns = now_ns;
	rank->page = *page;
	rank->end = end;
	rank->stopped = stopped;
	/* A program may call ddp_init() once more. */
	if (page->magic != DDP_PROGRESS_MAGIC || page->closed != 1)
		rank->closed_ns = 0;
	else if (rank->closed_ns == 0)
		rank->closed_ns = now_ns;
}

void stall_see_task(struct stall_rank *rank, uint32_t pid, uint64_t cpu_ms, uint64_t now_ns)
{
	/* A thread that looks for something from time to time is no work. */
	enum { WORK_PART = 20 };
	uint64_t least_ms = (now_ns - rank->seen_ns) / NS_PER_MS / WORK_PART;

	if (rank->closed_ns != 0 && rank->end == STALL_NO_END && cpu_ms > rank->cpu_ms + least_ms)
		rank->changed_ns = now_ns;
	rank->is_task = rank->page.pid == pid;
	rank->cpu_ms = cpu_ms;
	rank->seen_ns = now_ns;
}

void stall_forget_time(struct stall_rank *ranks, uint32_t count, uint64_t lost_ns)
{
	for (uint32_t i = 0; i < count; i++)
		if (ranks[i].changed_ns != 0)
			ranks[i].changed_ns += lost_ns;
}

bool stall_is_quiet(const struct stall_rank *rank, uint32_t seconds, uint64_t now_ns)
{
	return now_ns >= rank->changed_ns &&
	       now_ns - rank->changed_ns >= (uint64_t)seconds * 1000 * NS_PER_MS;
}

/* A program of Python may say that it waits, in a collective of which slurm_ddp knows nothing. */
static bool is_waiting(const struct stall_rank *rank, const struct progress_text *progress)
{
	return progress->wait != PROGRESS_NO_WAIT ||
	       (rank->page.writer == DDP_WRITER_PYTHON && progress->phase == DDP_PHASE_WAIT);
}

static enum stall_kind kind_of(const struct stall_rank *rank, const struct progress_text *progress)
{
	if (rank->end != STALL_NO_END)
		return rank->end == STALL_GOOD_END ? STALL_ENDED : STALL_FAILED;
	if (rank->stopped)
		return STALL_STOPPED;
	if (progress->closed)
		return STALL_LEFT;
	return is_waiting(rank, progress) ? STALL_WAITS : STALL_RUNS;
}

/* In a checkpoint or an evaluation a rank may run for as long as it likes, and who
   waits for it there is as good as in any other phase. */
static bool goes_on(const struct stall_rank *rank, uint32_t seconds, uint64_t now_ns)
{
	struct progress_text progress;

	if (rank->rank == UINT32_MAX || !stall_is_quiet(rank, seconds, now_ns))
		return true;
	if (rank->end != STALL_NO_END)
		return false;
	progress_text_read(&rank->page, now_ns, &progress);
	return !progress.known || (progress_text_is_busy(&progress) && kind_of(rank, &progress) == STALL_RUNS);
}

static uint32_t ms_since(uint64_t then_ns, uint64_t now_ns)
{
	uint64_t ms = now_ns > then_ns ? (now_ns - then_ns) / NS_PER_MS : 0;

	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static void note_furthest_behind(const struct stall_rank *rank, const struct progress_text *progress,
                                 const struct stall_node *node, uint64_t now_ns,
                                 struct stall_note *note)
{
	struct sink who = sink_on(note->who, sizeof(note->who));
	struct sink sink = sink_on(note->doing, sizeof(note->doing));

	note->kind = kind_of(rank, progress);
	note->rank = rank->rank;
	note->collective = progress_text_place(progress);
	note->since_ms = ms_since(note->kind == STALL_LEFT ? rank->closed_ns : rank->changed_ns, now_ns);
	sink_add(&who, "rank %u of %u on ", rank->rank, node->world_size);
	sink_add_untrusted(&who, node->name, HOST_NAME_MAX_BYTES);
	if (progress->closed)
		sink_add(&sink, "%.1f s after ddp_finalize() or destroy_process_group()", ms_since(rank->closed_ns, now_ns) / 1000.0);
	else
		progress_text_add(&sink, progress);
}

/* Adds a rank to the note's ranges; ranks come in order. */
static void stall_add_to_ranges(uint32_t rank, struct stall_note *note)
{
	struct stall_range *last = &note->ranges[note->range_count > 0 ? note->range_count - 1 : 0];

	if (note->range_count > 0 && rank > 0 && rank - 1 == last->last)
		last->last = rank;
	else if (note->range_count < STALL_RANGES_MAX)
		note->ranges[note->range_count++] = (struct stall_range){ rank, rank };
	else
		note->cut = true;
}

static void note_wait(const struct stall_rank *rank, const struct progress_text *progress, struct stall_note *note)
{
	char wait[STALL_WAIT_MAX + 1] = "";
	struct sink sink;

	stall_add_to_ranges(rank->rank, note);
	if (progress->wait == PROGRESS_NO_WAIT)
		return;
	sink = sink_on(wait, sizeof(wait));
	if (progress->wait == PROGRESS_WAITS_IN_COLLECTIVE)
		sink_add(&sink, "collective #%llu%s", (unsigned long long)progress->collective,
		         progress->text[0] != '\0' ? " " : "");
	sink_add(&sink, "%s", progress->text);
	if (note->wait[0] != '\0' && progress->collective <= note->wait_collective) {
		if (note->odd == 0 && stall_differs(note->wait, wait)) {
			note->odd = rank->rank + 1;
			memcpy(note->odd_wait, wait, sizeof(note->odd_wait));
		}
		return;
	}
	/* The wait of a rank that is further behind says nothing of this collective. */
	note->odd = 0;
	memcpy(note->wait, wait, sizeof(note->wait));
	note->wait_collective = progress->collective;
	note->wait_ms = progress->wait_seconds > 0 && progress->wait_seconds < UINT32_MAX / 1000.0
	                ? (uint32_t)(progress->wait_seconds * 1000) : 0;
}

static bool is_further_behind(enum stall_kind kind, const struct progress_text *progress, const struct stall_note *note)
{
	return note->who[0] == '\0' || kind < note->kind ||
	       (kind == note->kind && progress_text_place(progress) < note->collective);
}

static void add_rank(const struct stall_rank *rank, const struct stall_node *node, uint64_t now_ns,
                     struct stall_note *note)
{
	struct progress_text progress;
	enum stall_kind kind;
	uint32_t quiet_ms = ms_since(rank->changed_ns, now_ns);

	progress_text_read(&rank->page, now_ns, &progress);
	kind = kind_of(rank, &progress);
	if (kind == STALL_STOPPED || kind == STALL_RUNS || (kind == STALL_LEFT && rank->is_task))
		note->absent++;
	if (kind == STALL_STOPPED || kind == STALL_RUNS || kind == STALL_WAITS || (kind == STALL_LEFT && rank->is_task))
		note->at_work++;
	if (quiet_ms < note->quiet_ms)
		note->quiet_ms = quiet_ms;
	if (is_further_behind(kind, &progress, note))
		note_furthest_behind(rank, &progress, node, now_ns, note);
	if (kind == STALL_WAITS)
		note_wait(rank, &progress, note);
}

void stall_judge_node(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	bool stalled = true;

	*note = (struct stall_note){ .ranks = node->count, .lowest = UINT32_MAX,
		                     .world_size = node->world_size };
	for (uint32_t i = 0; i < node->count; i++) {
		if (node->ranks[i].rank < note->lowest)
			note->lowest = node->ranks[i].rank;
		stalled = stalled && !goes_on(&node->ranks[i], node->seconds, now_ns);
	}
	if (!stalled)
		return;
	note->stalled = true;
	note->quiet_ms = UINT32_MAX;
	for (uint32_t i = 0; i < node->count; i++)
		add_rank(&node->ranks[i], node, now_ns, note);
}

static bool has_page(const struct stall_rank *rank)
{
	return rank->page.magic == DDP_PROGRESS_MAGIC && rank->page.writer == DDP_WRITER_LIBDDP;
}

static bool is_late(const struct stall_rank *rank, enum stall_kind kind, uint64_t now_ns)
{
	uint64_t wanted_ns = rank->page.wanted_ns;

	if (kind == STALL_STOPPED)
		return now_ns > rank->changed_ns;
	return kind == STALL_RUNS && has_page(rank) && wanted_ns <= now_ns && now_ns - wanted_ns < STALL_WANTED_NS;
}

bool stall_judge_late(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	for (uint32_t i = 0; i < node->count; i++) {
		const struct stall_rank *rank = &node->ranks[i];
		struct progress_text progress;
		enum stall_kind kind;
		progress_text_read(&rank->page, now_ns, &progress);
		kind = kind_of(rank, &progress);
		if (rank->rank != UINT32_MAX && is_late(rank, kind, now_ns) &&
		    is_further_behind(kind, &progress, note))
			note_furthest_behind(rank, &progress, node, now_ns, note);
	}
	return note->who[0] != '\0';
}

static bool is_in_first_exchange(const struct progress_text *progress)
{
	return progress->wait == PROGRESS_WAITS_OTHERWISE && progress->collective == 0 &&
	       strcmp(progress->text, DDP_PROGRESS_FIRST_EXCHANGE) == 0;
}

bool stall_judge_start(const struct stall_node *node, uint64_t now_ns, struct stall_note *note)
{
	struct stall_node all = *node;
	bool blocked = true, may_be = false;
	struct progress_text progress;

	all.seconds = 0;
	stall_judge_node(&all, now_ns, note);
	for (uint32_t i = 0; i < node->count; i++) {
		const struct stall_rank *rank = &node->ranks[i];
		bool waits;
		progress_text_read(&rank->page, now_ns, &progress);
		waits = rank->end == STALL_NO_END && is_in_first_exchange(&progress);
		may_be |= waits || (rank->end == STALL_NO_END && !has_page(rank));
		blocked &= (waits && progress.wait_seconds >= start_seconds) ||
		           (rank->end == STALL_GOOD_END && !has_page(rank));
	}
	if (!blocked)
		*note = (struct stall_note){ .ranks = note->ranks, .lowest = note->lowest,
			                     .world_size = note->world_size };
	return blocked || may_be;
}

/* ---- ranks that are not seen ---- */

enum { LEVELS_MAX = 8, MAPS_MAX = 1 << 20 };

/* 0: there is none, or the kernel keeps no list. */
static pid_t first_child(pid_t pid)
{
	char text[32];

	proc_read(text, sizeof(text), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	/* A number that is cut would be another process. */
	return strchr(text, ' ') != NULL ? (pid_t)strtol(text, NULL, 10) : 0;
}

static void read_name(pid_t pid, char name[STALL_PROGRAM_MAX + 1])
{
	static const char deleted[] = " (deleted)";
	char path[64], target[4096];
	const char *base;
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	got = readlink(path, target, sizeof(target) - 1);
	target[got > 0 ? got : 0] = '\0';
	if ((size_t)(got > 0 ? got : 0) > strlen(deleted) && strcmp(target + got - strlen(deleted), deleted) == 0)
		target[(size_t)got - strlen(deleted)] = '\0';
	base = strrchr(target, '/');
	snprintf(name, STALL_PROGRAM_MAX + 1, "%.*s", STALL_PROGRAM_MAX, base != NULL ? base + 1 : "");
}

/* Looks for the library in the list of what is loaded, piece by piece. */
static bool has_libddp(pid_t pid)
{
	static const char wanted[] = "/libddp.so";
	char path[64], text[8192 + sizeof(wanted)];
	size_t kept = 0, read_bytes = 0;
	bool found = false;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && !found && read_bytes < MAPS_MAX && (got = read(fd, text + kept, 8192)) > 0) {
		size_t bytes = kept + (size_t)got;
		found = memmem(text, bytes, wanted, strlen(wanted)) != NULL;
		read_bytes += (size_t)got;
		kept = bytes < strlen(wanted) ? bytes : strlen(wanted);
		memmove(text, text + bytes - kept, kept);
	}
	if (fd >= 0)
		close(fd);
	return found;
}

static uint32_t age_ms_of(pid_t pid)
{
	unsigned long long start = 0;
	struct timespec now = { .tv_sec = 0 };
	char text[1024];
	const char *behind;
	uint64_t now_ms, start_ms;

	proc_read(text, sizeof(text), "/proc/%d/stat", (int)pid);
	behind = strrchr(text, ')');
	/* Field 22; the command before it is field 2. */
	if (behind == NULL || clock_gettime(CLOCK_BOOTTIME, &now) != 0 ||
	    sscanf(behind + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
	           &start) != 1)
		return 0;
	now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	start_ms = start * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
	if (start_ms > now_ms)
		return 0;
	return now_ms - start_ms < UINT32_MAX ? (uint32_t)(now_ms - start_ms) : UINT32_MAX;
}

void program_of(pid_t pid, struct program *program)
{
	pid_t child;

	*program = (struct program){ .age_ms = 0 };
	if (pid <= 0)
		return;
	for (int level = 0; level < LEVELS_MAX; level++) {
		read_name(pid, program->name);
		/* Its own children are workers. */
		if (program_is_python(program->name) || (child = first_child(pid)) <= 0)
			break;
		pid = child;
	}
	program->has_libddp = has_libddp(pid);
	program->age_ms = age_ms_of(pid);
}

bool program_is_python(const char *name)
{
	static const char python[] = "python";

	if (strncmp(name, python, strlen(python)) != 0)
		return false;
	name += strlen(python);
	return *name == '\0' || isdigit((unsigned char)*name);
}

static uint32_t unseen_page_ms(uint32_t stall_seconds)
{
	uint64_t stall_ms = (uint64_t)stall_seconds * 1000, several_ms = stall_ms * UNSEEN_STALLS;

	if (stall_ms == 0 || (several_ms >= UNSEEN_PAGE_MS && stall_ms <= UNSEEN_PAGE_MS))
		return UNSEEN_PAGE_MS;
	if (stall_ms > UNSEEN_PAGE_MS)
		return stall_ms < UINT32_MAX ? (uint32_t)stall_ms : UINT32_MAX;
	return several_ms > UNSEEN_LEAST_MS ? (uint32_t)several_ms : UNSEEN_LEAST_MS;
}

/* A start may last five times as long as a page may take to come. */
static uint32_t start_ms(uint32_t stall_seconds)
{
	uint64_t ms = (uint64_t)unseen_page_ms(stall_seconds) * (UNSEEN_START_MS / UNSEEN_PAGE_MS);

	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static bool has_no_page(const struct stall_rank *rank)
{
	return rank->end == STALL_NO_END && rank->page.magic != DDP_PROGRESS_MAGIC;
}

/* Only slurm_ddp knows this phase. */
static bool is_starting(const struct stall_rank *rank)
{
	return rank->end == STALL_NO_END && rank->page.magic == DDP_PROGRESS_MAGIC && rank->page.closed == 0 &&
	       rank->page.phase == DDP_PROGRESS_STARTING && rank->page.step <= 0 && rank->page.waiting == DDP_WAITING_NOT;
}

static uint32_t list(const struct stall_node *node, bool (*is_meant)(const struct stall_rank *),
                     struct stall_note *note)
{
	uint32_t first = UINT32_MAX;

	for (uint32_t i = 0; i < node->count; i++) {
		if (!is_meant(&node->ranks[i]))
			continue;
		if (first == UINT32_MAX)
			first = i;
		stall_add_to_ranges(node->ranks[i].rank, note);
	}
	return first;
}

static bool fill_note(const struct unseen_watch *watch, enum stall_unseen unseen, const struct program *program,
                      struct stall_note *note)
{
	note->unseen = unseen;
	note->unseen_ms = watch->age_ms;
	memcpy(note->program, program->name, sizeof(note->program));
	return true;
}

bool unseen_judge(const struct unseen_watch *watch, const struct stall_node *node, struct stall_note *note)
{
	const uint32_t page_ms = unseen_page_ms(watch->seconds);
	const bool page_is_due = (watch->wanted.stall || watch->wanted.watch) && watch->age_ms >= page_ms;
	const bool python_is_due = watch->wanted.python && watch->age_ms >= UNSEEN_PYTHON_MS;
	struct program program = { .age_ms = 0 };
	uint32_t first;

	for (uint32_t i = 0; i < node->count; i++)
		if (node->ranks[i].rank == UINT32_MAX)
			return false;
	*note = (struct stall_note){ .ranks = node->count, .lowest = note->lowest, .world_size = node->world_size };
	first = page_is_due || python_is_due ? list(node, has_no_page, note) : UINT32_MAX;
	if (first != UINT32_MAX) {
		watch->look(watch->about, first, &program);
		if (python_is_due && program_is_python(program.name) && program.age_ms >= UNSEEN_PYTHON_MS)
			return fill_note(watch, STALL_NO_PYTHON, &program, note);
		/* A program that has libddp may take long before it calls ddp_init(). */
		if (page_is_due && !program.has_libddp)
			return fill_note(watch, STALL_NO_PAGE, &program, note);
		note->range_count = 0;
		note->cut = false;
	}
	if (!watch->wanted.stall || watch->age_ms < start_ms(watch->seconds))
		return false;
	first = list(node, is_starting, note);
	if (first == UINT32_MAX)
		return false;
	watch->look(watch->about, first, &program);
	return fill_note(watch, STALL_STARTS, &program, note);
}
