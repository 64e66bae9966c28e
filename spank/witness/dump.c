/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/dump.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/witness/folder.h"
#include "spank/witness/rings.h"

enum {
	THREADS_MAX = 256,
	CHILD_SECONDS = 60, /* a file server that does not answer must not keep the child for ever */
};

static size_t read_text(pid_t pid, const char *thread, const char *name, char *text, size_t bytes)
{
	proc_read(text, bytes, "/proc/%d/task/%s/%s", (int)pid, thread, name);
	text[strcspn(text, "\n")] = '\0';
	return strlen(text);
}

static const char *state_name(const char *stat)
{
	const char *end = strrchr(stat, ')');

	switch (end != NULL && end[1] == ' ' ? end[2] : '\0') {
	case 'R': return "runs";
	case 'S': return "sleeps";
	case 'D': return "waits for a device";
	case 'T': return "is stopped";
	case 't': return "is traced";
	case 'Z':
	case 'X': return "has ended";
	default: return "is there";
	}
}

struct threads {
	struct sink *sink;
	pid_t pid;
	int count;
};

static void add_thread(const char *thread, void *about)
{
	struct threads *threads = about;
	struct sink *sink = threads->sink;
	char stat[512], name[64], channel[64];

	if (threads->count++ >= THREADS_MAX || read_text(threads->pid, thread, "stat", stat, sizeof(stat)) == 0)
		return;
	read_text(threads->pid, thread, "comm", name, sizeof(name));
	read_text(threads->pid, thread, "wchan", channel, sizeof(channel));
	sink_add(sink, "thread %s (", thread);
	sink_add_untrusted(sink, name, sizeof(name));
	sink_add(sink, ") %s", state_name(stat));
	if (channel[0] != '\0' && strcmp(channel, "0") != 0) {
		sink_add(sink, " in ");
		sink_add_untrusted(sink, channel, sizeof(channel));
	}
	sink_add(sink, "\n");
}

/* Adds "thread 123 (python) sleeps in futex_wait_queue" for each of the first threads; nothing if the process is
   gone. */
static void threads_add(struct sink *sink, pid_t pid)
{
	struct threads threads = { sink, pid, 0 };
	char folder[64];

	snprintf(folder, sizeof(folder), "/proc/%d/task", (int)pid);
	proc_visit(folder, add_thread, &threads);
}

void record_end_text(int wait_status, char *text, size_t bytes)
{
	if (WIFSIGNALED(wait_status))
		snprintf(text, bytes, "signal %d", WTERMSIG(wait_status));
	else
		snprintf(text, bytes, "code %d", WEXITSTATUS(wait_status));
}

void record_note_lost(struct error *lost, const char *reason)
{
	if (lost != NULL && lost->text[0] == '\0')
		error_set(lost, "%s", reason);
}

static uint64_t real_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A node's tasks as they were at one moment. */
struct snapshot {
	uint64_t now_ns, real_ns;
	uint32_t count;
	struct rings rings[]; /* [count] */
};

static size_t snapshot_bytes(uint32_t count)
{
	return sizeof(struct snapshot) + count * sizeof(struct rings);
}

static struct snapshot *take_snapshot(const struct record_order *order, const struct rings_source *source)
{
	struct snapshot *made = mmap(NULL, snapshot_bytes(order->count), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	                             -1, 0);

	if (made == MAP_FAILED)
		return NULL;
	made->now_ns = ddp_now_ns();
	made->real_ns = real_ns();
	made->count = order->count;
	for (uint32_t i = 0; i < order->count; i++)
		rings_copy(&made->rings[i], source, order->tasks[i].local_task);
	return made;
}

static void free_snapshot(struct snapshot *snapshot)
{
	for (uint32_t i = 0; snapshot != NULL && i < snapshot->count; i++)
		rings_free(&snapshot->rings[i]);
	if (snapshot != NULL)
		munmap(snapshot, snapshot_bytes(snapshot->count));
}

/* The task may be a shell, and the process that has written the page its child. This process has no more rights than
   the user, who may have written any number there. */
static pid_t program_of(const struct record_task *task, const struct rings *rings)
{
	pid_t found = task->pid;

	for (int i = 0; i < DDP_PROGRESS_SLOTS && task->pid > 0; i++) {
		const struct ddp_progress *slot = &rings->slots[i];
		if (slot->magic != DDP_PROGRESS_MAGIC || slot->closed == 1 || slot->pid == 0 || slot->pid > INT32_MAX)
			continue;
		if (found == task->pid || slot->writer == DDP_WRITER_PYTHON)
			found = (pid_t)slot->pid;
	}
	return found;
}

