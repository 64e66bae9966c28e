#include "watch/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

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
	char *path;
	int64_t real_offset_ns; /* real-time clock minus monotonic clock */
	int64_t file_bytes;
	uint64_t flushed_ns;
	uint64_t row_end_ns[COMMUNICATION_ROWS];
	int rows;               /* of communication, that have a name */
	bool has_device;        /* so has the device's */
	size_t used;
	char buffer[BUFFER_BYTES];
};

static ddp_status make_directories(const char *dir)
{
	char path[PATH_MAX];
	size_t length = strlen(dir);

	if (length == 0 || length >= sizeof(path))
		return ddp_fail(DDP_ERR_INVALID, "the trace directory's name is empty or too long");
	memcpy(path, dir, length + 1);
	for (size_t i = 1; i <= length; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		path[i] = '\0';
		if (mkdir(path, 0777) != 0 && errno != EEXIST)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot make the trace directory \"%s\"",
			                      path);
		path[i] = dir[i];
	}
	return DDP_OK;
}

/* Ends the trace, but never the training. */
static void give_up(ddp_trace *trace, const char *reason)
{
	ddp_log(DDP_LOG_WARN, "rank %d: trace \"%s\" ends here: %s", trace->rank, trace->path,
	        reason);
	close(trace->fd);
	trace->fd = -1;
	trace->used = 0;
}

static void write_buffer(ddp_trace *trace)
{
	size_t done = 0;

	while (trace->fd >= 0 && done < trace->used) {
		ssize_t n = write(trace->fd, trace->buffer + done, trace->used - done);
		if (n >= 0) {
			done += (size_t)n;
			continue;
		}
		if (errno == EINTR)
			continue;
		const char *reason = strerror(errno);
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

ddp_status ddp_trace_open(const char *dir, const ddp_job *job, ddp_trace **trace)
{
	struct timespec real;
	char title[64];

	ddp_status status = make_directories(dir);
	if (status != DDP_OK)
		return status;
	ddp_trace *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a trace");
	made->rank = job->rank;
	if (asprintf(&made->path, "%s/rank-%d.json", dir, job->rank) < 0) {
		free(made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a trace's name");
	}
	made->fd = open(made->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (made->fd < 0) {
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot make the trace \"%s\"", made->path);
		free(made->path);
		free(made);
		return status;
	}
	clock_gettime(CLOCK_REALTIME, &real);
	made->flushed_ns = ddp_now_ns();
	made->real_offset_ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec -
	                       (int64_t)made->flushed_ns;

	snprintf(title, sizeof(title), "rank %d on %.40s", job->rank, job->hostname);
	name_row(made, "process_name", 0, title);
	for (int row = 0; row < DDP_TRACE_DEVICE; row++)
		name_row(made, "thread_name", row, row_names[row]);
	*trace = made;
	return DDP_OK;
}

void ddp_trace_close(ddp_trace *trace)
{
	if (trace == NULL)
		return;
	write_buffer(trace);
	if (trace->fd >= 0) {
		memcpy(trace->buffer, "\n]\n", 3);
		trace->used = 3;
		write_buffer(trace);
	}
	if (trace->fd >= 0 && close(trace->fd) != 0)
		ddp_log(DDP_LOG_WARN, "rank %d: closing the trace \"%s\": %s", trace->rank,
		        trace->path, strerror(errno));
	free(trace->path);
	free(trace);
}

void ddp_trace_phase(ddp_trace *trace, ddp_trace_row row, const char *name, int64_t step,
                     uint64_t start_ns, uint64_t end_ns)
{
	if (row == DDP_TRACE_DEVICE && !trace->has_device)
		name_row(trace, "thread_name", (int)row, row_names[row]);
	trace->has_device |= row == DDP_TRACE_DEVICE;
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
	if (trace->used > sizeof(trace->buffer) / 2 ||
	    ddp_seconds_since(trace->flushed_ns) > FLUSH_SECONDS)
		write_buffer(trace);
}
