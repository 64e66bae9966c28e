/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* watch: the progress page, the trace, the metrics and the arithmetic of overlap. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "tests/support/test.h"
#include "watch/metrics.h"
#include "watch/page.h"
#include "watch/trace.h"
#include "watch/watch.h"

static char dir[] = "/tmp/ddp-watch-XXXXXX";
static char path[128];

static const ddp_job job = {
	.rank = 2, .world_size = 4, .local_rank = 1, .local_world_size = 2,
	.hostname = "n1", .identity_source = DDP_SOURCE_ENVIRONMENT, .plugin = true,
};
static const ddp_job first = { .world_size = 1, .local_world_size = 1, .hostname = "n0" };

static int make_dir(void **state)
{
	return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state)
{
	return rmdir(dir);
}

static const char *in_dir(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

/* Removes these files of the folder r, whose names end with NULL, and the folder. */
static void remove_run(const char *const *files)
{
	for (; *files != NULL; files++)
		assert_int_equal(unlink(in_dir(*files)), 0);
	assert_int_equal(rmdir(in_dir("r")), 0);
}

#define REMOVE_RUN(...) remove_run((const char *const[]){ __VA_ARGS__, NULL })

static char *read_file(const char *name)
{
	FILE *file = fopen(name, "r");
	assert_non_null(file);
	char *text = calloc(1, 1 << 20);
	assert_non_null(text);
	size_t n = fread(text, 1, (1 << 20) - 1, file);
	text[n] = '\0';
	fclose(file);
	return text;
}

static char logged[1024];
static int logged_count;

static void keep_log(void *user, ddp_log_level level, const char *message)
{
	snprintf(logged, sizeof(logged), "%s", message);
	logged_count++;
}

static int start_log(void **state)
{
	logged[0] = '\0';
	logged_count = 0;
	ddp_set_log(keep_log, NULL, DDP_LOG_WARN);
	return 0;
}

static int stop_log(void **state)
{
	ddp_set_log(NULL, NULL, DDP_LOG_ERROR);
	unsetenv("DDP_PROGRESS_FD");
	return 0;
}

/* ---- spans ---- */

TEST(overlapping_communication_counts_once)
{
	static const struct { ddp_span spans[4]; size_t count; double seconds; } cases[] = {
		{ { { 0, 0 } }, 0, 0 },
		{ { { 5, 15 } }, 1, 10 },
		{ { { 20, 30 }, { 0, 10 } }, 2, 20 },
		{ { { 0, 10 }, { 5, 15 } }, 2, 15 },
		{ { { 0, 10 }, { 2, 4 }, { 3, 12 } }, 3, 12 },
		{ { { 0, 10 }, { 10, 20 }, { 0, 20 }, { 25, 25 } }, 4, 20 },
		{ { { 10, 5 }, { 0, 7 } }, 2, 7 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ddp_span spans[4];

		memcpy(spans, cases[i].spans, sizeof(spans));
		for (size_t s = 0; s < 4; s++) {
			spans[s].start_ns *= 1000000000u;
			spans[s].end_ns *= 1000000000u;
		}
		assert_true(fabs(ddp_spans_union(spans, cases[i].count) - cases[i].seconds) < 1e-9);
	}
}

TEST(overlap_ratio_stays_between_0_and_1)
{
	assert_true(ddp_overlap_ratio(0, 0) == 1);
	assert_true(ddp_overlap_ratio(1, 4) == 0.75);
	assert_true(ddp_overlap_ratio(5, 4) == 0);
	assert_true(ddp_overlap_ratio(0, 4) == 1);
}

/* ---- trace ---- */

static json_t *load_trace(const char *name, bool closed)
{
	json_error_t error;
	char *text = read_file(name);

	if (!closed) {
		/* What a reader of the format does with a file without its end. */
		assert_null(strstr(text, "\n]"));
		strcat(text, "]");
	}
	json_t *events = json_loads(text, 0, &error);
	if (events == NULL)
		fail_msg("not JSON: %s at line %d", error.text, error.line);
	assert_true(json_is_array(events));
	free(text);
	return events;
}

TEST(closed_trace_is_json_with_rows)
{
	static const struct { const char *name; int ranges; } expected[] = {
		{ "compute", 1 }, { "data", 0 }, { "optimizer", 1 }, { "device", 2 },
		{ "communication 1", 2 }, /* bucket 2 fits behind bucket 0 */
		{ "communication 2", 1 }, /* bucket 1 overlaps */
	};
	enum { ROWS = sizeof(expected) / sizeof(expected[0]) };
	ddp_trace *trace;
	size_t i;
	json_t *event;
	int ranges[ROWS] = { 0 }, named = 0;

	in_dir("a/b");
	assert_int_equal(ddp_trace_open(path, &job, &trace), DDP_OK);
	ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "backward", 7, 1000, 4000);
	ddp_trace_phase(trace, DDP_TRACE_OPTIMIZER, "optimizer", 7, 4000, 7000);
	ddp_trace_phase(trace, DDP_TRACE_DEVICE, "device forward", 7, 1000, 4000);
	ddp_trace_phase(trace, DDP_TRACE_DEVICE, "device backward", 7, 4000, 7000);
	ddp_trace_communication(trace, "bucket 0", 7, 64, 1000, 3000);
	ddp_trace_communication(trace, "bucket 1", 7, 64, 2000, 4000);
	ddp_trace_communication(trace, "bucket 2", 7, 64, 3000, 5000);
	ddp_trace_close(trace);

	json_t *events = load_trace(in_dir("a/b/rank-2.json"), true);
	json_array_foreach(events, i, event) {
		const json_t *arguments = json_object_get(event, "args");
		const int row = (int)json_integer_value(json_object_get(event, "tid"));
		assert_true(row >= 0 && row < ROWS);
		assert_int_equal(json_integer_value(json_object_get(event, "pid")), 2);
		if (strcmp(json_string_value(json_object_get(event, "name")), "thread_name") == 0) {
			assert_string_equal(json_string_value(json_object_get(arguments, "name")), expected[row].name);
			named++;
		}
		if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
			continue;
		ranges[row]++;
		double duration_us = json_real_value(json_object_get(event, "dur"));
		assert_true(duration_us == (row < DDP_TRACE_ROWS ? 3 : 2));
		assert_int_equal(json_integer_value(json_object_get(arguments, "step")), 7);
	}
	assert_int_equal(named, ROWS);
	for (int row = 0; row < ROWS; row++)
		assert_int_equal(ranges[row], expected[row].ranges);
	json_decref(events);
	unlink(path);
	rmdir(in_dir("a/b"));
	rmdir(in_dir("a"));
}

TEST(killed_trace_is_a_prefix_of_whole_events)
{
	int status;

	in_dir("k");
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		ddp_trace *trace;
		if (ddp_trace_open(path, &job, &trace) != DDP_OK)
			_exit(1);
		for (uint64_t i = 0; i < 5000; i++) {
			ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "forward", (int64_t)i, i * 1000, i * 1000 + 500);
			ddp_trace_flush(trace);
		}
		raise(SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	json_t *events = load_trace(in_dir("k/rank-2.json"), false);
	assert_true(json_array_size(events) >= 4000 && json_array_size(events) <= 5004);
	json_decref(events);
	unlink(path);
	rmdir(in_dir("k"));
}

TEST_WITH(full_disk_ends_the_trace_at_a_whole_event, start_log, stop_log)
{
	const struct rlimit small = { 100000, 100000 };
	int status;

	in_dir("f");
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		ddp_trace *trace;
		if (setrlimit(RLIMIT_FSIZE, &small) != 0 || ddp_trace_open(path, &job, &trace) != DDP_OK)
			_exit(1);
		for (uint64_t i = 0; i < 5000; i++)
			ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "forward", (int64_t)i, i * 1000, i * 1000 + 500);
		ddp_trace_close(trace);
		_exit(logged_count == 1 && strstr(logged, "File too large") != NULL ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	json_t *events = load_trace(in_dir("f/rank-2.json"), false);
	assert_true(json_array_size(events) >= 100 && json_array_size(events) < 5000);
	json_decref(events);
	unlink(path);
	rmdir(in_dir("f"));
}

/* `step` 0: it ends before its first step. */
static void trace_of_run(int ranks, uint32_t restarts, int64_t step, const char *name)
{
	ddp_trace *traces[4];
	char folder[128];

	snprintf(folder, sizeof(folder), "%s", in_dir("r"));
	for (int r = 0; r < ranks; r++) {
		const ddp_job rank = { .rank = r, .world_size = ranks, .local_rank = r,
		                       .restart_count = restarts, .hostname = "n0" };
		assert_int_equal(ddp_trace_open(folder, &rank, &traces[r]), DDP_OK);
	}
	for (int r = 0; r < ranks; r++) {
		ddp_trace_phase(traces[r], DDP_TRACE_COMPUTE, name, step, 1000, 4000);
		if (step > 0)
			ddp_trace_begin(traces[r], step);
		ddp_trace_close(traces[r]);
	}
}

/* How many ranges of a name are in a file; -1: there is no file. */
static int ranges_of(const char *file, const char *name)
{
	json_t *events, *event;
	size_t i;
	int found = 0;

	if (access(in_dir(file), F_OK) != 0)
		return -1;
	events = load_trace(path, true);
	json_array_foreach(events, i, event)
		found += strcmp(json_string_value(json_object_get(event, "name")), name) == 0;
	json_decref(events);
	return found;
}

/* As metrics and checkpoints are: an earlier run's are kept aside, a resumed run goes on. */
TEST(new_run_sets_traces_aside_and_a_resumed_one_goes_on)
{
	char cut[128];
	struct stat whole;

	trace_of_run(3, 0, 1, "first");
	trace_of_run(2, 0, 1, "second");
	assert_int_equal(ranges_of("r/rank-2.json", "first"), -1);
	assert_int_equal(ranges_of("r/rank-2.json.1", "first"), 1);
	assert_int_equal(ranges_of("r/rank-0.json.1", "first"), 1);
	assert_int_equal(ranges_of("r/rank-0.json", "first"), 0);
	trace_of_run(2, 0, 2, "second"); /* resumed by hand */
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 2);
	snprintf(cut, sizeof(cut), "%s", in_dir("r/rank-1.json"));
	assert_int_equal(stat(cut, &whole), 0);
	for (off_t less = 0; less < 40; less += 13) { /* killed: behind the last event, or within it */
		assert_int_equal(truncate(cut, whole.st_size - less), 0);
		trace_of_run(2, 0, 3, "third");
		assert_int_equal(ranges_of("r/rank-1.json", "third"), 1);
		assert_int_equal(ranges_of("r/rank-1.json", "second"), less == 0 ? 2 : 1);
	}
	trace_of_run(2, 1, 0, "requeued"); /* and ended before its first step */
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 2);
	assert_int_equal(ranges_of("r/rank-0.json", "requeued"), 1);
	trace_of_run(2, 2, 1, "restarted"); /* before its first checkpoint */
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 2);
	assert_int_equal(ranges_of("r/rank-0.json", "restarted"), 1);
	trace_of_run(2, 0, 0, "refused"); /* by hand, and its load failed */
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 2);
	assert_int_equal(ranges_of("r/rank-0.json", "refused"), 1);
	trace_of_run(2, 0, 1, "fourth");
	assert_int_equal(ranges_of("r/rank-0.json", "fourth"), 1);
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 0);
	assert_int_equal(ranges_of("r/rank-0.json.2", "second"), 2);
	REMOVE_RUN("r/rank-0.json", "r/rank-1.json", "r/rank-0.json.1", "r/rank-1.json.1", "r/rank-2.json.1", "r/rank-0.json.2",
	           "r/rank-1.json.2");
}

