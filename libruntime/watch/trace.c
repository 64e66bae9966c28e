/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/path.h"
#include "base/signals.h"
#include "base/walk.h"

enum {
	BUFFER_BYTES = 64 * 1024,
	EVENT_BYTES_MAX = 2048,
	FLUSH_SECONDS = 1,
	FIRST_COMMUNICATION_ROW = DDP_TRACE_ROWS,
	COMMUNICATION_ROWS = 8
};

static const char *const row_names[DDP_TRACE_ROWS] = {
	[DDP_TRACE_COMPUTE] = "compute", [DDP_TRACE_DATA] = "data", [DDP_TRACE_OPTIMIZER] = "optimizer",
	[DDP_TRACE_DEVICE] = "device",
};

/* A long training must not fill the disk. */
static const int64_t FILE_BYTES_MAX = (int64_t)1 << 30;

struct ddp_trace {
	int fd; /* -1 after a failure: events are dropped from then on */
	int rank;
	int world_size;
	bool first_of_node;
	bool restarted;
	int64_t step;           /* of the latest event */
	bool settled;           /* what was in the file is set aside, or gone on with */
	int aside;              /* the number under which it is set aside */
	char *path;             /* from the root */
	ddp_trace *next;        /* of this process */
	int64_t real_offset_ns; /* real-time clock minus monotonic clock */
	int64_t file_bytes;
	uint64_t flushed_ns;
	uint64_t row_end_ns[COMMUNICATION_ROWS];
	int rows;               /* of communication, that have a name */
	bool has_device;        /* so has the device's */
	size_t used;
	char buffer[BUFFER_BYTES];
};

/* ---- the file, which one context writes: each locks its own ---- */

