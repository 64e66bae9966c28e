/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/supervise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/identity/identity.h"
#include "spank/node/stall.h"
#include "spank/wire/judge.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/timeline.h"
#include "watch/record.h"

/* Scripts use descriptors below 10, and shells some above. Linux gives a process
   room for 64: a number beyond makes it grow the table, and a process with
   threads, as slurmstepd is, waits 10 ms for that. */
enum { LOCAL_TASKS_MAX = 65536, HIGH_DESCRIPTOR = 48, TASK_POLL_MS = 5 };

static size_t shared_bytes(uint32_t local_tasks)
{
	return sizeof(struct supervise_shared) + local_tasks * sizeof(struct supervise_task);
}

/* A page for each task, its rings, of which only those that are used take memory, and a page of the node's own. The
   file's size is fixed: a task cannot cut it short under the reader. */
static int make_progress_file(uint32_t local_tasks, uid_t owner)
{
	const struct ddp_record_place place = { .magic = DDP_RECORD_MAGIC, .version = DDP_RECORD_VERSION,
		                                .tasks = local_tasks };
	int high, fd = memfd_create("ddp_progress", MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	/* By default anybody could open it, and run it; its owner opens it anew, by
	   /proc/PID/fd, to see what the tasks do. */
	if (fchmod(fd, S_IRUSR | S_IWUSR) < 0 || fchown(fd, owner, (gid_t)-1) < 0 ||
	    ftruncate(fd, (off_t)DDP_RECORD_FILE_BYTES(local_tasks)) < 0 ||
	    pwrite(fd, &place, sizeof(place), (off_t)DDP_RECORD_PLACE_OFFSET(local_tasks)) != (ssize_t)sizeof(place) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		close(fd);
		return -1;
	}
	high = fcntl(fd, F_DUPFD, HIGH_DESCRIPTOR);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

bool supervise_start(struct supervise *supervise, uint32_t local_tasks, uid_t owner,
                     struct error *error)
{
	*supervise = (struct supervise){ .progress_fd = -1, .agents = { .news = -1 } };
	if (local_tasks == 0 || local_tasks > LOCAL_TASKS_MAX)
		return error_set(error, "Slurm gives this node %u tasks", local_tasks);
	supervise->pids = calloc(local_tasks, sizeof(*supervise->pids));
	supervise->reaped = calloc(local_tasks, sizeof(*supervise->reaped));
	supervise->shared = mmap(NULL, shared_bytes(local_tasks), PROT_READ | PROT_WRITE,
	                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (supervise->pids == NULL || supervise->reaped == NULL || supervise->shared == MAP_FAILED) {
		int reason = errno;
		if (supervise->shared == MAP_FAILED)
			supervise->shared = NULL;
		supervise_end(supervise);
		return error_set(error, "no memory to watch %u tasks: %s", local_tasks, strerror(reason));
	}
	supervise->local_tasks = local_tasks;
	for (uint32_t i = 0; i < local_tasks; i++)
		supervise->shared->task[i].rank = UINT32_MAX;
	supervise->contained = contained_here();
	if (!supervise->contained)
		supervise->progress_fd = make_progress_file(local_tasks, owner);
	return true;
}

void supervise_end(struct supervise *supervise)
{
	if (supervise->shared != NULL)
		munmap(supervise->shared, shared_bytes(supervise->local_tasks));
	if (supervise->progress_fd >= 0)
		close(supervise->progress_fd);
	if (supervise->agents.shared != NULL)
		agents_free(&supervise->agents);
	free(supervise->pids);
	free(supervise->reaped);
	*supervise = (struct supervise){ .progress_fd = -1, .agents = { .news = -1 } };
}

void supervise_note_place(struct supervise_shared *shared, char *const *environment)
{
	const char *address = environment_get(environment, "SLURM_LAUNCH_NODE_IPADDR");
	const char *node = environment_get(environment, "SLURMD_NODENAME");

	if (shared != NULL && address != NULL && strlen(address) < sizeof(shared->srun_address))
		memcpy(shared->srun_address, address, strlen(address));
	if (shared != NULL && node != NULL && strlen(node) < sizeof(shared->node))
		memcpy(shared->node, node, strlen(node));
}

bool supervise_tell_once(struct supervise *supervise)
{
	return supervise->shared == NULL || !atomic_exchange(&supervise->shared->told, true);
}

void supervise_told(struct supervise *supervise)
{
	if (supervise->shared != NULL)
		atomic_store(&supervise->shared->has_told, true);
}

void supervise_await_told(const struct supervise *supervise)
{
	uint64_t deadline_ns = ddp_now_ns() + (CONNECT_MS + REPLY_MS) * 1000000ull;

	while (supervise->shared != NULL && !atomic_load(&supervise->shared->has_told) &&
	       ddp_now_ns() < deadline_ns)
		pause_ms(TASK_POLL_MS);
}

struct rings_source supervise_source(const struct supervise *supervise)
{
	return (struct rings_source){ .file = supervise->progress_fd, .tasks = supervise->local_tasks,
		                      .bytes = DDP_RECORD_FILE_BYTES(supervise->local_tasks) };
}

void supervise_read(const struct supervise *supervise, uint32_t local_task,
                    struct ddp_progress *progress)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS];
	ssize_t got = -1;

	if (supervise->progress_fd >= 0 && local_task < supervise->local_tasks)
		got = pread(supervise->progress_fd, slots, sizeof(slots), (off_t)local_task * DDP_PROGRESS_BYTES);
	if (got != (ssize_t)sizeof(slots))
		memset(slots, 0, sizeof(slots));
	slots_read(slots, progress);
}

uint32_t supervise_stalls(const struct supervise *supervise)
{
	struct ddp_progress_node node;

	return supervise->progress_fd >= 0 &&
	       pread(supervise->progress_fd, &node, sizeof(node), (off_t)DDP_RECORD_NODE_OFFSET(supervise->local_tasks)) ==
	       (ssize_t)sizeof(node) && node.magic == DDP_PROGRESS_NODE_MAGIC ? node.stalls : 0;
}

void supervise_note_spares(const struct supervise *supervise, const char *nodes)
{
	char text[DDP_PROGRESS_SPARES_BYTES] = "";
	off_t at = (off_t)DDP_RECORD_NODE_OFFSET(supervise->local_tasks) + (off_t)offsetof(struct ddp_progress_node, spares);

	memcpy(text, nodes, strnlen(nodes, sizeof(text) - 1));
	/* The file has its size and its owner's pages already; without memory for this one, ddp-status tells of no spares. */
	if (supervise->progress_fd >= 0 && pwrite(supervise->progress_fd, text, sizeof(text), at) != (ssize_t)sizeof(text))
		errno = 0;
}

static bool write_deal(const struct supervise *supervise, const void *bytes, size_t count, size_t at)
{
	off_t offset = (off_t)DDP_RECORD_NODE_OFFSET(supervise->local_tasks) +
	               (off_t)(offsetof(struct ddp_progress_node, deal) + at);

	return pwrite(supervise->progress_fd, bytes, count, offset) == (ssize_t)count;
}

/* Its readers wait for the number of the generation. */
bool supervise_note_deal(const struct supervise *supervise, const struct ddp_progress_deal *deal)
{
	struct ddp_progress_deal first = *deal;

	first.generation = 0;
	errno = EBADF;
	return supervise->progress_fd >= 0 && write_deal(supervise, &first, sizeof(first), 0) &&
	       (deal->generation == 0 || write_deal(supervise, &deal->generation, sizeof(deal->generation),
	                                            offsetof(struct ddp_progress_deal, generation)));
}

bool supervise_holds_rank_zero(const struct supervise *supervise)
{
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		if (supervise->shared->task[i].rank == 0)
			return true;
	return false;
}

static bool has_agents(const struct supervise *supervise)
{
	return supervise->agents.shared != NULL;
}

/* With agents: a program that its agent has reaped has no process. Before its start, its agent counts. */
pid_t supervise_pid(const struct supervise *supervise, uint32_t local_task)
{
	const struct agent *agent;

	if (!has_agents(supervise) || supervise->pids[local_task] == 0)
		return supervise->pids[local_task];
	agent = &supervise->agents.shared->agent[local_task];
	return atomic_load(&agent->begun) < supervise->generation ? supervise->agents.pids[local_task]
	                                                          : atomic_load(&agent->child);
}

static void clear_page(const struct supervise *supervise, uint32_t local_task)
{
	static const unsigned char nothing[DDP_PROGRESS_BYTES];
	ssize_t written = 0;

	if (supervise->progress_fd >= 0)
		written = pwrite(supervise->progress_fd, nothing, sizeof(nothing), (off_t)local_task * DDP_PROGRESS_BYTES);
	/* The file already has its size and its memory, so the write does not fail for want of them. */
	(void)written;
	if (supervise->progress_fd >= 0 &&
	    fallocate(supervise->progress_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
	              (off_t)DDP_RECORD_AREA_OFFSET(supervise->local_tasks, local_task), DDP_RECORD_AREA_BYTES) != 0)
		errno = 0; /* its program empties a ring that it takes */
}

/* Who has stayed says so again when it has joined the others. Until then it waits for them in vain if the generation
   ends, and does not look for a later one. */
static void forget_survival(const struct supervise *supervise, uint32_t local_task)
{
	off_t at = (off_t)local_task * DDP_PROGRESS_BYTES + (off_t)offsetof(struct ddp_progress, aside);
	uint32_t aside;

	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++, at += DDP_PROGRESS_SLOT_BYTES) {
		if (pread(supervise->progress_fd, &aside, sizeof(aside), at) != sizeof(aside))
			return;
		aside &= ~(uint32_t)DDP_PROGRESS_SURVIVES;
		if (pwrite(supervise->progress_fd, &aside, sizeof(aside), at) != sizeof(aside))
			return;
	}
}