/* The contexts of a program may have one folder, as DDP_TRACE_DIR gives it to all. */
TEST_WITH(context_has_no_trace_where_another_writes_one, start_log, stop_log)
{
	static const char *const files[] = { "r/rank-0.json", "r/rank-1.json" };
	const ddp_job world[] = { { .rank = 0, .world_size = 2 }, { .rank = 1, .world_size = 2, .local_rank = 1 } };
	ddp_trace *traces[2], *group;

	for (int r = 0; r < 2; r++) {
		assert_int_equal(ddp_trace_open(in_dir("r"), &world[r], &traces[r]), DDP_OK);
		ddp_trace_phase(traces[r], DDP_TRACE_COMPUTE, "world", 1, 1000, 4000);
		ddp_trace_begin(traces[r], 1);
	}
	/* Of one rank, so rank 1 is none of its own. */
	ddp_set_log(keep_log, NULL, DDP_LOG_INFO);
	assert_int_equal(ddp_trace_open(in_dir("r"), &first, &group), DDP_OK);
	assert_non_null(strstr(logged, "rank-0.json\" is written by another context"));
	ddp_trace_phase(group, DDP_TRACE_COMPUTE, "group", 1, 1000, 4000);
	ddp_trace_begin(group, 1);
	ddp_trace_close(group);
	for (int r = 0; r < 2; r++)
		ddp_trace_close(traces[r]);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(ranges_of(files[i], "world"), 1);
		assert_int_equal(ranges_of(files[i], "group"), 0);
	}
	/* Then there is a place for it. */
	trace_of_run(1, 0, 2, "later");
	assert_int_equal(ranges_of("r/rank-0.json", "later"), 1);
	REMOVE_RUN(files[0], files[1]);
}

