/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { PROC_PATH_MAX = 640 };

/* The kernel writes a folder's entries so. */
struct entry {
	uint64_t inode;
	int64_t offset;
	unsigned short bytes;
	unsigned char type;
	char name[];
};

/* readdir(3) would take memory, and a lock with it. */
void proc_visit(const char *folder, void (*visit)(const char *number, void *about), void *about)
{
	_Alignas(struct entry) char text[8192];
	long got;
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	while (fd >= 0 && (got = syscall(SYS_getdents64, fd, text, sizeof(text))) > 0) {
		for (long at = 0; at < got;) {
			const struct entry *entry = (const struct entry *)(text + at);
			at += entry->bytes;
			if (entry->name[0] >= '0' && entry->name[0] <= '9')
				visit(entry->name, about);
		}
	}
	if (fd >= 0)
		close(fd);
}

static bool is_channel(int fd)
{
	struct stat file;
	int type;
	socklen_t bytes = sizeof(type);

	if (fstat(fd, &file) != 0)
		return false;
	return S_ISFIFO(file.st_mode) || (S_ISSOCK(file.st_mode) &&
	       getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM);
}

static void close_channel(const char *number, void *about)
{
	int fd = (int)strtol(number, NULL, 10), flags = fcntl(fd, F_GETFD);

	(void)about;
	if (flags >= 0 && (flags & FD_CLOEXEC) != 0 && is_channel(fd))
		close(fd);
}

void proc_close_channels(void)
{
	proc_visit("/proc/self/fd", close_channel, NULL);
}

size_t proc_read(char *text, size_t bytes, const char *format, ...)
{
	char path[PROC_PATH_MAX];
	va_list arguments;
	ssize_t got = -1;
	int length, fd = -1;

	va_start(arguments, format);
	length = vsnprintf(path, sizeof(path), format, arguments);
	va_end(arguments);
	if (length > 0 && length < PROC_PATH_MAX)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, text, bytes - 1);
		close(fd);
	}
	text[got > 0 ? got : 0] = '\0';
	return got > 0 ? (size_t)got : 0;
}

static void note_status(struct proc_status *status, const char *line)
{
	if (strncmp(line, "State:\tR", 8) == 0)
		status->runs = true;
	else if (strncmp(line, "SigPnd:", 7) == 0 || strncmp(line, "ShdPnd:", 7) == 0)
		status->pending |= strtoull(line + 7, NULL, 16);
	else if (strncmp(line, "SigCgt:", 7) == 0)
		status->caught = strtoull(line + 7, NULL, 16);
}

struct proc_status proc_status(pid_t pid)
{
	struct proc_status status = { .runs = false };
	char path[64], piece[512], line[64];
	size_t used = 0;
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && (got = read(fd, piece, sizeof(piece))) > 0) {
		for (ssize_t i = 0; i < got; i++) {
			if (piece[i] != '\n' && used < sizeof(line) - 1)
				line[used++] = piece[i];
			if (piece[i] != '\n')
				continue;
			line[used] = '\0';
			note_status(&status, line);
			used = 0;
		}
	}
	if (fd >= 0)
		close(fd);
	return status;
}

/* The kernel says in /proc where in memory the title lies. */
void title_take(const char *name)
{
	unsigned long start = 0, end = 0;
	char text[1024], *field;

	proc_read(text, sizeof(text), "/proc/self/stat");
	prctl(PR_SET_NAME, name);
	/* Field 3 comes behind the command in parentheses; the two fields read here are 48 and 49. */
	field = strrchr(text, ')');
	for (int i = 2; field != NULL && i < 48; i++)
		field = strchr(field + 1, ' ');
	if (field == NULL || sscanf(field, "%lu %lu", &start, &end) != 2 || end <= start ||
	    end - start <= strlen(name))
		return;
	memset((void *)start, 0, end - start);
	memcpy((void *)start, name, strlen(name));
}

static bool is_user(uid_t user)
{
	uid_t real, effective, saved;

	return getresuid(&real, &effective, &saved) == 0 && real == user && effective == user && saved == user;
}

static bool is_group(gid_t group)
{
	gid_t real, effective, saved;

	return getresgid(&real, &effective, &saved) == 0 && real == group && effective == group && saved == group;
}

/* In some of its callbacks slurmstepd is the user by its effective id, and root by its real and saved ids. */
bool owner_become(const struct owner *owner)
{
	if (owner->user == 0 || is_user(owner->user))
		return is_user(owner->user);
	return seteuid(0) == 0 && setgroups((size_t)owner->group_count, owner->groups) == 0 &&
	       setresgid(owner->group, owner->group, owner->group) == 0 &&
	       setresuid(owner->user, owner->user, owner->user) == 0 && is_user(owner->user) && is_group(owner->group);
}

