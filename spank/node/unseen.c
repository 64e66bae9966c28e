/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/unseen.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEVELS_MAX = 8, MAPS_MAX = 1 << 20 };

static int open_of(pid_t pid, const char *file)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Reads the beginning of a file of the process; what cannot be read is "". */
static void read_start(pid_t pid, const char *file, char *text, size_t bytes)
{
	int fd = open_of(pid, file);
	ssize_t got = fd >= 0 ? read(fd, text, bytes - 1) : 0;

	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = '\0';
}

/* 0: there is none, or the kernel keeps no list. */
static pid_t first_child(pid_t pid)
{
	char file[32], text[32];

	snprintf(file, sizeof(file), "task/%d/children", (int)pid);
	read_start(pid, file, text, sizeof(text));
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
	char text[8192 + sizeof(wanted)];
	size_t kept = 0, read_bytes = 0;
	bool found = false;
	ssize_t got;
	int fd = open_of(pid, "maps");

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

	read_start(pid, "stat", text, sizeof(text));
	behind = strrchr(text, ')');
	/* Field 22; the command before it is field 2. */
	if (behind == NULL || clock_gettime(CLOCK_BOOTTIME, &now) != 0 ||
	    sscanf(behind + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &start) != 1)
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

static uint32_t list(const struct stall_node *node, bool (*is_meant)(const struct stall_rank *), struct stall_note *note)
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