/* Another program may be in the folder, whose ranks are more. */
TEST(trace_that_is_written_is_not_set_aside)
{
	const ddp_job other = { .rank = 1, .world_size = 2, .local_rank = 1 };
	ddp_trace *trace;

	assert_int_equal(ddp_trace_open(in_dir("r"), &other, &trace), DDP_OK);
	trace_of_run(1, 0, 1, "one");
	ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "other", 1, 1000, 4000);
	ddp_trace_begin(trace, 1);
	ddp_trace_close(trace);
	assert_int_equal(ranges_of("r/rank-1.json", "other"), 1);
	assert_int_equal(ranges_of("r/rank-0.json", "one"), 1);
	REMOVE_RUN("r/rank-0.json", "r/rank-1.json");
}

/* The earlier start's process may be stopped, or on a node whose locks a file server keeps. */
TEST(restart_takes_the_name_of_a_trace_over)
{
	int ready[2], until[2], status;
	char byte;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(until), 0);
	fflush(NULL);
	const pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		ddp_trace *trace;
		close(until[1]);
		if (ddp_trace_open(in_dir("r"), &first, &trace) != DDP_OK)
			_exit(1);
		ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "before", 1, 1000, 4000);
		ddp_trace_begin(trace, 1);
		if (write(ready[1], "", 1) != 1 || read(until[0], &byte, 1) < 0)
			_exit(1);
		ddp_trace_close(trace);
		_exit(0);
	}
	close(until[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	trace_of_run(1, 1, 2, "after");
	close(until[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(ranges_of("r/rank-0.json", "after"), 1);
	assert_int_equal(ranges_of("r/rank-0.json", "before"), 0);
	assert_int_equal(ranges_of("r/rank-0.json.1", "before"), 1);
	close(ready[0]);
	close(ready[1]);
	REMOVE_RUN("r/rank-0.json", "r/rank-0.json.1");
}

/* A folder has the name that the next run gives: whichever run it is of, what is there stays. */
TEST_WITH(trace_that_cannot_be_set_aside_stays, start_log, stop_log)
{
	trace_of_run(1, 0, 1, "first");
	ddp_trace *trace;
	assert_int_equal(ddp_trace_open(in_dir("r"), &first, &trace), DDP_OK);
	assert_int_equal(mkdir(in_dir("r/rank-0.json.1"), 0700), 0);
	ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "second", 1, 1000, 4000);
	ddp_trace_begin(trace, 1);
	ddp_trace_close(trace);
	assert_non_null(strstr(logged, "trace \""));
	assert_non_null(strstr(logged, "cannot be renamed to rank-0.json.1"));
	assert_int_equal(ranges_of("r/rank-0.json", "first"), 1);
	assert_int_equal(ranges_of("r/rank-0.json", "second"), 0);
	assert_int_equal(rmdir(in_dir("r/rank-0.json.1")), 0);
	REMOVE_RUN("r/rank-0.json");
}

TEST(impossible_trace_directory_is_an_error)
{
	ddp_trace *trace;

	assert_int_equal(ddp_trace_open("/dev/null/x", &job, &trace), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "/dev/null/x"));
	assert_int_equal(ddp_trace_open("", &job, &trace), DDP_ERR_INVALID);
}

/* ---- metrics ---- */

TEST(metrics_are_one_object_per_line)
{
	ddp_metrics *metrics;
	ddp_step_stats stats = { .step = 1, .loss = 2.5, .weight = 100, .seconds = 0.5,
	                         .grad_norm = NAN, .learning_rate = 1e-3 };

	for (int run = 0; run < 2; run++) { /* the second appends */
		assert_int_equal(ddp_metrics_open(in_dir("m.jsonl"), false, &metrics), DDP_OK);
		ddp_metrics_step(metrics, &stats);
		stats.step++;
		ddp_metrics_close(metrics);
	}
	char *text = read_file(path), *line = text;
	for (int step = 1; step <= 2; step++) {
		char *end = strchr(line, '\n');
		assert_non_null(end);
		json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
		assert_non_null(object);
		assert_int_equal(json_integer_value(json_object_get(object, "step")), step);
		assert_true(json_real_value(json_object_get(object, "loss")) == 2.5);
		assert_true(json_real_value(json_object_get(object, "units_per_second")) == 200);
		assert_true(json_is_null(json_object_get(object, "grad_norm")));
		json_decref(object);
		line = end + 1;
	}
	assert_int_equal(*line, '\0');
	free(text);
	unlink(path);
}

static char *line_of_start(const char *file, bool restarted, int step, double loss)
{
	const ddp_step_stats stats = { .step = step, .loss = loss };
	ddp_metrics *metrics;

	assert_int_equal(ddp_metrics_open(in_dir(file), restarted, &metrics), DDP_OK);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_close(metrics);
	return read_file(path);
}

static char *line_of_run(const char *file, int step, double loss)
{
	return line_of_start(file, false, step, loss);
}

TEST(fresh_run_begins_a_new_metrics_file)
{
	const char *const losses[] = { "\"loss\":3", "\"loss\":1", "\"loss\":2" };
	const char *const files[] = { "m.jsonl", "m.jsonl.1", "m.jsonl.2" };

	for (int run = 1; run <= 3; run++)
		free(line_of_run("m.jsonl", 1, run));
	char *text = line_of_run("m.jsonl", 2, 4); /* a resumed run */
	assert_non_null(strstr(text, "\"loss\":3"));
	assert_non_null(strstr(text, "\"loss\":4"));
	free(text);
	text = line_of_start("m.jsonl", true, 1, 5); /* a restart before the first checkpoint */
	assert_non_null(strstr(text, "\"loss\":3"));
	assert_non_null(strstr(text, "\"loss\":5"));
	free(text);
	for (int i = 0; i < 3; i++) {
		in_dir(files[i]);
		text = read_file(path);
		assert_non_null(strstr(text, losses[i]));
		if (i > 0)
			assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
		free(text);
		unlink(path);
	}
}

TEST(metrics_behind_a_link_are_appended_to)
{
	char link[128];

	free(line_of_run("m.jsonl", 1, 1));
	snprintf(link, sizeof(link), "%s/link.jsonl", dir);
	assert_int_equal(symlink("m.jsonl", link), 0);
	ddp_set_log(keep_log, NULL, DDP_LOG_INFO);
	char *text = line_of_run("link.jsonl", 1, 2);
	assert_non_null(strstr(logged, "a link keeps its file"));
	assert_non_null(strstr(text, "\"loss\":1"));
	assert_non_null(strstr(text, "\"loss\":2"));
	free(text);
	unlink(link);
	unlink(in_dir("m.jsonl"));
}

TEST_WITH(lost_metrics_are_reported_once, start_log, stop_log)
{
	ddp_metrics *metrics;
	const ddp_step_stats stats = { .step = 9 };

	assert_int_equal(ddp_metrics_open("/dev/full", false, &metrics), DDP_OK);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_close(metrics);
	assert_int_equal(logged_count, 1);
	assert_non_null(strstr(logged, "metrics end at step 9: cannot write to \"/dev/full\""));
	assert_int_equal(ddp_metrics_open("/dev/null/m", false, &metrics), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "/dev/null/m"));
}

