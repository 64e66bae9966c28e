/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/sources.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/identity/nodelist.h"
#include "spank/status/process.h"
#include "spank/status/row.h"
#include "spank/wire/progress_page.h"
#include "spank/witness/dump.h"

enum { BATCH_STEPS_FROM = 0x7fffffff, LOCAL_RANKS_MAX = 65536 };

/* A process of the job, by the environment with which it was started. */
struct member {
	struct process process;
	int64_t job, slurm_step, rank, local_rank, world_size, task, restarts, requeues;
	char partition[ROW_NAME_MAX];
	bool ranked;     /* it has RANK: the plugin or a launcher gave it one */
	int progress_fd; /* as DDP_PROGRESS_FD says; -1: none */
	char record_dir[RECORD_DIR_MAX]; /* "": none */
	struct stack stack;
};

struct members {
	struct member *item;
	size_t count;
};

static int64_t number_of(const char *block, size_t bytes, const char *name)
{
	char text[32], *end;
	long long value;

	if (!process_variable(block, bytes, name, text, sizeof(text)) || !isdigit((unsigned char)text[0]))
		return -1;
	errno = 0;
	value = strtoll(text, &end, 10);
	return errno == 0 && *end == '\0' ? value : -1;
}

/* On a machine with several slurmd, each node's probe takes its own tasks. */
static bool on_this_node(const char *block, size_t bytes)
{
	const char *mine = getenv("SLURMD_NODENAME");
	char name[256];

	return mine == NULL || (process_variable(block, bytes, "SLURMD_NODENAME", name, sizeof(name)) &&
	                        strcmp(name, mine) == 0);
}

static bool is_own(pid_t pid)
{
	uid_t owner;

	return process_owner(pid, &owner) && owner == geteuid();
}

static bool read_member(const struct probe *probe, pid_t pid, struct member *member)
{
	size_t bytes = 0;
	char *block = process_environment(pid, &bytes);
	int64_t fd, job = block != NULL ? number_of(block, bytes, "SLURM_JOB_ID") : -1;
	bool ours = job >= 0 && (probe->job < 0 || job == probe->job) && on_this_node(block, bytes);

	if (ours) {
		member->job = job;
		member->slurm_step = number_of(block, bytes, "SLURM_STEP_ID");
		member->task = number_of(block, bytes, "SLURM_PROCID");
		member->rank = number_of(block, bytes, "RANK");
		member->local_rank = number_of(block, bytes, "LOCAL_RANK");
		member->world_size = number_of(block, bytes, "WORLD_SIZE");
		member->ranked = member->rank >= 0 && member->rank < ROW_WORLD_MAX;
		if (!member->ranked) {
			member->rank = member->task;
			member->local_rank = number_of(block, bytes, "SLURM_LOCALID");
			member->world_size = number_of(block, bytes, "SLURM_STEP_NUM_TASKS");
		}
		member->restarts = number_of(block, bytes, "TORCHELASTIC_RESTART_COUNT");
		member->requeues = number_of(block, bytes, "DDP_RESTART_COUNT");
		if (!process_variable(block, bytes, "SLURM_JOB_PARTITION", member->partition, sizeof(member->partition)))
			member->partition[0] = '\0';
		fd = number_of(block, bytes, "DDP_PROGRESS_FD");
		member->progress_fd = fd >= 0 && fd < 1 << 20 ? (int)fd : -1;
		if (!process_variable(block, bytes, "DDP_RECORD_DIR", member->record_dir, sizeof(member->record_dir)))
			member->record_dir[0] = '\0';
	}
	free(block);
	return ours && member->slurm_step >= 0 && member->slurm_step < BATCH_STEPS_FROM &&
	       (probe->slurm_step < 0 || member->slurm_step == probe->slurm_step) &&
	       member->rank >= 0 && member->rank < ROW_WORLD_MAX && process_read(pid, &member->process);
}

static bool add_member(struct members *members, const struct member *member)
{
	struct member *more = realloc(members->item, (members->count + 1) * sizeof(*more));

	if (more == NULL)
		return false;
	more[members->count++] = *member;
	members->item = more;
	return true;
}

static bool find_members(const struct probe *probe, const char *own_step, struct members *members)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	bool fine = directory != NULL;

	while (fine && (entry = readdir(directory)) != NULL) {
		struct member member;
		char step[32];
		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    (probe->own_only && !is_own((pid_t)atoi(entry->d_name))) ||
		    !read_member(probe, (pid_t)atoi(entry->d_name), &member))
			continue;
		/* The probes are a step of the job, too. */
		snprintf(step, sizeof(step), "%lld", (long long)member.slurm_step);
		if (own_step == NULL || strcmp(step, own_step) != 0)
			fine = add_member(members, &member);
	}
	if (!fine)
		fprintf(stderr, "ddp-status: cannot list the processes of this node: %s\n", strerror(errno));
	if (directory != NULL)
		closedir(directory);
	return fine;
}

