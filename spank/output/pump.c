/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/output/pump.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/title.h"

enum {
	HIGH_DESCRIPTOR = 48,  /* out of scripts' way; supervise.c says why it is no higher one */
	STREAMS_PER_TASK = 4,  /* two, and two of an earlier start that still end */
	STREAMS_SPARE = 16,
	PUMPS_MAX = 16,        /* so many are made when somebody kills them */
	START_MS = 2000,
	SEND_SECONDS = 30,     /* a file server that does not answer may hold ddp-log */
};

/* ---- streams ---------------------------------------------------------------------------- */

struct stream {
	bool used, ended;
	bool in_line;  /* the last byte for SLURM was none that ends a line */
	int fds[PUMP_FDS]; /* PUMP_OUT: -1 as soon as nobody takes it */
	size_t fill;   /* bytes in `data`, of which */
	size_t whole;  /* so many are to be written now: whole lines, unless there is no room or no more to come; */
	size_t filed;  /* so many are in the file, */
	size_t told;   /* and so many were given to SLURM */
	uint64_t lost; /* bytes that are missing at the end of the file */
	int reason;    /* the errno of that */
	bool said;     /* the user was told */
	struct pump_stream about;
	char data[PUMP_BUFFER_BYTES];
};

/* Another pump goes on with it if one is killed. */
struct pump {
	int control; /* -1: no more streams come */
	uint32_t count;
	struct pollfd *ready; /* the control's, and two of each stream */
	struct stream stream[];
};

static int write_all(int fd, const char *text, size_t bytes, size_t *done)
{
	for (*done = 0; *done < bytes;) {
		ssize_t got = write(fd, text + *done, bytes - *done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? errno : EIO;
		*done += (size_t)got;
	}
	return 0;
}

static bool can_write(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };

	return fd >= 0 && poll(&ready, 1, 0) > 0 && (ready.revents & POLLOUT) != 0;
}

/* A user whose terminal takes nothing at the moment is told later. */
static void say_lost(struct stream *stream)
{
	char text[PIPE_BUF];
	size_t done;
	int length;

	if (stream->said || !can_write(stream->fds[PUMP_SAY]))
		return;
	length = snprintf(text, sizeof(text), "ddp: %s: what it writes does not reach its file %s: %s\n", stream->about.who,
	                  stream->about.path, strerror(stream->reason));
	write_all(stream->fds[PUMP_SAY], text, length > 0 ? (size_t)length : 0, &done);
	stream->said = true;
}

/* The file takes bytes again. */
static bool note_gap(struct stream *stream)
{
	char text[256];
	size_t done;
	int length = snprintf(text, sizeof(text), "\nddp: %llu bytes are missing here, because the file could not be written: %s\n",
	                      (unsigned long long)stream->lost, strerror(stream->reason));

	if (write_all(stream->fds[PUMP_FILE], text, (size_t)length, &done) != 0)
		return false;
	stream->lost = 0;
	stream->said = false;
	return true;
}

/* A file that takes nothing holds nobody up. */
static void write_file(struct stream *stream)
{
	const char *text = stream->data + stream->filed;
	const size_t bytes = stream->whole - stream->filed;
	size_t done = 0;
	int reason = 0;

	if (bytes == 0)
		return;
	if (stream->lost == 0 || note_gap(stream))
		reason = write_all(stream->fds[PUMP_FILE], text, bytes, &done);
	if (reason != 0)
		stream->reason = reason;
	stream->lost += bytes - done;
	stream->filed = stream->whole;
	if (stream->lost > 0)
		say_lost(stream);
}

/* Whether nothing more comes to the stream's file. */
static bool is_last(const struct pump *pump, const struct stream *stream)
{
	for (uint32_t i = 0; i < pump->count; i++)
		if (pump->stream[i].used && !pump->stream[i].ended && strcmp(pump->stream[i].about.path, stream->about.path) == 0)
			return false;
	return true;
}

/* A carriage return ends a line, too: progress bars end none otherwise. But it may come before a newline. The task's other
   stream adds no line to a last one that has no end. */
static size_t whole_lines(const struct pump *pump, const struct stream *stream)
{
	size_t end = stream->fill;

	if (end == PUMP_BUFFER_BYTES || (stream->ended && is_last(pump, stream)))
		return end;
	while (end > stream->whole) {
		const char last = stream->data[end - 1];
		if (last == '\n' || (last == '\r' && end < stream->fill))
			return end;
		end--;
	}
	return end;
}

/* Returns how long the line is that begins there, at most `bytes`; `ends`: whether its end is among them. */
static size_t line_length(const char *text, size_t bytes, bool *ends)
{
	for (size_t i = 0; i < bytes; i++) {
		*ends = text[i] == '\n' || (text[i] == '\r' && (i + 1 == bytes || text[i + 1] != '\n'));
		if (*ends)
			return i + 1;
	}
	*ends = false;
	return bytes;
}