static void refuse_metrics(const char *name, const char *words)
{
	ddp_metrics *metrics;

	assert_int_equal(ddp_metrics_open(name, false, &metrics), DDP_ERR_IO);
	if (strstr(ddp_last_error(), words) == NULL || strstr(ddp_last_error(), name) == NULL)
		fail_msg("%s: \"%s\"", name, ddp_last_error());
}

/* Nobody shall wait for a reader, or for a device. */
TEST(paths_that_cannot_be_written_to_are_errors)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	ddp_trace *trace;

	assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
	refuse_metrics(path, "it is a pipe that nobody reads");
	unlink(path);
	const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%.90s", in_dir("socket"));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	refuse_metrics(path, "it is a socket");
	unlink(path);
	close(fd);
	refuse_metrics(dir, "Is a directory");
	assert_int_equal(symlink("gone/gone", in_dir("link")), 0);
	refuse_metrics(path, "No such file");
	assert_int_equal(ddp_trace_open(path, &job, &trace), DDP_ERR_IO);
	unlink(path);
	assert_int_equal(mkdir(in_dir("t"), 0700), 0);
	assert_int_equal(mkfifo(in_dir("t/rank-2.json"), 0600), 0);
	assert_int_equal(ddp_trace_open(in_dir("t"), &job, &trace), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "it is no file"));
	unlink(in_dir("t/rank-2.json"));
	rmdir(in_dir("t"));
}