/* All processes are asked before the first is waited for. */
static struct stack *ask_for_stacks(const struct record_order *order, const struct snapshot *snapshot)
{
	struct stack *stacks = calloc(order->count, sizeof(*stacks));

	for (uint32_t i = 0; stacks != NULL && i < order->count; i++) {
		stacks[i].file = -1;
		if (order->tasks[i].pid > 0)
			stack_ask(program_of(&order->tasks[i], &snapshot->rings[i]), &stacks[i]);
	}
	return stacks;
}

static void add_threads(struct sink *sink, pid_t pid, struct stack *stack, uint64_t deadline_ns)
{
	char *text;

	threads_add(sink, pid);
	if (stack->file < 0)
		return;
	text = stack_take(stack, deadline_ns);
	if (text != NULL)
		sink_add(sink, "%s", text);
	free(text);
}

/* Memory for the texts of one rank, which are too long for the stack. */
struct texts {
	char *line, *threads;
};

static bool write_line(int folder, const struct record_order *order, const struct snapshot *snapshot, uint32_t index,
                       const struct texts *texts, bool has_threads, struct error *error)
{
	const struct record_task *task = &order->tasks[index];
	struct sink sink = sink_on(texts->line, RECORD_TEXT_MAX);

	record_text(&sink, &(struct record_rank){
		.reason = order->reason, .job = order->place->job, .step = order->place->step, .generation = order->generation,
		.rank = task->rank, .world_size = order->world_size, .node = order->node,
		.pid = program_of(task, &snapshot->rings[index]),
		.end = task->end, .now_ns = snapshot->now_ns, .real_ns = snapshot->real_ns,
		.threads = has_threads ? texts->threads : NULL, .rings = &snapshot->rings[index] });
	if (sink.full)
		return error_set(error, "the record of rank %u is too long", task->rank);
	return record_folder_add(folder, task->rank, texts->line, sink.used, error);
}

static bool write_to(int folder, const struct record_order *order, const struct snapshot *snapshot,
                     const struct texts *texts, struct error *error)
{
	struct stack *stacks = order->stacks ? ask_for_stacks(order, snapshot) : NULL;
	const uint64_t deadline_ns = ddp_now_ns() + STACK_WAIT_MS * 1000000ull;
	struct error later;
	bool fine = true;

	for (uint32_t i = 0; i < order->count; i++) {
		const struct record_task *task = &order->tasks[i];
		struct sink threads = sink_on(texts->threads, RECORD_STACKS_MAX);
		if (stacks != NULL && task->pid > 0)
			add_threads(&threads, program_of(task, &snapshot->rings[i]), &stacks[i], deadline_ns);
		if (task->rank != UINT32_MAX &&
		    !write_line(folder, order, snapshot, i, texts, threads.used > 0, fine ? error : &later))
			fine = false;
	}
	free(stacks);
	return fine;
}

/* The folder comes first: no process is asked for its stacks if there is no place for them. */
static bool write_lines(const struct record_order *order, const struct snapshot *snapshot, struct error *error)
{
	const struct record_place *place = order->place;
	const struct folder_wish wish = record_folder_wish(place->dir, !place->is_site);
	const int folder = record_folder_open(&wish, place->job, place->step, error);
	const struct texts texts = { malloc(RECORD_TEXT_MAX), malloc(RECORD_STACKS_MAX) };
	bool fine = false;

	if (folder >= 0 && texts.line != NULL && texts.threads != NULL)
		fine = write_to(folder, order, snapshot, &texts, error);
	else if (folder >= 0)
		error_set(error, "no memory for the records of %u tasks", order->count);
	free(texts.threads);
	free(texts.line);
	if (folder >= 0)
		close(folder);
	return fine;
}

bool record_dump(const struct record_order *order, const struct rings_source *source, struct error *error)
{
	struct snapshot *snapshot = take_snapshot(order, source);
	bool fine;

	if (snapshot == NULL)
		return error_set(error, "no memory to copy the records of %u tasks", order->count);
	fine = write_lines(order, snapshot, error);
	free_snapshot(snapshot);
	return fine;
}