void supervise_leave(struct supervise *supervise)
{
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		supervise->pids[i] = 0;
}

/* Whether the task's program is one of the former generation, too. */
static bool program_stays(const struct supervise *supervise, uint32_t local_task)
{
	return atomic_load(&supervise->agents.shared->agent[local_task].stays) &&
	       agents_child_runs(&supervise->agents, local_task);
}

void supervise_begin_again(struct supervise *supervise, uint32_t generation, uint32_t world_size,
                           const uint32_t *ranks)
{
	struct supervise_shared *shared = supervise->shared;

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		struct supervise_task *task = &shared->task[i];
		supervise->reaped[i] = (struct task_reaped){ .ns = 0 };
		task->rank = ranks[i];
		if (program_stays(supervise, i)) {
			forget_survival(supervise, i);
		} else {
			clear_page(supervise, i);
			task->pid = 0;
			atomic_store(&task->start_ns, 0);
		}
		atomic_store(&task->end, STALL_NO_END);
		supervise->pids[i] = ranks[i] != UINT32_MAX ? supervise->agents.pids[i] : 0;
	}
	if (supervise->agents.pids[0] != 0)
		memory_start(&supervise->memory, supervise->agents.pids[0]);
	supervise_note_spares(supervise, "");
	if (!supervise_note_deal(supervise, &(struct ddp_progress_deal){ .generation = 0 }))
		errno = 0; /* without pages nobody stays */
	supervise->any_failed = supervise->any_other_end = false;
	supervise->generation = generation;
	shared->world_size = world_size;
	atomic_store(&shared->late, false);
	atomic_store(&shared->told, false);
	atomic_store(&shared->has_told, false);
	atomic_store(&shared->generation, generation);
}