/* SIGPIPE is as it is in every program. */
TEST_WITH(reader_that_ends_or_stops_costs_metrics_only, start_log, stop_log)
{
	enum { LINES = 2000 };
	ddp_metrics *metrics;
	const ddp_step_stats stats = { .step = 9 };
	char some[4096];

	assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
	const int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_int_equal(ddp_metrics_open(path, false, &metrics), DDP_OK);
	for (int i = 0; i < LINES; i++)
		ddp_metrics_step(metrics, &stats);
	assert_int_equal(logged_count, 1);
	assert_non_null(strstr(logged, "its reader does not read"));
	while (read(reader, some, sizeof(some)) > 0)
		continue;
	ddp_metrics_step(metrics, &stats);
	assert_true(read(reader, some, sizeof(some)) > 0);
	close(reader);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_step(metrics, &stats);
	assert_int_equal(logged_count, 2);
	assert_non_null(strstr(logged, "Broken pipe"));
	ddp_metrics_close(metrics);
	unlink(path);
}

TEST_WITH(file_size_limit_ends_metrics_only, start_log, stop_log)
{
	int status;

	in_dir("m.jsonl");
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		const ddp_step_stats stats = { .step = 9 };
		ddp_metrics *metrics;
		if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 2000, 2000 }) != 0 ||
		    ddp_metrics_open(path, false, &metrics) != DDP_OK)
			_exit(1);
		for (int i = 0; i < 100; i++)
			ddp_metrics_step(metrics, &stats);
		ddp_metrics_close(metrics);
		_exit(logged_count == 1 && strstr(logged, "no space for a whole line") != NULL ? 0 : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	unlink(path);
}

