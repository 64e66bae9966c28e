/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/pump.h"

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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"

enum {
	HIGH_DESCRIPTOR = 48,  /* out of scripts' way; supervise.c says why it is no higher one */
	STREAMS_PER_TASK = 4,  /* two, and two of an earlier start that still end */
	STREAMS_SPARE = 16,
	PUMPS_MAX = 16,        /* so many are made when somebody kills them */
	START_MS = 2000,
	SEND_SECONDS = 30,     /* a file server that does not answer may hold ddp-log */
	ANSWER_MS = 5000,      /* nor does a task wait longer than that: its pipe is there */
	HANDED = PUMP_FDS + 1, /* the last descriptor is the answer's */
};

/* ---- streams ---------------------------------------------------------------------------- */

struct stream {
	bool used, ended;
	bool in_line;  /* the last byte for SLURM was none that ends a line */
	int fds[PUMP_FDS]; /* PUMP_OUT: -1 as soon as nobody takes it */
	size_t fill;   /* bytes in `data`, of which */
	size_t whole;  /* so many are to be written now: whole lines, unless there is no room or no more to come; */
	size_t filed;  /* so many are in the file, */
	size_t told;   /* and so many were put into `shown`, */
	size_t shown_bytes; /* which has so many, */
	size_t sent;   /* and so many of it were given to SLURM */
	uint64_t lost; /* bytes that are missing at the end of the file */
	int reason;    /* the errno of that */
	bool said;     /* the user was told */
	int polls[2];  /* where `ready` has PUMP_IN and PUMP_OUT; 0: nowhere */
	struct pump_stream about;
	char shown[PIPE_BUF];
	char data[PUMP_BUFFER_BYTES];
};

/* Another pump, which goes on where one was killed, must not close a number a second time. */
static void close_once(int *fd)
{
	const int number = *fd;

	*fd = -1;
	if (number >= 0)
		close(number);
}

/* Another pump goes on with it if one is killed. */
struct pump {
	int control; /* -1: no more streams come */
	uint32_t count;
	struct pollfd *ready; /* the control's, and up to two of each stream */
	struct stream stream[];
};

/* An error also comes at once. */
static bool can_write(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };

	return fd >= 0 && poll(&ready, 1, 0) > 0;
}

/* A user whose terminal takes nothing at the moment is told later. */
static void say_lost(struct stream *stream)
{
	char text[PIPE_BUF];
	int length;

	if (stream->said || !can_write(stream->fds[PUMP_SAY]))
		return;
	length = snprintf(text, sizeof(text), "ddp: %s: what it writes does not reach its file %s: %s\n", stream->about.who,
	                  stream->about.path, strerror(stream->reason));
	stream->said = text_write(stream->fds[PUMP_SAY], text, (size_t)length) > 0 || errno != EAGAIN;
}