void owner_close_files(int first)
{
	long count = sysconf(_SC_OPEN_MAX);

#ifdef SYS_close_range
	if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
		return;
#endif
	for (long fd = first; fd < (count > 0 ? count : 1024); fd++)
		close((int)fd);
}

int handle_open(pid_t pid)
{
#ifdef SYS_pidfd_open
	return (int)syscall(SYS_pidfd_open, pid, 0u);
#else
	(void)pid;
	errno = ENOSYS;
	return -1;
#endif
}

bool handle_signal(int handle, int number)
{
#ifdef SYS_pidfd_send_signal
	return syscall(SYS_pidfd_send_signal, handle, number, NULL, 0u) == 0;
#else
	(void)handle;
	(void)number;
	errno = ENOSYS;
	return false;
#endif
}

enum { LOOK_MS = 5 }; /* where the kernel has no handles, or somebody else has to reap the child first */

bool child_runs(pid_t child)
{
	siginfo_t info = { .si_pid = 0 };

	return child > 0 && waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

bool child_signal(pid_t child, int number)
{
	const int handle = child > 0 ? handle_open(child) : -1, reason = errno;
	/* The handle was opened before. So if the child is there now, the handle is the child's. */
	bool sent = child_runs(child);

	if (sent && handle >= 0)
		sent = handle_signal(handle, number);
	else if (sent)
		sent = reason != ESRCH && kill(child, number) == 0;
	if (handle >= 0)
		close(handle);
	return sent;
}

/* True if the child is reaped. */
static bool try_reap(pid_t child, int *wait_status)
{
	int status = -1;
	const pid_t reaped = waitpid(child, &status, WNOHANG);

	if (reaped == 0 || (reaped < 0 && errno == EINTR))
		return false;
	if (wait_status != NULL)
		*wait_status = reaped == child ? status : -1;
	return true;
}

bool child_reap(pid_t child, int wait_ms, int *wait_status)
{
	const uint64_t deadline_ns = ddp_now_ns() + (uint64_t)wait_ms * NS_PER_MS;
	/* Opened before the child is looked at, as above. */
	struct pollfd process = { .fd = wait_ms > 0 ? handle_open(child) : -1, .events = POLLIN };
	bool reaped, ended = false;

	while (!(reaped = try_reap(child, wait_status))) {
		const uint64_t now_ns = ddp_now_ns();
		int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
		if (left_ms == 0)
			break;
		/* Its debugger has to reap it first, and no handle tells when that is done. */
		if (ended && process.fd >= 0) {
			close(process.fd);
			process.fd = -1;
		}
		ended = poll(&process, 1, process.fd >= 0 || left_ms < LOOK_MS ? left_ms : LOOK_MS) == 1;
	}
	if (process.fd >= 0)
		close(process.fd);
	return reaped;
}

static pid_t slurmstepd; /* 0: not noted */

void contained_note_slurmstepd(void)
{
	slurmstepd = getpid();
}

bool contained_here(void)
{
	return slurmstepd != 0 && getpid() != slurmstepd;
}

static bool has_ended(int handle)
{
	struct pollfd process = { .fd = handle, .events = POLLIN };

	return poll(&process, 1, 0) == 1;
}

bool contained_sees_end(pid_t pid)
{
	int handle = handle_open(pid);
	bool ended;

	if (handle < 0)
		return kill(pid, 0) != 0 && errno == ESRCH;
	ended = has_ended(handle);
	close(handle);
	return ended;
}

void contained_signal(pid_t pid, int number)
{
	int handle = handle_open(pid);

	if (handle < 0 && errno != ESRCH)
		(void)kill(pid, number);
	if (handle < 0)
		return;
	if (!has_ended(handle))
		(void)handle_signal(handle, number);
	close(handle);
}

static bool is_srun(pid_t pid)
{
	char text[8];

	return proc_read(text, sizeof(text), "/proc/%d/comm", (int)pid) > 0 && strcmp(text, "srun\n") == 0;
}

/* A child, whose number is the child's until the caller reaps the child. */
static void end_child(pid_t pid, struct asked_sruns *asked)
{
	for (uint32_t i = 0; asked != NULL && i < asked->count; i++)
		if (asked->pid[i] == pid)
			return;
	if (asked == NULL || asked->count == ASKED_SRUNS_MAX || !is_srun(pid)) {
		kill(pid, SIGKILL);
		return;
	}
	asked->pid[asked->count++] = pid;
	kill(pid, SIGTERM);
	kill(pid, SIGCONT);
}

/* Ends the numbers of a text such as "12 345 ", whose last word may be cut: `rest` then has it, for the next
   piece. */
static void end_listed(char *text, size_t bytes, size_t *rest, struct asked_sruns *asked)
{
	size_t begin = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (text[i] != ' ')
			continue;
		text[i] = '\0';
		pid_t pid = (pid_t)strtol(text + begin, NULL, 10);
		if (pid > 1)
			end_child(pid, asked);
		begin = i + 1;
	}
	*rest = bytes - begin;
	memmove(text, text + begin, *rest);
}