/* A program that has one of these signals pending keeps it. */
TEST(pending_signal_of_the_program_stays)
{
	ddp_held_signals held;
	sigset_t pipe_only, pending;
	const struct timespec now = { 0 };

	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe_only, NULL);
	raise(SIGPIPE);
	ddp_signals_hold(&held);
	ddp_signals_release(&held);
	sigpending(&pending);
	assert_true(sigismember(&pending, SIGPIPE));
	assert_int_equal(sigtimedwait(&pipe_only, NULL, &now), SIGPIPE);
	pthread_sigmask(SIG_UNBLOCK, &pipe_only, NULL);
}

/* The folder of a metrics file is made; a later chdir() moves nothing. */
TEST(metrics_stay_where_their_name_was_given)
{
	char before[256];
	ddp_metrics *metrics;
	const ddp_step_stats stats = { .step = 1 };

	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(dir), 0);
	for (int run = 0; run < 2; run++) {
		assert_int_equal(ddp_metrics_open("new/folder/m.jsonl", false, &metrics), DDP_OK);
		assert_int_equal(chdir("/"), 0);
		ddp_metrics_step(metrics, &stats);
		ddp_metrics_close(metrics);
		assert_int_equal(chdir(dir), 0);
	}
	assert_int_equal(chdir(before), 0);
	assert_int_equal(unlink(in_dir("new/folder/m.jsonl.1")), 0);
	assert_int_equal(unlink(in_dir("new/folder/m.jsonl")), 0);
	rmdir(in_dir("new/folder"));
	assert_int_equal(rmdir(in_dir("new")), 0);
}

/* ---- progress page ---- */

static int plugin_page(int pages)
{
	char text[16];
	int fd = memfd_create("ddp", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)pages * DDP_PROGRESS_BYTES), 0);
	snprintf(text, sizeof(text), "%d", fd);
	setenv("DDP_PROGRESS_FD", text, 1);
	return fd;
}

TEST_WITH(page_of_the_plugin_tells_phase_bucket_and_error, start_log, stop_log)
{
	struct ddp_progress seen, other;
	ddp_watch *watch;
	int fd = plugin_page(2);

	assert_int_equal(ddp_watch_open(&job, &watch), DDP_OK);
	assert_int_equal(ddp_watch_record(watch, &job, "/dev/null/only rank 0 writes", NULL), DDP_OK);
	ddp_watch_begin_step(watch, 12, 5);
	ddp_watch_phase(watch, DDP_PHASE_BACKWARD);
	ddp_watch_bucket(watch, 3);
	ddp_page_collective(ddp_watch_page(watch), 45, ddp_coarse_ns());
	ddp_page_wait(ddp_watch_page(watch), 45, 0, "all_reduce f32[262144] sum");
	ddp_fail(DDP_ERR_PEER, "rank 1 is gone");
	ddp_watch_error(watch, DDP_ERR_PEER);
	ddp_watch_close(watch);

	assert_int_equal(pread(fd, &seen, sizeof(seen), DDP_PROGRESS_BYTES), sizeof(seen));
	assert_int_equal(seen.magic, DDP_PROGRESS_MAGIC);
	assert_int_equal(seen.status, DDP_ERR_PEER);
	assert_int_equal(seen.phase, DDP_PHASE_BACKWARD);
	assert_int_equal(seen.step, 12);
	assert_int_equal(seen.bucket, 3);
	assert_int_equal(seen.buckets, 5);
	assert_int_equal(seen.collective, 45);
	assert_int_equal(seen.described, 45);
	assert_int_equal(seen.waiting, DDP_WAITING_COLLECTIVE);
	assert_true(seen.collective_ns >= 1 && seen.collective_ns <= ddp_now_ns());
	assert_int_equal(seen.closed, 1);
	assert_true(seen.updated_ns > 0);
	assert_string_equal(seen.collective_text, "all_reduce f32[262144] sum");
	assert_string_equal(seen.error, "rank 1 is gone");
	assert_int_equal(pread(fd, &other, sizeof(other), 0), sizeof(other));
	assert_int_equal(other.magic, 0);
	close(fd);
}