/* The file takes bytes again. */
static bool note_gap(struct stream *stream)
{
	char text[256];
	int length = snprintf(text, sizeof(text),
	                      "\nddp: %llu bytes are missing here, because the file could not be written: %s\n",
	                      (unsigned long long)stream->lost, strerror(stream->reason));

	if (text_write(stream->fds[PUMP_FILE], text, (size_t)length) < (size_t)length)
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

	if (bytes == 0)
		return;
	if (stream->lost == 0 || note_gap(stream)) {
		done = text_write(stream->fds[PUMP_FILE], text, bytes);
		if (done < bytes)
			stream->reason = errno;
	}
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

/* A carriage return ends a line, too: progress bars end none otherwise. But it may come before a newline. The task's
   other stream adds no line to a last one that has no end. */
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

/* Puts the label in front of lines, as many as a pipe takes at once. */
static void fill_shown(struct stream *stream)
{
	size_t used = 0, label = strlen(stream->about.label);

	while (stream->told < stream->whole) {
		const size_t front = stream->in_line ? 0 : label;
		size_t length, room = sizeof(stream->shown) - used;
		bool ends;
		if (room <= front)
			break;
		memcpy(stream->shown + used, stream->about.label, front);
		length = line_length(stream->data + stream->told, stream->whole - stream->told, &ends);
		ends &= length <= room - front;
		length = length <= room - front ? length : room - front;
		memcpy(stream->shown + used + front, stream->data + stream->told, length);
		used += front + length;
		stream->told += length;
		stream->in_line = !ends;
	}
	stream->sent = 0;
	stream->shown_bytes = used;
}

static bool is_shown(const struct stream *stream)
{
	return stream->fds[PUMP_OUT] < 0 || (stream->told == stream->whole && stream->sent == stream->shown_bytes);
}

static void write_out(struct stream *stream)
{
	if (stream->sent == stream->shown_bytes)
		fill_shown(stream);
	/* Another start of the task may have filled the same pipe since the last poll. */
	if (!can_write(stream->fds[PUMP_OUT]))
		return;
	stream->sent += text_write(stream->fds[PUMP_OUT], stream->shown + stream->sent, stream->shown_bytes - stream->sent);
	if (stream->sent < stream->shown_bytes && errno != EAGAIN)
		close_once(&stream->fds[PUMP_OUT]);
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
	const int file = stream->fds[PUMP_FILE];

	if (stream->in_line && stream->about.label[0] != '\0' && can_write(stream->fds[PUMP_OUT]))
		text_write(stream->fds[PUMP_OUT], "\n", 1);
	stream->in_line = false;
	stream->fds[PUMP_FILE] = -1;
	/* Some file servers refuse bytes as late as now. */
	if (file >= 0 && close(file) != 0 && stream->lost == 0) {
		stream->reason = errno;
		say_lost(stream);
	}
	for (int i = 0; i < PUMP_FDS; i++)
		close_once(&stream->fds[i]);
	stream->used = false;
}

static void serve(const struct pump *pump, struct stream *stream, bool reads, bool writes)
{
	if (reads)
		read_in(stream);
	stream->whole = whole_lines(pump, stream);
	write_file(stream);
	if (writes)
		write_out(stream);
	if (!is_shown(stream))
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

/* Another process may have the same open file, as another start of the task has. ddp-log opens a pipe or a terminal
   once more, so that none of its writes waits and the other process's still do. If ddp-log may not open it, can_write()
   alone keeps it from a wait. */
static void reopen(int *fd)
{
	char path[64];
	struct stat info;
	int own;

	if (fstat(*fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || isatty(*fd)))
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
	own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (own < 0)
		return;
	close(*fd);
	*fd = own;
}

/* Returns how many descriptors came. */
static size_t take_fds(const struct cmsghdr *head, int fds[HANDED])
{
	size_t count = head != NULL ? (head->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

	if (count > 0)
		memcpy(fds, CMSG_DATA(head), count * sizeof(int));
	return count;
}

static void take_stream(struct pump *pump, struct stream *stream)
{
	union { struct cmsghdr head; char bytes[CMSG_SPACE(HANDED * sizeof(int))]; } extra;
	int fds[HANDED];
	struct iovec place = { &stream->about, sizeof(stream->about) };
	struct msghdr message = { .msg_iov = &place, .msg_iovlen = 1, .msg_control = &extra,
	                          .msg_controllen = CMSG_LEN(sizeof(fds)) };
	ssize_t got = recvmsg(pump->control, &message, MSG_CMSG_CLOEXEC);
	size_t count;

	if (got == 0 || (got < 0 && errno != EINTR))
		close_once(&pump->control);
	/* Only the plugin's own code has the other end. */
	if (got <= 0)
		return;
	count = take_fds(CMSG_FIRSTHDR(&message), fds);
	if (got == (ssize_t)sizeof(stream->about) && count == HANDED) {
		reopen(&fds[PUMP_OUT]);
		reopen(&fds[PUMP_SAY]);
		memcpy(stream->fds, fds, sizeof(stream->fds));
		stream->fill = stream->whole = stream->filed = stream->told = stream->shown_bytes = stream->sent = 0;
		stream->lost = 0;
		stream->ended = stream->in_line = stream->said = false;
		stream->used = true;
		send(fds[PUMP_FDS], "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fds[PUMP_FDS]);
		return;
	}
	while (count > 0)
		close(fds[--count]);
}

static int ask_for(struct pump *pump, uint32_t *count, int fd, short events)
{
	pump->ready[*count] = (struct pollfd){ .fd = fd, .events = events };
	return (int)(*count)++;
}

/* Returns how many descriptors poll(2) is to look at, which takes no more than the process may have. `any`: there are
   streams. `wait_ms` is for poll(2). */
static uint32_t list_ready(struct pump *pump, bool *any, int *wait_ms)
{
	uint32_t count = 0;

	*any = false;
	*wait_ms = -1;
	ask_for(pump, &count, free_stream(pump) != NULL ? pump->control : -1, POLLIN);
	for (uint32_t i = 0; i < pump->count; i++) {
		struct stream *stream = &pump->stream[i];
		stream->polls[0] = stream->polls[1] = 0;
		if (!stream->used)
			continue;
		*any = true;
		if (!stream->ended && stream->fill < PUMP_BUFFER_BYTES)
			stream->polls[0] = ask_for(pump, &count, stream->fds[PUMP_IN], POLLIN);
		if (!is_shown(stream))
			stream->polls[1] = ask_for(pump, &count, stream->fds[PUMP_OUT], POLLOUT);
		else if (stream->ended && is_last(pump, stream))
			*wait_ms = 0;
	}
	return count;
}

static bool is_ready(const struct pump *pump, int place)
{
	return place > 0 && pump->ready[place].revents != 0;
}

static void run_pump(struct pump *pump)
{
	for (;;) {
		int wait_ms;
		bool any;
		const uint32_t count = list_ready(pump, &any, &wait_ms);
		if (!any && pump->control < 0)
			return;
		if (poll(pump->ready, count, wait_ms) < 0)
			continue;
		for (uint32_t i = 0; i < pump->count; i++) {
			struct stream *stream = &pump->stream[i];
			const bool reads = is_ready(pump, stream->polls[0]), writes = is_ready(pump, stream->polls[1]);
			if (stream->used && (stream->ended || reads || writes))
				serve(pump, stream, reads, writes);
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
			run_pump(pump);
			_exit(0);
		}
		if (pid < 0)
			break;
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			continue;
		if (WIFEXITED(status))
			_exit(0);
	}
	run_pump(pump);
	_exit(0);
}

static struct pump *make_pump(int control, uint32_t tasks)
{
	const uint32_t count = tasks * STREAMS_PER_TASK + STREAMS_SPARE;
	const size_t bytes = sizeof(struct pump) + count * sizeof(struct stream);
	const size_t polls = (1 + 2 * (size_t)count) * sizeof(struct pollfd);
	char *memory = mmap(NULL, bytes + polls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct pump *pump = (struct pump *)memory;

	if (memory == MAP_FAILED)
		return NULL;
	pump->control = control;
	pump->count = count;
	pump->ready = (struct pollfd *)(memory + bytes);
	return pump;
}

/* In a child of slurmstepd. Its own child is none of slurmstepd's: some ways to track processes count all that
   slurmstepd has forked to the step. */
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

/* The answer's other end is closed without a byte if ddp-log could not take all descriptors. */
static bool await_answer(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	ssize_t got;
	char byte;

	while (poll(&ready, 1, ANSWER_MS) < 0 && errno == EINTR)
		continue;
	got = recv(fd, &byte, 1, MSG_DONTWAIT);
	return got > 0 || (got < 0 && errno == EAGAIN);
}

static bool hand_over(int control, const struct pump_stream *stream, const int fds[HANDED])
{
	union { struct cmsghdr head; char bytes[CMSG_SPACE(HANDED * sizeof(int))]; } extra = { .bytes = { 0 } };
	struct iovec place = { (void *)(uintptr_t)stream, sizeof(*stream) };
	struct msghdr message = { .msg_iov = &place, .msg_iovlen = 1, .msg_control = &extra, .msg_controllen = sizeof(extra) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	ssize_t sent;

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(HANDED * sizeof(int));
	memcpy(CMSG_DATA(head), fds, HANDED * sizeof(int));
	do
		sent = sendmsg(control, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(*stream);
}

bool pump_add(int control, const struct pump_stream *stream, const int fds[PUMP_FDS], struct error *error)
{
	int answer[2], handed[HANDED], reason;
	bool fine;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, answer) != 0)
		return error_set(error, "log=: no socket for ddp-log's answer: %s", strerror(errno));
	memcpy(handed, fds, PUMP_FDS * sizeof(int));
	handed[PUMP_FDS] = answer[1];
	fine = hand_over(control, stream, handed);
	reason = errno;
	close(answer[1]);
	if (!fine)
		error_set(error, "log=: ddp-log of this node takes no output: %s", strerror(reason));
	else if (!await_answer(answer[0]))
		fine = error_set(error, "log=: ddp-log of this node has no descriptors left for a task's output: "
		                 "the administrator should raise slurmd's LimitNOFILE");
	close(answer[0]);
	return fine;
}

bool pump_shares_group(const char *path)
{
	char text[4096] = "\n";
	const char *line;

	proc_read(text + 1, sizeof(text) - 1, "%s", path);
	/* The kernel writes this line last. */
	line = strstr(text, "\n0::");
	return line != NULL && strstr(line, "slurmstepd.scope/job_") != NULL;
}

void pump_close(int control)
{
	if (control >= 0)
		shutdown(control, SHUT_WR);
}

void pump_end(int control, int ms)
{
	struct pollfd ready = { .fd = control, .events = POLLIN };

	if (control < 0)
		return;
	pump_close(control);
	poll(&ready, 1, ms);
	close(control);
}
