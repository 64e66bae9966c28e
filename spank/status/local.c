/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/sources.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/status/process.h"

enum {
	ANSWER_MS = 10000,     /* beyond the interval, for all users together */
	KILLED_MS = 1000,      /* until a killed child has ended */
	ROW_BYTES_MAX = 8192,  /* of a row's line: more than its texts can have */
	RANKS_PER_CPU = 16,    /* a launcher may start several workers to a CPU */
	USERS_MAX = 1024,
};

/* ---- whose jobs there are ---------------------------------------------------------- */

struct users {
	uid_t id[USERS_MAX];
	size_t count;
};

static void add_user(struct users *users, uid_t id)
{
	for (size_t i = 0; i < users->count; i++)
		if (users->id[i] == id)
			return;
	if (users->count < USERS_MAX)
		users->id[users->count++] = id;
}

/* Slurm's own process that starts tasks, and no process that a user has named so. */
static bool is_slurmstepd(pid_t pid)
{
	struct process process;
	uid_t owner;

	return process_owner(pid, &owner) && owner == 0 && process_read(pid, &process) &&
	       strncmp(process.name, "slurmstepd", 10) == 0;
}

/* Root reads no user's memory, which /proc/PID/environ is: a user can make such a read wait for ever. */
static bool find_users(struct users *users)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	struct process process;
	uid_t owner;

	if (directory == NULL)
		return false;
	while ((entry = readdir(directory)) != NULL) {
		pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;
		if (pid > 0 && process_read(pid, &process) && process_owner(pid, &owner) && is_slurmstepd(process.parent) &&
		    strncmp(process.name, "slurmstepd", 10) != 0)
			add_user(users, owner);
	}
	closedir(directory);
	return true;
}

/* ---- one child for each user --------------------------------------------------------- */

struct child {
	pid_t pid;
	uid_t user;
	int output;
	char *text;
	size_t used, room;
};

bool local_become(uid_t user)
{
	struct passwd *entry;

	if (geteuid() == user)
		return true;
	entry = getpwuid(user);
	/* A user whom this node does not know has no further groups here. */
	if (entry != NULL)
		return initgroups(entry->pw_name, entry->pw_gid) == 0 && setgid(entry->pw_gid) == 0 && setuid(user) == 0;
	return setgroups(0, NULL) == 0 && setgid((gid_t)user) == 0 && setuid(user) == 0;
}

static _Noreturn void run_child(const struct local *local, uid_t user, int output)
{
	const struct probe probe = { .job = local->job, .slurm_step = local->slurm_step,
		                     .interval_ms = local->interval_ms, .own_only = true };
	FILE *file = fdopen(output, "w");

	if (file == NULL || chdir("/") < 0 || !local_become(user)) {
		fprintf(stderr, "ddp-status: cannot become user %u, who owns a job: %s\n", (unsigned)user, strerror(errno));
		_exit(1);
	}
	_exit(probe_run(&probe, file) ? 0 : 1);
}

static bool start_child(const struct local *local, struct child *child)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return false;
	child->pid = fork();
	if (child->pid < 0) {
		close(ends[0]);
		close(ends[1]);
		return false;
	}
	if (child->pid == 0)
		run_child(local, child->user, ends[1]);
	close(ends[1]);
	child->output = ends[0];
	return true;
}

/* False: nothing more comes. The number of a user's processes is that user's word. */
static bool read_more(struct child *child, size_t bytes_max)
{
	ssize_t got;

	if (child->used == child->room) {
		size_t room = child->room == 0 ? 16384 : child->room * 2;
		char *more = child->used < bytes_max ? realloc(child->text, room) : NULL;
		if (more == NULL)
			return false;
		child->text = more;
		child->room = room;
	}
	got = read(child->output, child->text + child->used, child->room - child->used);
	if (got > 0)
		child->used += (size_t)got;
	return got > 0 || (got < 0 && errno == EINTR);
}