static int page_fd;
static ddp_watch *page_watch;

static struct ddp_progress page(void)
{
	struct ddp_progress seen;

	assert_int_equal(pread(page_fd, &seen, sizeof(seen), DDP_PROGRESS_BYTES), sizeof(seen));
	return seen;
}

static int open_page(void **state)
{
	page_fd = plugin_page(2);
	return ddp_watch_open(&job, &page_watch) == DDP_OK ? 0 : -1;
}

static int close_page(void **state)
{
	ddp_watch_close(page_watch);
	return close(page_fd);
}

TEST_WITH(error_is_past_once_the_rank_goes_on, open_page, close_page)
{
	const ddp_step_stats stats = { .step = 1 };

	for (int by_step = 0; by_step < 2; by_step++) {
		ddp_fail(DDP_ERR_NOT_FINITE, "the loss is not finite");
		ddp_watch_error(page_watch, DDP_ERR_NOT_FINITE);
		assert_int_equal(page().error_state, DDP_ERROR_OPEN);
		if (by_step)
			ddp_watch_end_step(page_watch, &stats);
		else
			ddp_watch_go_on(page_watch);
		assert_int_equal(page().error_state, DDP_ERROR_PAST);
		assert_int_equal(page().status, DDP_OK);
		assert_string_equal(page().error, "");
	}
}

/* A step may succeed while a group of its ranks breaks, in which the next step waits. */
TEST_WITH(error_that_names_a_rank_stays_readable, open_page, close_page)
{
	ddp_page_error(ddp_watch_page(page_watch), DDP_ERR_PEER, DDP_ERROR_OPEN, 2, "n1", "rank 2 is gone");
	ddp_watch_go_on(page_watch);
	assert_int_equal(page().error_state, DDP_ERROR_PAST);
	assert_int_equal(page().culprit, 3);
	assert_string_equal(page().error, "rank 2 is gone");
	assert_string_equal(page().culprit_node, "n1");
	/* Its node is known from before. */
	ddp_error_about(ddp_fail(DDP_ERR_PEER, "step 4: rank 2 is gone"), 2);
	ddp_watch_error(page_watch, DDP_ERR_PEER);
	assert_string_equal(page().culprit_node, "n1");
	ddp_page_forget_error(ddp_watch_page(page_watch), DDP_ERROR_OPEN);
	assert_int_equal(page().status, DDP_OK);
	assert_int_equal(page().culprit, 0);
	assert_string_equal(page().culprit_node, "");
	/* Nobody waits for what a full disk has kept rank 0 from. */
	ddp_error_about(ddp_fail(DDP_ERR_IO, "rank 0: cannot write x"), 0);
	ddp_watch_error(page_watch, DDP_ERR_IO);
	assert_int_equal(page().error_state, DDP_ERROR_OPEN);
	assert_int_equal(page().culprit, 1);
	ddp_watch_go_on(page_watch);
	assert_int_equal(page().status, DDP_OK);
	assert_string_equal(page().error, "");
}

TEST_WITH(final_error_stays, open_page, close_page)
{
	ddp_page_error(ddp_watch_page(page_watch), DDP_ERR_PEER, DDP_ERROR_FINAL, 2, "n1", "rank 2 is gone");
	ddp_fail(DDP_ERR_PEER, "step 4: rank 2 is gone");
	ddp_watch_error(page_watch, DDP_ERR_PEER);
	ddp_watch_go_on(page_watch);
	ddp_page_forget_error(ddp_watch_page(page_watch), DDP_ERROR_OPEN);
	assert_int_equal(page().error_state, DDP_ERROR_FINAL);
	assert_int_equal(page().culprit, 3);
	ddp_watch_close(page_watch);
	page_watch = NULL;
	assert_int_equal(page().error_state, DDP_ERROR_FINAL);
}