/* A pipe that poll(2) calls ready takes as much without a wait. */
static void write_out(struct stream *stream)
{
	char text[PIPE_BUF];
	size_t used = 0, done, label = strlen(stream->about.label);

	while (stream->told < stream->whole) {
		const size_t front = stream->in_line ? 0 : label;
		size_t length, room = sizeof(text) - used;
		bool ends;
		if (room <= front)
			break;
		memcpy(text + used, stream->about.label, front);
		length = line_length(stream->data + stream->told, stream->whole - stream->told, &ends);
		ends &= length <= room - front;
		length = length <= room - front ? length : room - front;
		memcpy(text + used + front, stream->data + stream->told, length);
		used += front + length;
		stream->told += length;
		stream->in_line = !ends;
	}
	if (write_all(stream->fds[PUMP_OUT], text, used, &done) != 0) {
		close(stream->fds[PUMP_OUT]);
		stream->fds[PUMP_OUT] = -1;
	}
}

static void read_in(struct stream *stream)
{
	ssize_t got = read(stream->fds[PUMP_IN], stream->data + stream->fill, PUMP_BUFFER_BYTES - stream->fill);

	if (got > 0)
		stream->fill += (size_t)got;
	else if (got == 0 || errno != EINTR)
		stream->ended = true;
}

static void end_stream(struct stream *stream)
{
	size_t done;

	if (stream->in_line && stream->about.label[0] != '\0' && can_write(stream->fds[PUMP_OUT]))
		write_all(stream->fds[PUMP_OUT], "\n", 1, &done);
	/* Some file servers refuse bytes as late as now. */
	if (close(stream->fds[PUMP_FILE]) != 0 && stream->lost == 0) {
		stream->reason = errno;
		say_lost(stream);
	}
	for (int i = 0; i < PUMP_FDS; i++)
		if (i != PUMP_FILE && stream->fds[i] >= 0)
			close(stream->fds[i]);
	stream->used = false;
}

static void serve(const struct pump *pump, struct stream *stream, const struct pollfd ready[2])
{
	if (ready[0].revents != 0)
		read_in(stream);
	stream->whole = whole_lines(pump, stream);
	write_file(stream);
	if (ready[1].revents != 0)
		write_out(stream);
	if (stream->fds[PUMP_OUT] < 0)
		stream->told = stream->whole;
	if (stream->told < stream->whole)
		return;
	memmove(stream->data, stream->data + stream->whole, stream->fill - stream->whole);
	stream->fill -= stream->whole;
	stream->whole = stream->filed = stream->told = 0;
	if (stream->ended && stream->fill == 0)
		end_stream(stream);
}

/* ---- the process ------------------------------------------------------------------------ */

static struct stream *free_stream(struct pump *pump)
{
	for (uint32_t i = 0; i < pump->count; i++)
		if (!pump->stream[i].used)
			return &pump->stream[i];
	return NULL;
}

static void close_control(struct pump *pump)
{
	close(pump->control);
	pump->control = -1;
}

static void take_stream(struct pump *pump, struct stream *stream)
{
	union { struct cmsghdr head; char bytes[CMSG_SPACE(PUMP_FDS * sizeof(int))]; } extra;
	struct iovec place = { &stream->about, sizeof(stream->about) };
	struct msghdr message = { .msg_iov = &place, .msg_iovlen = 1, .msg_control = &extra, .msg_controllen = sizeof(extra) };
	ssize_t got = recvmsg(pump->control, &message, MSG_CMSG_CLOEXEC);
	const struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	if (got == 0 || (got < 0 && errno != EINTR))
		close_control(pump);
	/* Only the plugin's own code has the other end. */
	if (got != (ssize_t)sizeof(stream->about) || head == NULL || head->cmsg_len != CMSG_LEN(sizeof(stream->fds)))
		return;
	memcpy(stream->fds, CMSG_DATA(head), sizeof(stream->fds));
	stream->fill = stream->whole = stream->filed = stream->told = 0;
	stream->lost = 0;
	stream->ended = stream->in_line = stream->said = false;
	stream->used = true;
}

/* False: there are no streams. `wait_ms` is for poll(2). */
static bool list_ready(struct pump *pump, int *wait_ms)
{
	bool any = false;

	*wait_ms = -1;

	pump->ready[0] = (struct pollfd){ .fd = free_stream(pump) != NULL ? pump->control : -1, .events = POLLIN };
	for (uint32_t i = 0; i < pump->count; i++) {
		const struct stream *stream = &pump->stream[i];
		const bool reads = stream->used && !stream->ended && stream->fill < PUMP_BUFFER_BYTES;
		const bool writes = stream->used && stream->told < stream->whole;
		pump->ready[1 + 2 * i] = (struct pollfd){ .fd = reads ? stream->fds[PUMP_IN] : -1, .events = POLLIN };
		pump->ready[2 + 2 * i] = (struct pollfd){ .fd = writes ? stream->fds[PUMP_OUT] : -1, .events = POLLOUT };
		any |= stream->used;
		if (stream->used && stream->ended && !writes && is_last(pump, stream))
			*wait_ms = 0;
	}
	return any;
}