static bool of_one_step(const struct member *one, const struct member *other)
{
	return one->job == other->job && one->slurm_step == other->slurm_step;
}

/* A launcher's own processes have no rank, its workers have. */
static void leave_out_launchers(struct members *members)
{
	size_t kept = 0;

	for (size_t i = 0; i < members->count; i++) {
		bool workers = false;
		for (size_t k = 0; k < members->count; k++)
			workers |= members->item[k].ranked && of_one_step(&members->item[k], &members->item[i]);
		if (members->item[i].ranked || !workers)
			members->item[kept++] = members->item[i];
	}
	members->count = kept;
}

static int by_rank(const void *left, const void *right)
{
	const struct member *a = left, *b = right;

	if (a->job != b->job)
		return a->job < b->job ? -1 : 1;
	if (a->slurm_step != b->slurm_step)
		return a->slurm_step < b->slurm_step ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return (a->process.start > b->process.start) - (a->process.start < b->process.start);
}

/* Reads the node's own page, behind those of the ranks. */
static void read_node(int fd, off_t bytes, int64_t local_rank, struct row *row)
{
	off_t at = bytes - DDP_PROGRESS_BYTES;
	struct ddp_progress_node node;

	if (at >= (local_rank + 1) * DDP_PROGRESS_BYTES && pread(fd, &node, sizeof(node), at) == (ssize_t)sizeof(node) &&
	    node.magic == DDP_PROGRESS_NODE_MAGIC && node.stall_seconds > 0)
		row->stalls = node.stalls;
}

/* The list of the step's nodes that wait, from the node's own page; "": none do. */
static void read_spares(int fd, char spares[DDP_PROGRESS_SPARES_BYTES])
{
	struct ddp_progress_node node;
	struct stat info;

	spares[0] = '\0';
	if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < DDP_PROGRESS_BYTES ||
	    pread(fd, &node, sizeof(node), info.st_size - DDP_PROGRESS_BYTES) != (ssize_t)sizeof(node) ||
	    memchr(node.spares, '\0', sizeof(node.spares)) == NULL)
		return;
	memcpy(spares, node.spares, sizeof(node.spares));
}

/* The memory file of the node's pages, opened anew from a process that has it: the kernel checks
   that it is the user's. -1: the process has no such file. */
static int open_pages(const struct member *member)
{
	char path[64], link[64];
	ssize_t length;

	if (member->progress_fd < 0 || member->local_rank < 0 || member->local_rank >= LOCAL_RANKS_MAX)
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)member->process.pid, member->progress_fd);
	length = readlink(path, link, sizeof(link) - 1);
	if (length < 0)
		return -1;
	link[length] = '\0';
	/* Anything else might block, or do something when it is opened. */
	return strncmp(link, "/memfd:ddp_progress", 19) == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
}

/* The rank's page. False if there is none. */
static bool read_page(const struct member *member, struct ddp_progress *page, struct row *row)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS];
	const int fd = open_pages(member);
	struct slots_compute compute;
	struct stat info;
	bool got;

	if (fd < 0)
		return false;
	got = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
	      pread(fd, slots, sizeof(slots), (off_t)member->local_rank * DDP_PROGRESS_BYTES) == (ssize_t)sizeof(slots);
	if (got)
		read_node(fd, info.st_size, member->local_rank, row);
	close(fd);
	if (got)
		slots_read(slots, page);
	if (got && slots_loss(slots, &row->loss))
		row->has_loss = true;
	if (got)
		slots_exposed(slots, &row->exposed_ratio);
	if (got && slots_compute(slots, &compute)) {
		row->compute_seconds = (double)compute.ns * 1e-9;
		row->compute_steps = compute.steps < INT64_MAX ? (int64_t)compute.steps : -1;
	}
	return got;
}

static void tell_page(struct row *row, const struct ddp_progress *page)
{
	struct sink waits_for = sink_on(row->waits_for, sizeof(row->waits_for));
	struct sink sentence = sink_on(row->doing, sizeof(row->doing));
	struct progress_text progress;

	progress_text_read(page, ddp_now_ns(), &progress);
	if (!progress.known)
		return;
	progress_text_add(&sentence, &progress);
	snprintf(row->phase, sizeof(row->phase), "%s",
	         progress.closed ? "finished" : progress_phase_name(progress.phase));
	snprintf(row->error, sizeof(row->error), "%s", progress.error);
	row->phase_seconds = progress.phase_seconds;
	row->since_seconds = progress.wait_seconds;
	/* A phase, a collective or a wait that has begun is progress. */
	row->progress_seconds = progress.phase_seconds;
	if (progress.wait_seconds >= 0 && (row->progress_seconds < 0 || progress.wait_seconds < row->progress_seconds))
		row->progress_seconds = progress.wait_seconds;
	row->step = progress.step;
	row->steps = progress.steps > 0 ? progress.steps : -1;
	row->collective = progress.collective <= INT64_MAX ? (int64_t)progress.collective : -1;
	row->waiting = progress.wait != PROGRESS_NO_WAIT;
	if (progress.wait == PROGRESS_WAITS_IN_COLLECTIVE)
		sink_add(&waits_for, "#%llu ", (unsigned long long)progress.collective);
	sink_add(&waits_for, "%s", progress.text);
	if (progress.step_seconds > 0) {
		row->steps_per_second = 1 / progress.step_seconds;
		row->samples_per_second = progress.step_weight / progress.step_seconds;
	}
}