TEST_WITH(open_error_ends_with_the_ranks_part, open_page, close_page)
{
	ddp_fail(DDP_ERR_IO, "the disk is full");
	ddp_watch_error(page_watch, DDP_ERR_IO);
	ddp_watch_close(page_watch);
	page_watch = NULL;
	assert_int_equal(page().error_state, DDP_ERROR_PAST);
	assert_string_equal(page().error, "the disk is full");
}

/* torchrun's ranks inherit the page of the task that torchrun is, and spawned ones that of their parent. */
TEST_WITH(page_of_another_process_is_left_alone, start_log, stop_log)
{
	ddp_job rank = job;
	ddp_watch *watch;

	for (int spawned = 0; spawned < 2; spawned++) {
		page_fd = plugin_page(2);
		if (spawned)
			rank.identity_source = DDP_SOURCE_SPAWN;
		else
			setenv("TORCHELASTIC_RUN_ID", "7", 1);
		assert_int_equal(ddp_watch_open(&rank, &watch), DDP_OK);
		ddp_watch_phase(watch, DDP_PHASE_DATA);
		ddp_watch_close(watch);
		unsetenv("TORCHELASTIC_RUN_ID");
		assert_int_equal(page().magic, 0);
		assert_int_equal(logged_count, 0);
		close(page_fd);
	}
}

TEST_WITH(wrong_page_is_ignored_with_a_warning, start_log, stop_log)
{
	static const char *const values[] = { "abc", "-1", "99999999999", "1000000" };
	ddp_watch *watch;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		setenv("DDP_PROGRESS_FD", values[i], 1);
		assert_int_equal(ddp_watch_open(&job, &watch), DDP_OK);
		ddp_watch_phase(watch, DDP_PHASE_DATA);
		ddp_watch_close(watch);
		assert_int_equal(logged_count, i + 1);
	}
	int fd = plugin_page(1); /* none for local rank 1 */
	assert_int_equal(ddp_watch_open(&job, &watch), DDP_OK);
	ddp_watch_close(watch);
	assert_int_equal(logged_count, 5);
	close(fd);
}

/* ---- phases ---- */

TEST(phases_are_timed_and_traced)
{
	ddp_watch *watch;
	size_t i;
	json_t *event;
	int forward = 0, rows[DDP_TRACE_ROWS] = { 0 };

	assert_int_equal(ddp_watch_open(&first, &watch), DDP_OK);
	assert_int_equal(ddp_watch_record(watch, &first, NULL, in_dir("t")), DDP_OK);
	ddp_watch_begin_step(watch, 1, 1);
	ddp_watch_phase(watch, DDP_PHASE_FORWARD);
	usleep(3000);
	ddp_watch_phase(watch, DDP_PHASE_FORWARD);
	assert_true(ddp_watch_phase_seconds(watch, DDP_PHASE_FORWARD) == 0);
	ddp_watch_phase(watch, DDP_PHASE_IDLE);
	ddp_watch_phase(watch, (ddp_phase)99);
	assert_int_equal(ddp_watch_current_phase(watch), DDP_PHASE_IDLE);
	assert_true(ddp_watch_phase_seconds(watch, DDP_PHASE_FORWARD) >= 0.003);
	assert_true(ddp_watch_phase_seconds(watch, DDP_PHASE_BACKWARD) == 0);
	ddp_watch_phase(watch, DDP_PHASE_DATA);
	ddp_watch_phase(watch, DDP_PHASE_BACKWARD);
	ddp_watch_phase(watch, DDP_PHASE_WAIT);
	ddp_watch_phase(watch, DDP_PHASE_OPTIMIZER);
	ddp_watch_phase(watch, DDP_PHASE_IDLE);
	ddp_watch_close(watch);

	json_t *events = load_trace(in_dir("t/rank-0.json"), true);
	json_array_foreach(events, i, event) {
		forward += strcmp(json_string_value(json_object_get(event, "name")), "forward") == 0;
		if (strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0)
			rows[json_integer_value(json_object_get(event, "tid"))]++;
	}
	assert_int_equal(forward, 1);
	assert_true(rows[DDP_TRACE_COMPUTE] == 3 && rows[DDP_TRACE_DATA] == 1 && rows[DDP_TRACE_OPTIMIZER] == 1);
	json_decref(events);
	unlink(path);
	rmdir(in_dir("t"));
}

int main(void)
{
	return test_run(make_dir, remove_dir);
}