/* False: another one has it. Where a file system has no locks, none has. */
static bool lock(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* A child that the program has forked has the file open, too, so that closing it unlocks nothing. 0 or -1 with errno.
   */
static int close_file(ddp_trace *trace)
{
	const int fd = trace->fd;

	trace->fd = -1;
	(void)flock(fd, LOCK_UN);
	return close(fd);
}

/* The traces that this process writes. */
static pthread_mutex_t own_mutex = PTHREAD_MUTEX_INITIALIZER;
static ddp_trace *own;

static void add_own(ddp_trace *trace)
{
	pthread_mutex_lock(&own_mutex);
	trace->next = own;
	own = trace;
	pthread_mutex_unlock(&own_mutex);
}

static void remove_own(const ddp_trace *trace)
{
	ddp_trace **at = &own;

	pthread_mutex_lock(&own_mutex);
	while (*at != NULL && *at != trace)
		at = &(*at)->next;
	if (*at != NULL)
		*at = trace->next;
	pthread_mutex_unlock(&own_mutex);
}

static bool is_own(const char *path)
{
	pthread_mutex_lock(&own_mutex);
	const ddp_trace *trace = own;
	while (trace != NULL && strcmp(trace->path, path) != 0)
		trace = trace->next;
	pthread_mutex_unlock(&own_mutex);
	return trace != NULL;
}

static bool is_written(int folder, const char *name)
{
	const int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	const bool is = fd >= 0 && !lock(fd);

	if (fd >= 0)
		close(fd);
	return is;
}

/* Ends the trace, but never the training. */
static void give_up(ddp_trace *trace, const char *reason)
{
	ddp_log(DDP_LOG_WARN, "rank %d: trace \"%s\" ends here: %s", trace->rank, trace->path,
	        reason);
	(void)close_file(trace);
	trace->used = 0;
}

/* ---- what an earlier run left ---- */

/* The number N of "rank-R.json" (0) or "rank-R.json.N"; -1 if the name is another. */
static int number_of(const char *name, int *rank)
{
	int number = 0, length = 0;

	if (sscanf(name, "rank-%d.json%n", rank, &length) != 1 || length == 0)
		return -1;
	if (name[length] == '\0')
		return 0;
	int end = 0;
	if (sscanf(name + length, ".%d%n", &number, &end) != 1 || name[length + end] != '\0' || number < 1)
		return -1;
	return number;
}

/* DIR of DIR/rank-N.json, open to be read; NULL if it cannot be, which is a warning. */
static DIR *open_folder(const ddp_trace *trace)
{
	char *folder = strndup(trace->path, (size_t)(strrchr(trace->path, '/') - trace->path));
	DIR *stream = folder != NULL ? opendir(folder) : NULL;

	if (stream == NULL)
		ddp_log(DDP_LOG_WARN, "rank %d: traces of earlier runs stay beside \"%s\": %s", trace->rank,
		        trace->path, ddp_reason(errno));
	free(folder);
	return stream;
}

/* All ranks look before the first one renames, so they find the same. */
static int free_number(const ddp_trace *trace)
{
	const struct dirent *entry;
	int largest = 0, rank;
	DIR *stream = open_folder(trace);

	while (stream != NULL && (entry = readdir(stream)) != NULL) {
		const int number = number_of(entry->d_name, &rank);
		largest = number > largest ? number : largest;
	}
	if (stream != NULL)
		closedir(stream);
	return largest + 1;
}

/* Several nodes' first ranks may try this for the same file. An error says why it keeps its name. */
static ddp_status rename_aside(const ddp_trace *trace, int folder, int rank)
{
	char from[32], to[48];

	snprintf(from, sizeof(from), "rank-%d.json", rank);
	snprintf(to, sizeof(to), "%s.%d", from, trace->aside);
	if (renameat(folder, from, folder, to) == 0 || errno == ENOENT)
		return DDP_OK;
	return ddp_fail_errno(DDP_ERR_IO, errno, "the trace of an earlier run (%s) cannot be renamed to %s", from, to);
}

/* Renames the traces of ranks that this run does not have. */
static void set_others_aside(const ddp_trace *trace)
{
	const struct dirent *entry;
	int rank;
	DIR *stream = open_folder(trace);

	while (stream != NULL && (entry = readdir(stream)) != NULL)
		if (number_of(entry->d_name, &rank) == 0 && rank >= trace->world_size &&
		    !is_written(dirfd(stream), entry->d_name) && rename_aside(trace, dirfd(stream), rank) != DDP_OK)
			ddp_log(DDP_LOG_WARN, "rank %d: %s", trace->rank, ddp_last_error());
	if (stream != NULL)
		closedir(stream);
}

static ddp_status open_file(const char *path, int flags, int *fd)
{
	struct stat found;
	ddp_status status = ddp_walk_open("the trace", path, flags, fd);

	if (status != DDP_OK)
		return status;
	if (fstat(*fd, &found) == 0 && S_ISREG(found.st_mode))
		return DDP_OK;
	close(*fd);
	return ddp_fail(DDP_ERR_IO, "cannot write the trace %s: it is no file", path);
}

static void set_aside(ddp_trace *trace)
{
	DIR *stream = open_folder(trace);
	int fd;

	if (stream == NULL) {
		give_up(trace, "an earlier run's trace has this name");
		return;
	}
	ddp_status status = rename_aside(trace, dirfd(stream), trace->rank);
	closedir(stream);
	if (status == DDP_OK)
		status = open_file(trace->path, O_RDWR | O_CREAT | O_TRUNC, &fd);
	if (status != DDP_OK) {
		give_up(trace, ddp_last_error());
		return;
	}
	(void)close_file(trace);
	trace->fd = fd;
	if (!lock(fd))
		give_up(trace, "another context writes it");
}

/* Where the last whole event ends: each has a line. 0: there is none. */
static int64_t end_of_events(int fd, int64_t bytes)
{
	char tail[2 * EVENT_BYTES_MAX];
	const int64_t first = bytes > (int64_t)sizeof(tail) ? bytes - (int64_t)sizeof(tail) : 0;
	const ssize_t got = pread(fd, tail, sizeof(tail), first);

	for (ssize_t at = got - 1; at > 0; at--) {
		/* A whole event has a comma, or the file's end, behind it. */
		const bool ends = at + 1 == got || tail[at + 1] == ',' || tail[at + 1] == '\n';
		if (tail[at] == '}' && ends)
			return first + at + 1;
	}
	return 0;
}

static void go_on(ddp_trace *trace, int64_t bytes)
{
	const int64_t end = end_of_events(trace->fd, bytes);
	const int error = ddp_set_file_size(trace->fd, end);

	if (error != 0 || lseek(trace->fd, end, SEEK_SET) < 0) {
		give_up(trace, ddp_reason(error != 0 ? error : errno));
		return;
	}
	trace->file_bytes = end;
	/* The buffer began as if the file were empty. */
	if (end > 0 && trace->used >= 2)
		memcpy(trace->buffer, ",\n", 2);
}

static void settle(ddp_trace *trace, bool goes_on)
{
	struct stat found;

	if (trace->settled)
		return;
	trace->settled = true;
	if (trace->fd < 0 || fstat(trace->fd, &found) != 0)
		return;
	if (!goes_on && trace->first_of_node)
		set_others_aside(trace);
	if (found.st_size == 0)
		return;
	if (goes_on)
		go_on(trace, found.st_size);
	else
		set_aside(trace);
}

void ddp_trace_begin(ddp_trace *trace, int64_t step)
{
	settle(trace, trace->restarted || step > 1);
}

/* ---- events ---- */

static void write_buffer(ddp_trace *trace)
{
	size_t done = 0;

	/* There is no step that has ended, so what the events say counts. */
	settle(trace, trace->restarted || trace->step > 1);

	while (trace->fd >= 0 && done < trace->used) {
		ssize_t n = ddp_write(trace->fd, trace->buffer + done, trace->used - done);
		if (n >= 0) {
			done += (size_t)n;
			continue;
		}
		const char *reason = ddp_reason(errno);
		/* Back to the last whole event; if that fails too, so be it. */
		if (ftruncate(trace->fd, trace->file_bytes) != 0)
			reason = "it is cut within an event";
		give_up(trace, reason);
		return;
	}
	trace->file_bytes += (int64_t)done;
	trace->used = 0;
	trace->flushed_ns = ddp_now_ns();
}

/* Takes the event over. */
static void add_event(ddp_trace *trace, json_t *event)
{
	if (trace->fd >= 0 && event != NULL) {
		if (trace->used + EVENT_BYTES_MAX > sizeof(trace->buffer))
			write_buffer(trace);
		/* ",\n" goes between events, so in front of each but the first. */
		size_t mark = trace->used;
		bool first = trace->file_bytes + (int64_t)mark == 0;
		memcpy(trace->buffer + mark, first ? "[\n" : ",\n", 2);
		size_t bytes = json_dumpb(event, trace->buffer + mark + 2, EVENT_BYTES_MAX - 2,
		                          JSON_COMPACT | JSON_REAL_PRECISION(16));
		if (bytes > 0 && bytes <= EVENT_BYTES_MAX - 2)
			trace->used = mark + 2 + bytes;
		if (trace->fd >= 0 && trace->file_bytes + (int64_t)trace->used > FILE_BYTES_MAX) {
			write_buffer(trace);
			if (trace->fd >= 0)
				give_up(trace, "the file has reached its largest size");
		}
	}
	json_decref(event);
}

static void name_row(ddp_trace *trace, const char *what, int row, const char *name)
{
	add_event(trace, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M",
	                           "pid", trace->rank, "tid", row, "args", "name", name));
}

