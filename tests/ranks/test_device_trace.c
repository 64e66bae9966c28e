/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* The trace of a model on a device, and a step's times: what the program's queue and communication did,
   and when, is told by the device, not by the host, which has enqueued all of it long before. Here the
   queue takes its time, known to the test, for forward and for each gradient. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/folder.h"
#include "tests/support/model_side.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 2, STEPS = 5, PARAMS = 3, ELEMENTS = 4096, FORWARD_MS = 20, GRADIENT_MS = 8 };

/* A bucket each, of which the last one's comes first. */
static const ddp_param params[PARAMS] = {
	{ .name = "a", .ndim = 1, .shape = { ELEMENTS } },
	{ .name = "b", .ndim = 1, .shape = { ELEMENTS } },
	{ .name = "c", .ndim = 1, .shape = { ELEMENTS } },
};

/* ---- ranks ---- */

static void take_time(void *ms)
{
	const struct timespec time = { .tv_nsec = *(const int *)ms * 1000000L };

	nanosleep(&time, NULL);
}

static void compute(const model_side *s)
{
	static const int forward_ms = FORWARD_MS, gradient_ms = GRADIENT_MS;
	ddp_device *device = s->context->device;

	ddp_model_set_phase(s->model, DDP_PHASE_FORWARD);
	CHECK_OK(ddp_device_launch(device, s->stream, take_time, (void *)(uintptr_t)&forward_ms));
	ddp_model_set_phase(s->model, DDP_PHASE_BACKWARD);
	for (int p = PARAMS - 1; p >= 0; p--) {
		CHECK_OK(ddp_device_launch(device, s->stream, take_time, (void *)(uintptr_t)&gradient_ms));
		CHECK_OK(ddp_device_fill(device, s->stream, ddp_model_param_grad(s->model, p), 0, ELEMENTS * sizeof(float)));
		CHECK_OK(ddp_model_grad_ready(s->model, p));
	}
}

static int train(ddp_context *context, void *user)
{
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .bucket_mb = ELEMENTS * sizeof(float) / (double)(1 << 20) };
	ddp_summary summary;
	double exposed = 0, communication = 0, forward = 0, backward = 0;
	static model_side s;

	side_open(&s, context, true);
	side_make(&s, params, PARAMS, &options, 0);
	CHECK_OK(ddp_model_broadcast_params(s.model));
	CHECK(s.model->plan.count == PARAMS);
	for (int step = 1; step <= STEPS; step++) {
		ddp_step_stats stats;
		compute(&s);
		CHECK_OK(ddp_model_step(s.model, 1, 1, &stats));
		exposed += stats.exposed_seconds;
		communication += stats.communication_seconds;
		forward += stats.forward_seconds;
		backward += stats.backward_seconds;
		/* What the queue took, although the host only enqueued it; and no more than was left. */
		CHECK(stats.forward_seconds >= FORWARD_MS * 1e-3);
		CHECK(stats.backward_seconds >= PARAMS * GRADIENT_MS * 1e-3);
		CHECK(stats.forward_seconds + stats.backward_seconds <= stats.seconds);
	}
	ddp_model_summary(s.model, &summary);
	CHECK(fabs(summary.forward_seconds - forward) < 1e-12 && fabs(summary.backward_seconds - backward) < 1e-12);
	CHECK(fabs(summary.overlap_ratio - fmax(0, 1 - exposed / communication)) < 1e-12);
	side_close(&s);
	return 0;
}

/* ---- what they leave ---- */

typedef struct range {
	double start, end; /* microseconds */
} range;

/* Of one step. */
typedef struct seen {
	int forwards, backwards, updates, buckets;
	range forward, backward, update; /* of the device */
	range host_forward, host_backward; /* the last backward's */
	range bucket[PARAMS];
} seen;

static json_t *load(int rank)
{
	char path[64];
	json_error_t error;

	snprintf(path, sizeof(path), "%s/rank-%d.json", test_folder, rank);
	json_t *events = json_load_file(path, 0, &error);
	if (events == NULL)
		fail_msg("%s: %s at line %d", path, error.text, error.line);
	assert_true(json_is_array(events));
	return events;
}