/* Of a rank's processes the first with such a file is the program; its forked workers have the file, too. */
static void ask_for_stacks(struct members *members, size_t begin, size_t end)
{
	bool asked = false;

	for (size_t i = begin; i < end; i++) {
		struct member *member = &members->item[i];
		member->stack.file = -1;
		asked = asked || stack_ask(member->process.pid, &member->stack);
	}
}

static struct row row_of(const struct member *member)
{
	struct row row = row_unknown();

	row.job = member->job;
	row.slurm_step = member->slurm_step;
	row.rank = member->rank;
	row.world_size = member->world_size;
	row.restarts = member->restarts;
	row.requeues = member->requeues;
	memcpy(row.partition, member->partition, sizeof(row.partition));
	return row;
}

/* The members from `begin` to `end` are one rank's; the one that has used most
   CPU time is its program, the others shells, loaders and the like. */
static bool print_rank(struct members *members, size_t begin, size_t end, double seconds, uint64_t stacks_ns,
                       FILE *output)
{
	const struct member *first = &members->item[begin], *main = first;
	struct row row = row_of(first);
	const char *node = getenv("SLURMD_NODENAME");
	uint64_t before = 0, after = 0;
	struct ddp_progress page;
	struct process now;
	char host[ROW_NAME_MAX] = "";
	bool told = false;

	for (size_t i = begin; i < end; i++) {
		const struct process *then = &members->item[i].process;
		if (then->cpu_ms > main->process.cpu_ms)
			main = &members->item[i];
		if (!process_read(then->pid, &now) || now.start != then->start)
			continue;
		before += then->cpu_ms;
		after += now.cpu_ms;
		told = told || (read_page(&members->item[i], &page, &row) && page.magic == DDP_PROGRESS_MAGIC);
	}
	if (!process_read(main->process.pid, &now))
		now = main->process;
	row.processes = (int64_t)(end - begin);
	gethostname(host, sizeof(host) - 1);
	snprintf(row.node, sizeof(row.node), "%s", node != NULL ? node : host);
	snprintf(row.program, sizeof(row.program), "%s", now.name);
	snprintf(row.state, sizeof(row.state), "%s", process_state_name(now.state));
	process_wait_channel(now.pid, row.waits_in, sizeof(row.waits_in));
	row.pid = now.pid;
	row.cpu_percent = seconds > 0 && after >= before ? (double)(after - before) / 10 / seconds : -1;
	if (told)
		tell_page(&row, &page);
	for (size_t i = begin; i < end && stacks_ns != 0; i++)
		if (members->item[i].stack.file >= 0)
			row.stack = stack_take(&members->item[i].stack, stacks_ns);
	told = row_write(output, &row);
	free(row.stack);
	return told;
}

struct spares {
	FILE *output;
	struct row row;
};

static bool print_spare(void *about, const char *host)
{
	struct spares *spares = about;

	snprintf(spares->row.node, sizeof(spares->row.node), "%s", host);
	return row_write(spares->output, &spares->row);
}

/* The members from `begin` to `end` are rank 0's, on whose node srun has the spares noted. No rank runs on a spare. */
static void print_spares(const struct members *members, size_t begin, size_t end, FILE *output)
{
	struct spares spares = { output, row_of(&members->item[begin]) };
	char list[DDP_PROGRESS_SPARES_BYTES] = "";
	struct error ignored;

	for (size_t i = begin; i < end && list[0] == '\0'; i++) {
		int fd = open_pages(&members->item[i]);
		read_spares(fd, list);
		if (fd >= 0)
			close(fd);
	}
	spares.row.rank = spares.row.restarts = spares.row.requeues = -1;
	snprintf(spares.row.state, sizeof(spares.row.state), "spare");
	if (list[0] != '\0')
		(void)nodelist_walk(list, print_spare, &spares, &ignored);
}

static size_t end_of_rank(const struct members *members, size_t begin)
{
	const struct member *first = &members->item[begin];
	size_t end = begin;

	while (end < members->count && members->item[end].rank == first->rank &&
	       of_one_step(&members->item[end], first))
		end++;
	return end;
}