/* Reads all that a child says until it has ended. A user may stop the child, who has the user's rights. */
static void await_child(struct child *child, size_t bytes_max, uint64_t deadline_ns)
{
	struct pollfd ready = { .fd = child->output, .events = POLLIN };
	bool ended = false;

	for (;;) {
		uint64_t now_ns = ddp_now_ns();
		int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / 1000000) + 1 : 0;
		int count = poll(&ready, 1, left_ms);
		if (count < 0 && errno == EINTR)
			continue;
		ended = count > 0 && !read_more(child, bytes_max);
		if (count <= 0 || ended)
			break;
	}
	close(child->output);
	if (!ended) {
		fprintf(stderr, "ddp-status: user %u's processes did not tell in time what they do; they are left out\n",
		        (unsigned)child->user);
		child->used = 0;
	}
	kill(child->pid, SIGKILL);
	/* A child that waits for a device or a file server goes on to do so. */
	child_reap(child->pid, KILLED_MS, NULL);
}

/* ---- rows ----------------------------------------------------------------------------- */

static bool add_row(const char *line, size_t length, const char *user, const char *node, struct row **rows,
                    size_t *count)
{
	json_t *json = length > 0 && line[0] == ROW_BEGIN ? json_loadb(line + 1, length - 1, 0, NULL) : NULL;
	struct row row = { .stack = NULL }, *more;
	bool is_row = json != NULL && row_from_json(json, &row) && row.job >= 0;

	json_decref(json);
	more = is_row ? realloc(*rows, (*count + 1) * sizeof(*more)) : NULL;
	if (more == NULL) {
		free(row.stack);
		return !is_row;
	}
	snprintf(row.user, sizeof(row.user), "%s", user);
	/* A spare is on another node. */
	if (!row_is_spare(&row))
		snprintf(row.node, sizeof(row.node), "%s", node);
	more[(*count)++] = row;
	*rows = more;
	return true;
}

static bool add_rows(const struct child *child, size_t rows_max, const char *node, struct row **rows, size_t *count)
{
	const size_t most = *count + rows_max;
	char user[ROW_NAME_MAX];
	bool fine = true;

	local_user_name(child->user, user, sizeof(user));
	for (size_t begin = 0; fine && begin < child->used && *count < most;) {
		const char *line = child->text + begin, *end = memchr(line, '\n', child->used - begin);
		if (end == NULL)
			break;
		fine = add_row(line, (size_t)(end - line), user, node, rows, count);
		begin += (size_t)(end - line) + 1;
	}
	return fine;
}

bool local_collect(const struct local *local, struct row **rows, size_t *count)
{
	struct users users = { .count = 0 };
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	const size_t rows_max = (size_t)(cpus > 0 ? cpus : 1) * RANKS_PER_CPU;
	const uint64_t deadline_ns = ddp_now_ns() + ((uint64_t)local->interval_ms + ANSWER_MS) * 1000000;
	struct child *children;
	size_t started = 0;
	bool fine = true;

	if (geteuid() != 0)
		add_user(&users, geteuid());
	else if (!find_users(&users))
		return fprintf(stderr, "ddp-status: cannot list the processes of this node: %s\n", strerror(errno)), false;
	children = calloc(users.count + 1, sizeof(*children));
	while (children != NULL && started < users.count) {
		children[started].user = users.id[started];
		if (!start_child(local, &children[started]))
			break;
		started++;
	}
	if (started < users.count) {
		fprintf(stderr, "ddp-status: cannot look at the jobs of user %u: %s\n", (unsigned)users.id[started], strerror(errno));
		fine = false;
	}
	for (size_t i = 0; i < started; i++) {
		await_child(&children[i], rows_max * ROW_BYTES_MAX, deadline_ns);
		fine &= add_rows(&children[i], rows_max, local->node, rows, count);
		free(children[i].text);
	}
	free(children);
	rows_sort(*rows, *count);
	return fine;
}

void local_user_name(uid_t user, char *name, size_t bytes)
{
	struct passwd *entry = getpwuid(user);

	if (entry != NULL && strlen(entry->pw_name) < bytes)
		strcpy(name, entry->pw_name);
	else
		snprintf(name, bytes, "%u", (unsigned)user);
}