static const char *text(const json_t *event, const char *key)
{
	return json_string_value(json_object_get(event, key));
}

static void see(seen *s, const char *name, int row, range r)
{
	if (strncmp(name, "device ", 7) == 0)
		assert_int_equal(row, 3);
	else
		assert_int_not_equal(row, 3);
	if (strcmp(name, "device forward") == 0) {
		s->forwards++;
		s->forward = r;
	} else if (strcmp(name, "device backward") == 0) {
		s->backwards++;
		s->backward = r;
	} else if (strcmp(name, "device update") == 0) {
		s->updates++;
		s->update = r;
	} else if (strcmp(name, "forward") == 0) {
		s->host_forward = r;
	} else if (strcmp(name, "backward") == 0) {
		s->host_backward = r;
	} else if (strncmp(name, "bucket ", 7) == 0) {
		const int k = name[7] - '0';
		assert_true(k >= 0 && k < PARAMS);
		s->bucket[k] = r;
		s->buckets++;
	}
}

static void read_trace(int rank, seen steps[STEPS + 1])
{
	json_t *events = load(rank), *event;
	bool named = false;
	size_t i;

	json_array_foreach(events, i, event) {
		const json_t *arguments = json_object_get(event, "args");
		const int row = (int)json_integer_value(json_object_get(event, "tid"));
		assert_int_equal(json_integer_value(json_object_get(event, "pid")), rank);
		if (strcmp(text(event, "ph"), "X") != 0) {
			named |= row == 3 && strcmp(text(arguments, "name"), "device") == 0;
			continue;
		}
		const double start = json_number_value(json_object_get(event, "ts"));
		const double took = json_number_value(json_object_get(event, "dur"));
		const int step = (int)json_integer_value(json_object_get(arguments, "step"));
		assert_true(step >= 0 && step <= STEPS);
		assert_true(took >= 0);
		see(&steps[step], text(event, "name"), row, (range){ start, start + took });
	}
	assert_true(named);
	json_decref(events);
}

enum { ROUNDED_US = 2 }; /* by the trace */

/* Sleeps end late, never early. */
static void expect_order(const seen *s)
{
	assert_true(s->forwards == 1 && s->backwards == 1 && s->updates == 1 && s->buckets == PARAMS);
	assert_true(s->forward.end - s->forward.start >= FORWARD_MS * 1000 - ROUNDED_US);
	assert_true(s->backward.end - s->backward.start >= PARAMS * GRADIENT_MS * 1000 - ROUNDED_US);
	/* In the step, one after the other. */
	assert_true(s->forward.start >= s->host_forward.start - ROUNDED_US);
	assert_true(fabs(s->forward.end - s->backward.start) <= ROUNDED_US);
	assert_true(s->backward.end <= s->host_backward.end + ROUNDED_US);
	assert_true(s->update.end >= s->update.start && s->update.start >= s->backward.end - ROUNDED_US);
}

/* Each bucket begins behind its gradient, and the first one while backward goes on. Both clocks are
   the host's, which was woken in time. */
static bool overlap_is_seen(const seen *s)
{
	bool behind = true;

	for (int k = 0; k < PARAMS; k++)
		behind &= s->bucket[k].start >= s->backward.start + (k + 1) * GRADIENT_MS * 1000 - GRADIENT_MS * 500;
	return behind && s->bucket[0].start < s->backward.end;
}

TEST_WITH(the_trace_tells_when_the_device_worked, folder_make, folder_remove)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .device = "cuda", .trace_dir = test_folder };

	assert_int_equal(run_ranks_with(RANKS, &options, train, NULL), 0);
	for (int rank = 0; rank < RANKS; rank++) {
		seen steps[STEPS + 1] = { 0 };
		read_trace(rank, steps);
		int overlaps = 0;
		for (int step = 1; step <= STEPS; step++) {
			expect_order(&steps[step]);
			overlaps += overlap_is_seen(&steps[step]);
		}
		/* On a busy machine the host may be woken late, but not each time. */
		assert_true(overlaps > 0);
	}
}

TEST(a_step_tells_of_the_device_without_a_trace)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .device = "cuda" };

	assert_int_equal(run_ranks_with(RANKS, &options, train, NULL), 0);
}
