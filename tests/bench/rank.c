/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum {
	LINE_BYTES = 1024, /* far below PIPE_BUF: what is written at once stays in one piece */
	PATTERN = 251      /* a prime: no slice or chunk repeats it in step */
};

/* Opened by a rank's first answer: contenders fork. */
static int answers_fd(void)
{
	static int fd = -1;
	const char *path = getenv("BENCH_ANSWERS");

	if (!path)
		return STDOUT_FILENO;
	while (fd < 0 && (fd = open(path, O_WRONLY | O_CLOEXEC)) < 0 && errno == EINTR)
		continue;
	return fd;
}

static void say(int rank, const char *text)
{
	char line[LINE_BYTES + 32];
	int length = snprintf(line, sizeof line, "@ %d %.*s\n", rank, LINE_BYTES, text);
	int fd = answers_fd();
	ssize_t written;

	do
		written = write(fd, line, (size_t)length);
	while (written < 0 && errno == EINTR);
	if (written != length)
		_exit(1); /* the driver is gone: nobody is left to tell */
}

int rank_report_error(int rank, const char *text)
{
	char line[640];

	snprintf(line, sizeof line, "error %s", text);
	say(rank, line);
	return 1;
}

bool rank_fail(struct rank_engine *engine, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(engine->error, sizeof engine->error, format, arguments);
	va_end(arguments);
	return false;
}

long rank_number(const char *name, const char *text, long least, long most)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || end == text || *end || value < least || value > most) {
		fprintf(stderr, "%s: \"%s\" is not a number from %ld to %ld\n", name, text,
		        least, most);
		exit(2);
	}
	return value;
}

int rank_command_fd(int rank)
{
	const char *prefix = getenv("BENCH_COMMANDS");
	char path[PATH_MAX];

	if (!prefix)
		return STDIN_FILENO;
	if (snprintf(path, sizeof path, "%s.%d", prefix, rank) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Small integers: sums of them are exact in f32 in any order. */
static void fill_pattern(struct rank_engine *engine)
{
	int step = 0;

	for (size_t i = 0; i < engine->count; i++) {
		engine->data[i] = (float)((engine->rank + 1) * (step + 1));
		if (++step == PATTERN)
			step = 0;
	}
}

static long long first_wrong(const struct rank_engine *engine)
{
	int factor = engine->size * (engine->size + 1) / 2;
	int step = 0;

	for (size_t i = 0; i < engine->count; i++) {
		if (engine->data[i] != (float)(factor * (step + 1)))
			return (long long)i;
		if (++step == PATTERN)
			step = 0;
	}
	return -1;
}

/* Leaves zeros behind: the timed operations then add zeros, which stay finite
   however often they are summed and take as long as any other numbers. */
static bool check(struct rank_engine *engine)
{
	long long wrong = -1;
	char text[64];

	if (engine->reduces) {
		fill_pattern(engine);
		if (!engine->barrier(engine) || !engine->operate(engine))
			return false;
		wrong = first_wrong(engine);
		/* No rank may write to the memory while another still looks at it. */
		if (!engine->barrier(engine))
			return false;
	}
	memset(engine->data, 0, engine->count * sizeof(float));
	snprintf(text, sizeof text, "check %lld", wrong);
	say(engine->rank, text);
	return true;
}

static bool is_set(const char *name)
{
	const char *value = getenv(name);

	return value && *value;
}

static void rest(void)
{
	const char *us = getenv("BENCH_REST_US");

	if (us && *us)
		usleep((useconds_t)strtoul(us, NULL, 10));
}

static bool time_batch(struct rank_engine *engine, long batch, bool rewrite, uint64_t *ns)
{
	uint64_t start;

	rest();
	if (!engine->barrier(engine))
		return false;
	start = ddp_now_ns();
	for (long i = 0; i < batch; i++) {
		if (rewrite)
			memset(engine->data, 0, engine->count * sizeof(float));
		if (!engine->operate(engine))
			return false;
	}
	*ns = ddp_now_ns() - start;
	return true;
}

static void say_times(int rank, const uint64_t *ns, long samples)
{
	char line[LINE_BYTES];
	size_t used = 0;

	for (long i = 0; i < samples; i++) {
		if (used == 0)
			used = (size_t)snprintf(line, sizeof line, "times");
		used += (size_t)snprintf(line + used, sizeof line - used, " %llu",
		                         (unsigned long long)ns[i]);
		if (used > sizeof line - 32 || i == samples - 1) {
			say(rank, line);
			used = 0;
		}
	}
}

static bool run(struct rank_engine *engine, long batch, long samples, bool rewrite)
{
	uint64_t *ns;
	bool good;

	if (batch < 1 || samples < 1)
		return rank_fail(engine, "run needs a batch and samples of at least 1");
	ns = calloc((size_t)samples, sizeof *ns);
	if (!ns)
		return rank_fail(engine, "no memory for %ld samples", samples);
	good = time_batch(engine, batch, rewrite, &ns[0]);
	/* Answers come after the last batch: writing them would disturb it. */
	for (long i = 0; good && i < samples; i++)
		good = time_batch(engine, batch, rewrite, &ns[i]);
	if (good) {
		say_times(engine->rank, ns, samples);
		say(engine->rank, "run");
	}
	free(ns);
	return good;
}

static bool obey(struct rank_engine *engine, const char *command)
{
	size_t count;
	long batch, samples;
	int rewrite;

	if (sscanf(command, "open %zu", &count) == 1) {
		engine->count = count;
		if (!engine->open(engine))
			return false;
		memset(engine->data, 0, count * sizeof(float));
		say(engine->rank, "open");
		return true;
	}
	if (sscanf(command, "run %ld %ld %d", &batch, &samples, &rewrite) == 3)
		return run(engine, batch, samples, rewrite != 0);
	if (strcmp(command, "check\n") == 0)
		return check(engine);
	if (strcmp(command, "close\n") == 0) {
		if (!engine->close(engine))
			return false;
		say(engine->rank, "close");
		return true;
	}
	return rank_fail(engine, "unknown command: %s", command);
}

bool rank_pin(int rank)
{
	cpu_set_t set;

	if (!is_set("BENCH_PIN"))
		return true;
	CPU_ZERO(&set);
	CPU_SET((size_t)(rank % sysconf(_SC_NPROCESSORS_ONLN)), &set);
	return sched_setaffinity(0, sizeof set, &set) == 0;
}

int rank_serve(struct rank_engine *engine, int command_fd)
{
	FILE *commands = command_fd < 0 ? NULL : fdopen(command_fd, "r");
	char line[128];
	int code = 0;

	if (!commands || !rank_pin(engine->rank))
		return rank_report_error(engine->rank, strerror(errno));
	snprintf(line, sizeof line, "ready %d", engine->size);
	say(engine->rank, line);
	while (code == 0 && fgets(line, sizeof line, commands)) {
		if (!obey(engine, line))
			code = rank_report_error(engine->rank, engine->error);
	}
	fclose(commands);
	return code;
}