static void run_child(const struct record_order *order, const struct snapshot *snapshot)
{
	struct error error;
	sigset_t none;

	/* Before anything else. */
	if (!owner_become(&order->place->owner)) {
		record_note_lost(order->lost, "its writer cannot become the user");
		return;
	}
	prctl(PR_SET_DUMPABLE, 0);
	title_take("ddp-record");
	owner_close_files(3);
	signal(SIGALRM, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	alarm(CHILD_SECONDS);
	if (chdir("/") == 0 && !write_lines(order, snapshot, &error))
		record_note_lost(order->lost, error.text);
}

static void note_writer(const struct record_order *order, pid_t pid)
{
	if (order->writer != NULL)
		atomic_store(order->writer, pid);
}

pid_t record_dump_beside(const struct record_order *order, const struct rings_source *source)
{
	struct snapshot *snapshot;
	pid_t child;

	if (order->place->dir[0] == '\0' || order->count == 0)
		return -1;
	snapshot = take_snapshot(order, source);
	child = snapshot != NULL ? fork() : -1;
	if (child < 0)
		record_note_lost(order->lost, strerror(errno));
	if (child == 0) {
		note_writer(order, getpid());
		run_child(order, snapshot);
		note_writer(order, 0);
		_exit(0);
	}
	free_snapshot(snapshot);
	return child;
}

/* ---- the stacks of Python's threads ---- */

enum { LOOK_MS = 5, QUIET_MS = 40 };

int stack_signal(const char *link)
{
	static const char name[] = "/memfd:ddp_stack-";
	const char *text = link + sizeof(name) - 1;
	char *end;
	long number;

	if (strncmp(link, name, sizeof(name) - 1) != 0 || !isdigit((unsigned char)text[0]))
		return 0;
	number = strtol(text, &end, 10);
	/* The usual signals would end a process that does not expect them. */
	if ((*end != '\0' && *end != ' ') || number < SIGRTMIN || number > SIGRTMAX)
		return 0;
	return (int)number;
}

/* Opens the process's file anew, so that the kernel checks that it is the user's. */
static int open_file(pid_t pid, int *number)
{
	char folder[64], path[sizeof(folder) + 256 + 2], link[128];
	struct dirent *entry;
	DIR *files;
	int file = -1;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)pid);
	files = opendir(folder);
	while (files != NULL && file < 0 && (entry = readdir(files)) != NULL) {
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		ssize_t length = readlink(path, link, sizeof(link) - 1);
		if (length < 0)
			continue;
		link[length] = '\0';
		*number = stack_signal(link);
		if (*number != 0)
			file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	}
	if (files != NULL)
		closedir(files);
	return file;
}

static bool handles(pid_t pid, int number)
{
	return (proc_status(pid).caught >> (number - 1) & 1) != 0;
}

/* The number may be another process's by now, which a descriptor never is. */
static bool send_stack_signal(int process, pid_t pid, int number)
{
	return process >= 0 ? handle_signal(process, number) : kill(pid, number) == 0;
}

bool stack_ask(pid_t pid, struct stack *stack)
{
	int process = handle_open(pid), number = 0;
	struct stat info;
	bool asked;

	stack->file = open_file(pid, &number);
	asked = stack->file >= 0 && fstat(stack->file, &info) == 0 && S_ISREG(info.st_mode) && handles(pid, number);
	if (asked)
		stack->before = info.st_size;
	asked = asked && send_stack_signal(process, pid, number);
	if (process >= 0)
		close(process);
	if (!asked && stack->file >= 0)
		close(stack->file);
	if (!asked)
		stack->file = -1;
	return asked;
}

static off_t size_of(int file)
{
	struct stat info;

	return fstat(file, &info) == 0 ? info.st_size : 0;
}

char *stack_take(struct stack *stack, unsigned long long deadline_ns)
{
	const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000L };
	uint64_t changed_ns = ddp_now_ns();
	off_t seen = stack->before;
	char *text = NULL;
	ssize_t got = 0;

	/* Threads come one after the other. */
	while (ddp_now_ns() < deadline_ns && (seen == stack->before || ddp_now_ns() < changed_ns + QUIET_MS * 1000000ull)) {
		off_t now = size_of(stack->file);
		if (now != seen)
			changed_ns = ddp_now_ns();
		seen = now;
		nanosleep(&pause, NULL);
	}
	if (seen > stack->before)
		text = calloc(1, STACK_TEXT_MAX + 1);
	if (text != NULL && (got = pread(stack->file, text, STACK_TEXT_MAX, stack->before)) <= 0) {
		free(text);
		text = NULL;
	}
	/* The file may hold anything that its user wrote there. */
	for (size_t i = 0; text != NULL && i < (size_t)got; i++)
		if (text[i] != '\n' && (text[i] < ' ' || text[i] > '~'))
			text[i] = '?';
	/* The next text begins at the start of the file, so the file does not grow. */
	if (ftruncate(stack->file, 0) != 0)
		errno = 0;
	close(stack->file);
	stack->file = -1;
	return text;
}