/* Ends the children that the kernel's own list has. False: the kernel keeps no list. */
static bool end_by_list(struct asked_sruns *asked)
{
	char path[64], text[4096];
	size_t rest = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while ((got = read(fd, text + rest, sizeof(text) - rest)) > 0)
		end_listed(text, rest + (size_t)got, &rest, asked);
	close(fd);
	return true;
}

enum { FORKED_ONLY = 0x40 }; /* the kernel's PF_FORKNOEXEC */

/* A line of /proc. */
struct relative {
	char state;
	int parent, group, session, threads;
	unsigned int flags;
};

static bool read_relative(const char *number, struct relative *relative)
{
	char text[1024];
	const char *behind;

	proc_read(text, sizeof(text), "/proc/%s/stat", number);
	behind = strrchr(text, ')');
	return behind != NULL &&
	       sscanf(behind, ") %c %d %d %d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &relative->state,
	              &relative->parent, &relative->group, &relative->session, &relative->flags, &relative->threads) == 6;
}

static void end_if_child(const char *number, void *asked)
{
	struct relative relative;

	if (read_relative(number, &relative) && relative.parent == getpid())
		end_child((pid_t)strtol(number, NULL, 10), asked);
}

/* Root looks for this. */
struct search {
	bool (*is_meant)(const struct relative *relative, const struct search *search);
	pid_t parent, session, group;
	bool (*is_kept)(pid_t pid, const void *about); /* NULL: none is */
	const void *about;
	uint32_t killed;
};

/* The first thread of a process is a zombie as soon as it has ended, although others may still end for long. */
static bool relative_ended(const struct relative *relative)
{
	return relative->state == 'X' || (relative->state == 'Z' && relative->threads <= 1);
}

static bool is_child(const struct relative *relative, const struct search *search)
{
	return relative->parent == search->parent && !relative_ended(relative);
}

static bool is_adopted(const struct relative *relative, const struct search *search)
{
	return is_child(relative, search) &&
	       (relative->group == search->group || relative->session != search->session);
}

static bool is_found(const char *number, const struct search *search)
{
	struct relative relative;

	return read_relative(number, &relative) && search->is_meant(&relative, search);
}

/* At each moment the number may come to belong to another process. So a handle of the process is opened first, and then
   the process is looked at again. */
static void kill_if_found(const char *number, void *about)
{
	struct search *search = about;
	pid_t pid = (pid_t)strtol(number, NULL, 10);
	int process;

	if (!is_found(number, search))
		return;
	process = handle_open(pid);
	if (process < 0 && errno != ENOSYS)
		return;
	if (is_found(number, search) && (search->is_kept == NULL || !search->is_kept(pid, search->about)))
		search->killed += process >= 0 ? handle_signal(process, SIGKILL) : kill(pid, SIGKILL) == 0;
	if (process >= 0)
		close(process);
}

uint32_t kill_adopted(pid_t group, bool (*is_kept)(pid_t pid, const void *about), const void *about)
{
	struct search search = { is_adopted, getpid(), getsid(0), group, is_kept, about, 0 };

	proc_visit("/proc", kill_if_found, &search);
	return search.killed;
}

uint32_t kill_children_of(pid_t parent)
{
	struct search search = { .is_meant = is_child, .parent = parent };

	proc_visit("/proc", kill_if_found, &search);
	return search.killed;
}

void kill_children(struct asked_sruns *asked)
{
	static bool no_list;

	if (no_list || !end_by_list(asked)) {
		no_list = true;
		proc_visit("/proc", end_if_child, asked);
	}
}

bool child_never_ran(pid_t child)
{
	struct relative relative;
	char number[16];

	snprintf(number, sizeof(number), "%d", (int)child);
	return read_relative(number, &relative) && relative.parent == getpid() && (relative.flags & FORKED_ONLY) != 0;
}