uint32_t supervise_processes(const struct supervise *supervise)
{
	return has_agents(supervise) ? agents_left(&supervise->agents) : supervise_left(supervise);
}

void supervise_forked(struct supervise *supervise, uint32_t local_task, pid_t pid)
{
	if (local_task >= supervise->local_tasks)
		return;
	supervise->pids[local_task] = pid;
	if (has_agents(supervise))
		agents_forked(&supervise->agents, local_task, pid);
	if (supervise->memory.path[0] == '\0')
		memory_start(&supervise->memory, pid);
}

static bool is_failure(enum task_end end)
{
	return end == END_CODE || end == END_CRASH;
}

void supervise_reaped(struct supervise *supervise, uint32_t local_task, int wait_status)
{
	enum task_end end = judge_task_end(wait_status);

	if (local_task < supervise->local_tasks) {
		supervise->pids[local_task] = 0;
		supervise->reaped[local_task] = (struct task_reaped){ wait_status, ddp_now_ns() };
		atomic_store(&supervise->shared->task[local_task].end,
		             end == END_FINE ? STALL_GOOD_END : STALL_BAD_END);
	}
	supervise->any_failed |= is_failure(end);
	supervise->any_other_end |= end != END_BY_KILL;
}

static int status_of(const siginfo_t *info)
{
	if (info->si_code == CLD_EXITED)
		return W_EXITCODE(info->si_status, 0);
	return info->si_status | (info->si_code == CLD_DUMPED ? WCOREFLAG : 0);
}

/* The task was reaped. */
static enum task_state ask_slurm(const struct supervise *supervise, uint32_t local_task, int *wait_status)
{
	return supervise->ask != NULL && supervise->ask(local_task, wait_status) ? TASK_ENDED : TASK_GONE;
}