/* ---- flight records --------------------------------------------------------------- */

static const char *node_name(void)
{
	static char host[ROW_NAME_MAX];
	const char *node = getenv("SLURMD_NODENAME");

	gethostname(host, sizeof(host) - 1);
	return node != NULL ? node : host;
}

/* The members from `begin` to `end` are of one step, with all its ranks on this node. */
static bool dump_step(const struct probe *probe, const struct members *members, size_t begin, size_t end)
{
	const struct member *first = &members->item[begin];
	struct record_place place = { .job = (uint32_t)first->job, .step = (uint32_t)first->slurm_step,
		                      .owner.user = geteuid() };
	struct record_task *tasks = calloc(end - begin, sizeof(*tasks));
	struct record_order order = { .place = &place, .reason = "asked", .node = node_name(), .tasks = tasks,
		                      .world_size = first->world_size > 0 ? (uint32_t)first->world_size : 0,
		                      .generation = first->restarts >= 0 ? (uint32_t)first->restarts + 1 : 0, .stacks = true };
	struct rings_source source = { .file = -1 };
	struct stat info;
	struct error error;
	bool fine;

	snprintf(place.dir, sizeof(place.dir), "%s", probe->dump_dir[0] != '\0' ? probe->dump_dir : first->record_dir);
	if (place.dir[0] == '\0') {
		fprintf(stderr, "ddp-status: step %u.%u has no record=DIR of --ddp: give --dump=DIR\n", place.job, place.step);
		free(tasks);
		return true;
	}
	for (size_t i = begin; i < end && tasks != NULL; i++) {
		const struct member *member = &members->item[i];
		if (source.file < 0)
			source.file = open_pages(member);
		if ((i > begin && member->rank == members->item[i - 1].rank) || member->local_rank < 0 ||
		    member->local_rank >= LOCAL_RANKS_MAX)
			continue;
		tasks[order.count++] = (struct record_task){ .local_task = (uint32_t)member->local_rank,
			.rank = (uint32_t)member->rank, .pid = member->process.pid };
	}
	if (source.file >= 0 && fstat(source.file, &info) == 0 && S_ISREG(info.st_mode))
		source.bytes = (uint64_t)info.st_size;
	fine = tasks != NULL && source.bytes > 0 && record_dump(&order, &source, &error);
	if (source.file < 0 || source.bytes == 0)
		fprintf(stderr, "ddp-status: %s: step %u.%u has no progress pages\n", order.node, place.job, place.step);
	else if (!fine)
		fprintf(stderr, "ddp-status: %s: %s\n", order.node, tasks != NULL ? error.text : "no memory");
	else if (first->rank == 0)
		fprintf(stderr, "ddp-status: the records are in %s/%u.%u; 'ddp-report --record %s/%u.%u' merges them\n", place.dir,
		        place.job, place.step, place.dir, place.job, place.step);
	if (source.file >= 0)
		close(source.file);
	free(tasks);
	return fine;
}

static bool dump_all(const struct probe *probe, const struct members *members)
{
	bool fine = true;

	for (size_t begin = 0, end; begin < members->count; begin = end) {
		for (end = begin; end < members->count && of_one_step(&members->item[end], &members->item[begin]); end++)
			continue;
		fine &= dump_step(probe, members, begin, end);
	}
	return fine;
}

bool probe_run(const struct probe *probe, FILE *output)
{
	const struct timespec pause = { .tv_sec = probe->interval_ms / 1000,
		                        .tv_nsec = probe->interval_ms % 1000 * 1000000L };
	struct members members = { NULL, 0 };
	uint64_t start_ns = ddp_now_ns();
	bool fine = find_members(probe, getenv("SLURM_STEP_ID"), &members);

	if (fine && members.count > 0) {
		leave_out_launchers(&members);
		qsort(members.item, members.count, sizeof(*members.item), by_rank);
		nanosleep(&pause, NULL);
	}
	const bool dumped = !fine || !probe->dump || dump_all(probe, &members);
	/* All processes are asked at once, so that several ranks that do not answer cost the time of one. */
	for (size_t begin = 0, end; fine && probe->stacks && begin < members.count; begin = end) {
		end = end_of_rank(&members, begin);
		ask_for_stacks(&members, begin, end);
	}
	const uint64_t stacks_ns = probe->stacks ? ddp_now_ns() + STACK_WAIT_MS * 1000000ull : 0;
	for (size_t begin = 0, end; fine && begin < members.count; begin = end) {
		end = end_of_rank(&members, begin);
		fine = print_rank(&members, begin, end, ddp_seconds_since(start_ns), stacks_ns, output);
		if (members.item[begin].rank == 0)
			print_spares(&members, begin, end, output);
	}
	free(members.item);
	return fine && dumped && fflush(output) == 0;
}
