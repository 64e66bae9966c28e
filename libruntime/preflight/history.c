/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/history.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "preflight/statistics.h"

enum { LOCK_TRIES = 100, LOCK_PAUSE_MS = 50 };

static const double DOUBT = 0.8, ODD = 0.7, SPEED_ODD = 0.4;

static const char *const keys[PREFLIGHT_RECORDS] = { "product", "memory", "bandwidth", "speed" };

static const struct {
	const char *name, *unit;
	double scale;
} shown[PREFLIGHT_RECORDS] = {
	{ "matrix product", "GFLOP/s", 1e-9 },
	{ "memory bandwidth", "GB/s", 1e-9 },
	{ "bandwidth of its links", "MB/s", 1e-6 },
	{ "speed of its links (1 / latency)", "1/ms", 1e-3 },
};

static double *past(const struct preflight_history *history, int node, int record)
{
	return history->past + ((size_t)node * PREFLIGHT_RECORDS + (size_t)record) * PREFLIGHT_HISTORY_RUNS;
}

bool preflight_history_open(struct preflight_history *history, const char *const *names, int nodes)
{
	size_t count = (size_t)(nodes > 0 ? nodes : 1);

	*history = (struct preflight_history){ nodes, names, NULL, calloc(count * PREFLIGHT_RECORDS * PREFLIGHT_HISTORY_RUNS, sizeof(double)),
		                               calloc(count, sizeof(int)), calloc(count, sizeof(int)) };
	return history->past != NULL && history->runs != NULL && history->next != NULL;
}

void preflight_history_close(struct preflight_history *history)
{
	free(history->past);
	free(history->runs);
	free(history->next);
	*history = (struct preflight_history){ .nodes = 0 };
}

/* A number that can be one; 0: there is none. */
static double number(const json_t *object, const char *key)
{
	double value = json_number_value(json_object_get(object, key));

	return value > 0 && value < 1e30 ? value : 0;
}

/* With another number of threads a rank computes at another rate. A line of an earlier release does not tell it. */
static bool is_comparable(const struct preflight_history *history, int node, const json_t *of)
{
	json_int_t threads = json_integer_value(json_object_get(of, "threads"));

	return history->threads == NULL || threads == 0 || threads == history->threads[node];
}

static void take_node(struct preflight_history *history, int node, const json_t *of)
{
	int at = history->next[node];

	for (int record = 0; record < PREFLIGHT_RECORDS; record++)
		past(history, node, record)[at] = number(of, keys[record]);
	history->next[node] = (at + 1) % PREFLIGHT_HISTORY_RUNS;
	if (history->runs[node] < PREFLIGHT_HISTORY_RUNS)
		history->runs[node]++;
}

bool preflight_history_take(struct preflight_history *history, const char *line, size_t bytes)
{
	json_t *run = json_loadb(line, bytes, 0, NULL);
	const json_t *nodes = json_object_get(run, "nodes");
	bool known = json_integer_value(json_object_get(run, "preflight")) == 1 && json_is_object(nodes);

	for (int node = 0; known && !json_is_true(json_object_get(run, "busy")) && node < history->nodes; node++) {
		const json_t *of = json_object_get(nodes, history->names[node]);
		if (json_is_object(of) && is_comparable(history, node, of))
			take_node(history, node, of);
	}
	json_decref(run);
	return known;
}

bool preflight_history_read(struct preflight_history *history, const char *path)
{
	/* A pipe would keep the open waiting. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat info = { .st_mode = 0 };
	FILE *file;
	char *line = NULL;
	size_t room = 0;
	ssize_t length;

	if (fd < 0)
		return errno == ENOENT;
	if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || (file = fdopen(fd, "r")) == NULL) {
		close(fd);
		errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
		return false;
	}
	while ((length = getline(&line, &room, file)) > 0)
		if (length <= PREFLIGHT_HISTORY_LINE)
			(void)preflight_history_take(history, line, (size_t)length);
	free(line);
	fclose(file);
	return true;
}

/* The usual value of a node; 0: too few runs are known. */
static double usual_of(const struct preflight_history *history, int node, int record)
{
	int known = 0;

	for (int i = 0; i < history->runs[node]; i++)
		known += past(history, node, record)[i] > 0;
	return known >= PREFLIGHT_HISTORY_LEAST ? preflight_median(past(history, node, record), history->runs[node]) : 0;
}

bool preflight_history_doubt(const struct preflight_history *history, const struct preflight_values *values, bool *doubted)
{
	bool any = false;

	for (int node = 0; node < history->nodes; node++) {
		doubted[node] = false;
		for (int record = 0; record < PREFLIGHT_RECORDS; record++) {
			double value = values[node].of[record];
			doubted[node] |= value > 0 && value < DOUBT * usual_of(history, node, record);
		}
		any |= doubted[node];
	}
	return any;
}

void preflight_history_judge(struct preflight_findings *findings, const struct preflight_history *history,
                             const struct preflight_values *values)
{
	for (int node = 0; node < history->nodes; node++) {
		for (int record = 0; record < PREFLIGHT_RECORDS; record++) {
			double value = values[node].of[record], usual = usual_of(history, node, record);
			if (value <= 0 || value >= (record == PREFLIGHT_RECORD_SPEED ? SPEED_ODD : ODD) * usual)
				continue;
			const struct preflight_finding f = { .odd = true, .about = "history", .node = node, .rank = -1, .peer = -1,
				                             .value = value, .usual = usual };
			preflight_find(findings, &f, "%s: the %s is %.3g %s, %.0f%% of its median of %d runs", history->names[node],
			               shown[record].name, value * shown[record].scale, shown[record].unit, 100 * value / usual,
			               history->runs[node]);
		}
	}
}

static json_t *line_of(int64_t time, bool busy, const char *const *names, const struct preflight_values *values, int nodes)
{
	json_t *of_nodes = json_object();

	for (int node = 0; node < nodes; node++) {
		json_t *of = json_object();
		for (int record = 0; record < PREFLIGHT_RECORDS; record++)
			if (values[node].of[record] > 0)
				json_object_set_new(of, keys[record], json_real(values[node].of[record]));
		if (values[node].threads > 0)
			json_object_set_new(of, "threads", json_integer(values[node].threads));
		json_object_set_new(of_nodes, names[node], of);
	}
	return json_pack("{s:i, s:I, s:b, s:o}", "preflight", 1, "time", (json_int_t)time, "busy", (int)busy, "nodes", of_nodes);
}

/* Another run holds the lock for one write. A file system that has no locks appends without. */
static bool take_lock(int fd)
{
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_MS * 1000000 };

	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
			return true;
		(void)nanosleep(&pause, NULL);
	}
	errno = ETIMEDOUT;
	return false;
}

bool preflight_history_append(const char *path, int64_t time, bool busy, const char *const *names,
                              const struct preflight_values *values, int nodes)
{
	json_t *run = line_of(time, busy, names, values, nodes);
	char *text = run != NULL ? json_dumps(run, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
	size_t bytes = text != NULL ? strlen(text) : 0;
	struct stat info;
	bool done = false;

	json_decref(run);
	if (text == NULL) {
		errno = ENOMEM;
	} else if (fd >= 0 && fstat(fd, &info) == 0) {
		errno = EINVAL;
		text[bytes] = '\n'; /* in place of the terminator */
		done = S_ISREG(info.st_mode) && take_lock(fd) && write(fd, text, bytes + 1) == (ssize_t)(bytes + 1);
	}
	int reason = errno;
	if (fd >= 0 && close(fd) != 0)
		done = false;
	free(text);
	errno = reason;
	return done;
}