/* A task that has ended counts as running until it is reaped: nobody but its parent can tell how it
   has ended. */
static enum task_state state_from_outside(const struct supervise *supervise, uint32_t local_task,
                                          int *wait_status)
{
	if (kill(supervise->pids[local_task], 0) == 0 || errno != ESRCH)
		return TASK_RUNS;
	return ask_slurm(supervise, local_task, wait_status);
}

enum task_state supervise_state(const struct supervise *supervise, uint32_t local_task, int *wait_status)
{
	const struct task_reaped *reaped = &supervise->reaped[local_task];
	pid_t process = supervise->pids[local_task];
	siginfo_t info = { .si_pid = 0 };

	if (reaped->ns != 0) {
		*wait_status = reaped->wait_status;
		return TASK_ENDED;
	}
	if (process == 0)
		return TASK_RUNS;
	if (contained_here())
		return state_from_outside(supervise, local_task, wait_status);
	if (has_agents(supervise)) {
		if (agents_child_ended(&supervise->agents, local_task, supervise->generation, wait_status))
			return TASK_ENDED;
		/* If the agent was killed, so was its program. */
		process = supervise->agents.pids[local_task];
	}
	if (waitid(P_PID, (id_t)process, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
		return ask_slurm(supervise, local_task, wait_status);
	if (info.si_pid == 0)
		return TASK_RUNS;
	*wait_status = status_of(&info);
	/* The agent may have noted the program's end since. */
	if (has_agents(supervise))
		agents_child_ended(&supervise->agents, local_task, supervise->generation, wait_status);
	return TASK_ENDED;
}

/* Reads what the kernel says of the process, from the end of its command on, which may hold any byte; NULL if
   there is nothing. */
static const char *read_stat(pid_t pid, char *text, size_t bytes)
{
	return pid > 0 && proc_read(text, bytes, "/proc/%d/stat", (int)pid) > 0 ? strrchr(text, ')') : NULL;
}

struct supervise_process supervise_process_of(pid_t pid)
{
	struct supervise_process process = { .cpu_ms = 0 };
	unsigned long long user = 0, kernel = 0;
	char text[512];
	const char *state = read_stat(pid, text, sizeof(text));

	if (state == NULL || state[1] != ' ')
		return process;
	process.stopped = state[2] == 'T' || state[2] == 't';
	process.ended = state[2] == 'Z';
	/* Fields 14 and 15; the state is field 3. */
	if (sscanf(state + 3, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu", &user, &kernel) == 2)
		process.cpu_ms = (user + kernel) * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
	return process;
}

bool supervise_is_stopped(pid_t pid)
{
	return supervise_process_of(pid).stopped;
}

bool supervise_any_untold(const struct supervise *supervise)
{
	for (uint32_t i = 0; has_agents(supervise) && i < supervise->local_tasks; i++)
		if (supervise->pids[i] != 0 && supervise_process_of(supervise_pid(supervise, i)).ended)
			return true;
	return false;
}

/* Whether the process is to end, or ends, which may take it long. */
static bool is_dying(pid_t pid)
{
	enum { EXITING = 0x4 }; /* PF_EXITING of the kernel */
	char text[1024], state;
	const char *behind = read_stat(pid, text, sizeof(text));
	unsigned long flags, pending;

	/* Behind the command come fields 3, 9 and 31. */
	if (behind == NULL ||
	    sscanf(behind, ") %c %*d %*d %*d %*d %*d %lu %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u "
	           "%*u %*u %*u %*u %*u %*u %lu", &state, &flags, &pending) != 3)
		return true;
	return state == 'Z' || state == 'X' || (flags & EXITING) != 0 || (pending >> (SIGKILL - 1) & 1) != 0;
}

bool supervise_spares(const struct supervise *supervise)
{
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		if (supervise->pids[i] != 0 && !is_dying(supervise_pid(supervise, i)))
			return true;
	return false;
}

uint32_t supervise_left(const struct supervise *supervise)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		left += supervise->pids[i] != 0;
	return left;
}

struct supervise_ends supervise_count_ends(const struct supervise *supervise)
{
	struct supervise_ends ends = { .all_ended = true, .all_killed = !supervise->any_other_end,
		                       .any_failed = supervise->any_failed };

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		enum task_end end = END_FINE;
		enum task_state state;
		int wait_status;
		/* The ends that were taken of the other tasks count already. */
		if (supervise->pids[i] == 0)
			continue;
		state = supervise_state(supervise, i, &wait_status);
		if (state == TASK_GONE)
			continue;
		if (state == TASK_RUNS)
			ends.all_ended = false;
		else
			end = judge_task_end(wait_status);
		ends.all_killed &= end == END_BY_KILL;
		ends.any_failed |= is_failure(end);
	}
	return ends;
}

/* ---- memory ---- */

#define OLD_FILE "memory.oom_control"

/* The part of a list such as "cpu,memory" up to ':' that is "memory". */
static bool lists_memory(const char *list)
{
	static const char word[] = "memory";
	size_t length = sizeof(word) - 1;

	for (; *list != '\0' && *list != ':' && *list != '\n'; list++) {
		if (strncmp(list, word, length) == 0 && (list[length] == ':' || list[length] == ','))
			return true;
		list += strcspn(list, ",:\n");
		if (*list != ',')
			break;
	}
	return false;
}

/* The length of the part of "/.../step_0/user/task_1" up to the step, below which all tasks are. */
static size_t step_length(const char *path)
{
	size_t length = strcspn(path, "\n");
	const char *step = memmem(path, length, "/step_", 6);

	return step != NULL ? (size_t)(step - path) + 1 + strcspn(step + 1, "/\n") : length;
}

/* A line is HIERARCHY:CONTROLLERS:PATH; version 2 has hierarchy 0 and no list. */
bool memory_find(const char *cgroups, char path[MEMORY_PATH_MAX])
{
	const char *found = NULL;
	bool old = false;
	int length;

	for (const char *line = cgroups; line != NULL && *line != '\0'; line++) {
		const char *list = line + strcspn(line, ":\n");
		if (*list == ':' && strncmp(line, "0::", 3) == 0 && !old)
			found = line + 3;
		if (*list == ':' && lists_memory(list + 1)) {
			list += 1 + strcspn(list + 1, ":\n");
			found = *list == ':' ? list + 1 : found;
			old = *list == ':';
		}
		line = strchr(line, '\n');
		if (line == NULL)
			break;
	}
	if (found == NULL || *found != '/')
		return false;
	length = snprintf(path, MEMORY_PATH_MAX, "/sys/fs/cgroup%s%.*s/%s", old ? "/memory" : "",
	                  (int)step_length(found), found, old ? OLD_FILE : "memory.events");
	return length > 0 && length < MEMORY_PATH_MAX;
}

uint64_t memory_kills(const char *events)
{
	static const char name[] = "oom_kill ";

	for (const char *line = events; line != NULL && *line != '\0';) {
		if (strncmp(line, name, sizeof(name) - 1) == 0)
			return strtoull(line + sizeof(name) - 1, NULL, 10);
		line = strchr(line, '\n');
		line = line != NULL ? line + 1 : NULL;
	}
	return 0;
}

/* Version 2 counts a kill in all groups above, and version 1 only in the task's own group. */
static uint64_t kills_below(const char *path, size_t length)
{
	char folder[MEMORY_PATH_MAX], text[4096];
	const struct dirent *entry;
	uint64_t sum = 0;
	DIR *step;

	snprintf(folder, sizeof(folder), "%.*s", (int)length, path);
	step = opendir(folder);
	while (step != NULL && (entry = readdir(step)) != NULL) {
		if (strncmp(entry->d_name, "task_", 5) == 0 &&
		    proc_read(text, sizeof(text), "%s%.40s/" OLD_FILE, folder, entry->d_name) > 0)
			sum += memory_kills(text);
	}
	if (step != NULL)
		closedir(step);
	return sum;
}

static bool count_kills(const char *path, uint64_t *kills)
{
	const char *name = strrchr(path, '/');
	char text[4096];

	if (name == NULL || proc_read(text, sizeof(text), "%s", path) == 0)
		return false;
	*kills = memory_kills(text);
	if (strcmp(name + 1, OLD_FILE) == 0)
		*kills += kills_below(path, (size_t)(name - path) + 1);
	return true;
}

void memory_start(struct memory_watch *watch, pid_t pid)
{
	char text[4096];

	*watch = (struct memory_watch){ .path = "" };
	if (proc_read(text, sizeof(text), "/proc/%d/cgroup", (int)pid) == 0 || !memory_find(text, watch->path) ||
	    !count_kills(watch->path, &watch->kills))
		watch->path[0] = '\0';
}

bool memory_ran_out(const struct memory_watch *watch)
{
	uint64_t kills;

	return watch->path[0] != '\0' && count_kills(watch->path, &kills) && kills > watch->kills;
}