static void add_range(ddp_trace *trace, const char *name, int row, json_t *arguments,
                      uint64_t start_ns, uint64_t end_ns)
{
	double start_us = (double)((int64_t)start_ns + trace->real_offset_ns) * 1e-3;
	double duration_us = end_ns > start_ns ? (double)(end_ns - start_ns) * 1e-3 : 0;

	add_event(trace, json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", name, "ph", "X",
	                           "pid", trace->rank, "tid", row, "ts", start_us,
	                           "dur", duration_us, "args", arguments));
}

static void trace_free(ddp_trace *trace)
{
	remove_own(trace);
	free(trace->path);
	free(trace);
}

/* A process of an earlier start may be on a node without power, whose lock a file server keeps for minutes, or it may
   be stopped. That process keeps its file, under another name. */
static ddp_status take_over(ddp_trace *trace)
{
	DIR *stream = open_folder(trace);

	if (stream == NULL)
		return DDP_OK;
	close(trace->fd);
	trace->fd = -1;
	ddp_status status = rename_aside(trace, dirfd(stream), trace->rank);
	closedir(stream);
	return status == DDP_OK ? open_file(trace->path, O_RDWR | O_CREAT, &trace->fd) : status;
}

static ddp_status open_trace(ddp_trace *trace, const char *dir)
{
	char *folder = NULL;
	ddp_status status = ddp_path_absolute("trace folder", dir, &folder);

	if (status == DDP_OK)
		status = ddp_walk_make("the trace folder", folder);
	if (status == DDP_OK && asprintf(&trace->path, "%s/rank-%d.json", folder, trace->rank) < 0) {
		trace->path = NULL;
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for a trace's name");
	}
	free(folder);
	if (status != DDP_OK)
		return status;
	trace->aside = free_number(trace);
	status = open_file(trace->path, O_RDWR | O_CREAT, &trace->fd);
	bool locked = status == DDP_OK && lock(trace->fd);
	if (status == DDP_OK && !locked && trace->restarted && !is_own(trace->path)) {
		status = take_over(trace);
		locked = status == DDP_OK && trace->fd >= 0 && lock(trace->fd);
	}
	if (status == DDP_OK && trace->fd >= 0 && !locked) {
		ddp_log(DDP_LOG_INFO, "rank %d: trace \"%s\" is written by another context, and this one has none: give each a "
		        "trace_dir of its own", trace->rank, trace->path);
		close(trace->fd);
		trace->fd = -1;
	}
	if (status == DDP_OK && locked)
		add_own(trace);
	return status;
}