static void run(struct pump *pump)
{
	int wait_ms;

	while (list_ready(pump, &wait_ms) || pump->control >= 0) {
		if (poll(pump->ready, 1 + 2 * pump->count, wait_ms) < 0)
			continue;
		for (uint32_t i = 0; i < pump->count; i++) {
			struct stream *stream = &pump->stream[i];
			const struct pollfd *ready = &pump->ready[1 + 2 * i];
			if (stream->used && (stream->ended || ready[0].revents != 0 || ready[1].revents != 0))
				serve(pump, stream, ready);
		}
		if (pump->ready[0].revents != 0)
			take_stream(pump, free_stream(pump));
	}
}

/* A fork, but both processes have the same table of descriptors, so that the pipes stay if the child is killed. */
static pid_t fork_sharing(void)
{
#ifdef __s390__
	return (pid_t)syscall(SYS_clone, 0, CLONE_FILES | SIGCHLD, 0, 0, 0);
#else
	return (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
#endif
}

_Noreturn static void keep(struct pump *pump)
{
	int status = 0;

	for (int made = 0; made < PUMPS_MAX; made++) {
		pid_t pid = fork_sharing();
		if (pid == 0) {
			run(pump);
			_exit(0);
		}
		if (pid < 0)
			break;
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			continue;
		if (WIFEXITED(status))
			_exit(0);
	}
	run(pump);
	_exit(0);
}

static struct pump *make_pump(int control, uint32_t tasks)
{
	const uint32_t count = tasks * STREAMS_PER_TASK + STREAMS_SPARE;
	const size_t bytes = sizeof(struct pump) + count * sizeof(struct stream), polls = (1 + 2 * (size_t)count) * sizeof(struct pollfd);
	char *memory = mmap(NULL, bytes + polls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct pump *pump = (struct pump *)memory;

	if (memory == MAP_FAILED)
		return NULL;
	pump->control = control;
	pump->count = count;
	pump->ready = (struct pollfd *)(memory + bytes);
	return pump;
}

/* In a child of slurmstepd. Its own child is none of slurmstepd's: some ways to track processes count all that slurmstepd has
   forked to the step. */
_Noreturn static void become_pump(const struct owner *owner, int control, uint32_t tasks)
{
	struct rlimit files;
	struct pump *pump;
	sigset_t all;

	/* Each task takes eight of them. */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	signal(SIGCHLD, SIG_DFL);
	if (!owner_become(owner) || chdir("/") != 0 || dup2(control, 0) != 0)
		_exit(1);
	owner_close_files(1);
	setsid();
	prctl(PR_SET_DUMPABLE, 0);
	title_take("ddp-log");
	pump = make_pump(0, tasks);
	if (pump == NULL || fcntl(0, F_SETFD, FD_CLOEXEC) != 0)
		_exit(1);
	pid_t pid = fork();
	if (pid == 0)
		keep(pump);
	_exit(pid > 0 ? 0 : 1);
}

/* ---- slurmstepd and tasks ---------------------------------------------------------------- */

int pump_make(const struct owner *owner, uint32_t tasks, struct error *error)
{
	const struct timeval limit = { .tv_sec = SEND_SECONDS };
	int ends[2], high, status = -1;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
		error_set(error, "log=: no socket for ddp-log: %s", strerror(errno));
		return -1;
	}
	high = fcntl(ends[0], F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
	if (high >= 0) {
		close(ends[0]);
		ends[0] = high;
	}
	setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	pid = fork();
	if (pid == 0)
		become_pump(owner, ends[1], tasks);
	close(ends[1]);
	/* slurmstepd may have reaped it, and then nobody knows how it has ended. */
	if (pid > 0 && child_reap(pid, START_MS, &status) && (status == 0 || status == -1))
		return ends[0];
	close(ends[0]);
	error_set(error, "log=: ddp-log does not start: %s", pid < 0 ? strerror(errno) : "it has no memory or no process");
	return -1;
}

bool pump_add(int control, const struct pump_stream *stream, const int fds[PUMP_FDS], struct error *error)
{
	union { struct cmsghdr head; char bytes[CMSG_SPACE(PUMP_FDS * sizeof(int))]; } extra = { .bytes = { 0 } };
	struct iovec place = { (void *)(uintptr_t)stream, sizeof(*stream) };
	struct msghdr message = { .msg_iov = &place, .msg_iovlen = 1, .msg_control = &extra, .msg_controllen = sizeof(extra) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	ssize_t sent;

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(PUMP_FDS * sizeof(int));
	memcpy(CMSG_DATA(head), fds, PUMP_FDS * sizeof(int));
	do
		sent = sendmsg(control, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent == (ssize_t)sizeof(*stream))
		return true;
	return error_set(error, "log=: ddp-log of this node takes no output: %s", strerror(errno));
}

void pump_end(int control, int ms)
{
	struct pollfd ready = { .fd = control, .events = POLLIN };

	if (control < 0)
		return;
	shutdown(control, SHUT_WR);
	poll(&ready, 1, ms);
	close(control);
}
