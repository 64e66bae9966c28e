/* watch: the progress page, the trace, the metrics and the arithmetic of overlap. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "watch/metrics.h"
#include "watch/page.h"
#include "watch/spans.h"
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
	(void)state;
	return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state)
{
	(void)state;
	return rmdir(dir);
}

static const char *in_dir(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

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
	(void)user;
	(void)level;
	snprintf(logged, sizeof(logged), "%s", message);
	logged_count++;
}

static int start_log(void **state)
{
	(void)state;
	logged[0] = '\0';
	logged_count = 0;
	ddp_set_log(keep_log, NULL, DDP_LOG_WARN);
	return 0;
}

static int stop_log(void **state)
{
	(void)state;
	ddp_set_log(NULL, NULL, DDP_LOG_ERROR);
	unsetenv("DDP_PROGRESS_FD");
	return 0;
}

/* ---- spans ---- */

static void overlapping_communication_counts_once(void **state)
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

	(void)state;
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

static void overlap_ratio_stays_between_0_and_1(void **state)
{
	(void)state;
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

static void closed_trace_is_json_with_rows(void **state)
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

	(void)state;
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

static void killed_trace_is_a_prefix_of_whole_events(void **state)
{
	int status;

	(void)state;
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

static void full_disk_ends_the_trace_at_a_whole_event(void **state)
{
	const struct rlimit small = { 100000, 100000 };
	int status;

	(void)state;
	in_dir("f");
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		ddp_trace *trace;
		signal(SIGXFSZ, SIG_IGN);
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

static void impossible_trace_directory_is_an_error(void **state)
{
	ddp_trace *trace;

	(void)state;
	assert_int_equal(ddp_trace_open("/dev/null/x", &job, &trace), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "/dev/null/x"));
	assert_int_equal(ddp_trace_open("", &job, &trace), DDP_ERR_INVALID);
}

/* ---- metrics ---- */

static void metrics_are_one_object_per_line(void **state)
{
	ddp_metrics *metrics;
	ddp_step_stats stats = { .step = 1, .loss = 2.5, .weight = 100, .seconds = 0.5,
	                         .grad_norm = NAN, .learning_rate = 1e-3 };

	(void)state;
	for (int run = 0; run < 2; run++) { /* the second appends */
		assert_int_equal(ddp_metrics_open(in_dir("m.jsonl"), &metrics), DDP_OK);
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

static char *line_of_run(const char *file, int step, double loss)
{
	const ddp_step_stats stats = { .step = step, .loss = loss };
	ddp_metrics *metrics;

	assert_int_equal(ddp_metrics_open(in_dir(file), &metrics), DDP_OK);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_close(metrics);
	return read_file(path);
}

static void fresh_run_begins_a_new_metrics_file(void **state)
{
	const char *const losses[] = { "\"loss\":3", "\"loss\":1", "\"loss\":2" };
	const char *const files[] = { "m.jsonl", "m.jsonl.1", "m.jsonl.2" };

	(void)state;
	for (int run = 1; run <= 3; run++)
		free(line_of_run("m.jsonl", 1, run));
	char *text = line_of_run("m.jsonl", 2, 4); /* a resumed run */
	assert_non_null(strstr(text, "\"loss\":3"));
	assert_non_null(strstr(text, "\"loss\":4"));
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

static void metrics_behind_a_link_are_appended_to(void **state)
{
	char link[128];

	(void)state;
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

static void lost_metrics_are_reported_once(void **state)
{
	ddp_metrics *metrics;
	const ddp_step_stats stats = { .step = 9 };

	(void)state;
	assert_int_equal(ddp_metrics_open("/dev/full", &metrics), DDP_OK);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_close(metrics);
	assert_int_equal(logged_count, 1);
	assert_non_null(strstr(logged, "metrics end at step 9: cannot write to \"/dev/full\""));
	assert_int_equal(ddp_metrics_open("/nonexistent/m", &metrics), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "/nonexistent/m"));
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

static void page_of_the_plugin_tells_phase_bucket_and_error(void **state)
{
	struct ddp_progress seen, other;
	ddp_watch *watch;
	int fd = plugin_page(2);

	(void)state;
	assert_int_equal(ddp_watch_open(&job, &watch), DDP_OK);
	assert_int_equal(ddp_watch_record(watch, &job, "/nonexistent/only rank 0 writes", NULL), DDP_OK);
	ddp_watch_begin_step(watch, 12, 5);
	ddp_watch_phase(watch, DDP_PHASE_BACKWARD);
	ddp_watch_bucket(watch, 3);
	ddp_page_collective(ddp_watch_page(watch), 45);
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

/* torchrun's ranks inherit the page of the task that torchrun is. */
static void page_of_a_torchrun_is_not_its_ranks(void **state)
{
	struct ddp_progress seen;
	ddp_watch *watch;
	int fd = plugin_page(2);

	(void)state;
	setenv("TORCHELASTIC_RUN_ID", "7", 1);
	assert_int_equal(ddp_watch_open(&job, &watch), DDP_OK);
	ddp_watch_phase(watch, DDP_PHASE_DATA);
	ddp_watch_close(watch);
	unsetenv("TORCHELASTIC_RUN_ID");
	assert_int_equal(pread(fd, &seen, sizeof(seen), DDP_PROGRESS_BYTES), sizeof(seen));
	assert_int_equal(seen.magic, 0);
	assert_int_equal(logged_count, 0);
	close(fd);
}

static void wrong_page_is_ignored_with_a_warning(void **state)
{
	static const char *const values[] = { "abc", "-1", "99999999999", "1000000" };
	ddp_watch *watch;

	(void)state;
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

static void spawned_ranks_leave_the_page_alone(void **state)
{
	struct ddp_progress seen;
	ddp_job spawned = job;
	ddp_watch *watch;
	int fd = plugin_page(2);

	(void)state;
	spawned.identity_source = DDP_SOURCE_SPAWN;
	assert_int_equal(ddp_watch_open(&spawned, &watch), DDP_OK);
	ddp_watch_close(watch);
	assert_int_equal(pread(fd, &seen, sizeof(seen), DDP_PROGRESS_BYTES), sizeof(seen));
	assert_int_equal(seen.magic, 0);
	assert_int_equal(logged_count, 0);
	close(fd);
}

/* ---- phases ---- */

static void phases_are_timed_and_traced(void **state)
{
	ddp_watch *watch;
	size_t i;
	json_t *event;
	int forward = 0, rows[DDP_TRACE_ROWS] = { 0 };

	(void)state;
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

static void every_phase_has_a_name(void **state)
{
	(void)state;
	assert_string_equal(ddp_phase_name(DDP_PHASE_IDLE), "idle");
	for (int p = DDP_PHASE_IDLE; p <= DDP_PHASE_EVAL; p++)
		assert_string_not_equal(ddp_phase_name((ddp_phase)p), "unknown");
	assert_string_equal(ddp_phase_name((ddp_phase)99), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(overlapping_communication_counts_once),
		cmocka_unit_test(overlap_ratio_stays_between_0_and_1),
		cmocka_unit_test(closed_trace_is_json_with_rows),
		cmocka_unit_test(killed_trace_is_a_prefix_of_whole_events),
		cmocka_unit_test_setup_teardown(full_disk_ends_the_trace_at_a_whole_event,
		                                start_log, stop_log),
		cmocka_unit_test(impossible_trace_directory_is_an_error),
		cmocka_unit_test(metrics_are_one_object_per_line),
		cmocka_unit_test(fresh_run_begins_a_new_metrics_file),
		cmocka_unit_test(metrics_behind_a_link_are_appended_to),
		cmocka_unit_test_setup_teardown(lost_metrics_are_reported_once, start_log, stop_log),
		cmocka_unit_test_setup_teardown(page_of_the_plugin_tells_phase_bucket_and_error,
		                                start_log, stop_log),
		cmocka_unit_test_setup_teardown(page_of_a_torchrun_is_not_its_ranks,
		                                start_log, stop_log),
		cmocka_unit_test_setup_teardown(wrong_page_is_ignored_with_a_warning,
		                                start_log, stop_log),
		cmocka_unit_test_setup_teardown(spawned_ranks_leave_the_page_alone,
		                                start_log, stop_log),
		cmocka_unit_test(phases_are_timed_and_traced),
		cmocka_unit_test(every_phase_has_a_name),
	};
	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