ddp_status ddp_trace_open(const char *dir, const ddp_job *job, ddp_trace **trace)
{
	struct timespec real;
	char title[64];

	ddp_trace *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a trace");
	made->rank = job->rank;
	made->world_size = job->world_size;
	made->first_of_node = job->local_rank == 0;
	made->restarted = job->restart_count > 0;
	ddp_status status = open_trace(made, dir);
	if (status != DDP_OK) {
		trace_free(made);
		return status;
	}
	clock_gettime(CLOCK_REALTIME, &real);
	made->flushed_ns = ddp_now_ns();
	made->real_offset_ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec -
	                       (int64_t)made->flushed_ns;

	snprintf(title, sizeof(title), "rank %d on %.40s", job->rank, job->hostname);
	add_event(made, json_pack("{s:s, s:s, s:i, s:i, s:{s:s, s:i, s:I}}", "name", "process_name", "ph", "M",
	                          "pid", made->rank, "tid", 0, "args", "name", title, "world_size",
	                          made->world_size, "start", (json_int_t)real.tv_sec));
	for (int row = 0; row < DDP_TRACE_DEVICE; row++)
		name_row(made, "thread_name", row, row_names[row]);
	*trace = made;
	return DDP_OK;
}

void ddp_trace_close(ddp_trace *trace)
{
	if (trace == NULL)
		return;
	/* A run that ended before its first step has no trace worth another's place. */
	settle(trace, true);
	write_buffer(trace);
	if (trace->fd >= 0) {
		memcpy(trace->buffer, "\n]\n", 3);
		trace->used = 3;
		write_buffer(trace);
	}
	if (trace->fd >= 0 && close_file(trace) != 0)
		ddp_log(DDP_LOG_WARN, "rank %d: closing the trace \"%s\": %s", trace->rank,
		        trace->path, ddp_reason(errno));
	trace_free(trace);
}

void ddp_trace_phase(ddp_trace *trace, ddp_trace_row row, const char *name, int64_t step,
                     uint64_t start_ns, uint64_t end_ns)
{
	if (row == DDP_TRACE_DEVICE && !trace->has_device)
		name_row(trace, "thread_name", (int)row, row_names[row]);
	trace->has_device |= row == DDP_TRACE_DEVICE;
	trace->step = step;
	add_range(trace, name, (int)row, json_pack("{s:I}", "step", (json_int_t)step),
	          start_ns, end_ns);
}

static int free_row(ddp_trace *trace, uint64_t start_ns)
{
	int row = 0;

	while (row < COMMUNICATION_ROWS - 1 && trace->row_end_ns[row] > start_ns)
		row++;
	if (row >= trace->rows) {
		char name[32];
		snprintf(name, sizeof(name), "communication %d", row + 1);
		name_row(trace, "thread_name", FIRST_COMMUNICATION_ROW + row, name);
		trace->rows = row + 1;
	}
	return row;
}

void ddp_trace_communication(ddp_trace *trace, const char *name, int64_t step,
                             int64_t bytes, uint64_t start_ns, uint64_t end_ns)
{
	int row = free_row(trace, start_ns);

	trace->row_end_ns[row] = end_ns;
	add_range(trace, name, FIRST_COMMUNICATION_ROW + row,
	          json_pack("{s:I, s:I}", "step", (json_int_t)step, "bytes", (json_int_t)bytes),
	          start_ns, end_ns);
}

void ddp_trace_flush(ddp_trace *trace)
{
	if (!trace->settled)
		return;
	if (trace->used > sizeof(trace->buffer) / 2 ||
	    ddp_seconds_since(trace->flushed_ns) > FLUSH_SECONDS)
		write_buffer(trace);
}
