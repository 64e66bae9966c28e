/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/row.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ------------------------------------------------------------------------ */

/* Each member once: its name, and where it lies. */
#define INTEGERS(X) \
	X(job) X(slurm_step) X(rank) X(world_size) X(pid) X(processes) X(step) X(steps) X(collective) \
	X(restarts) X(requeues) X(stalls) X(compute_steps)
#define TEXTS(X) \
	X(node) X(program) X(state) X(waits_in) X(phase) X(doing) X(error) X(waits_for) \
	X(partition) X(user)
#define NUMBERS(X) \
	X(cpu_percent) X(phase_seconds) X(since_seconds) X(progress_seconds) X(exposed_ratio) X(compute_seconds) \
	X(steps_per_second) X(samples_per_second)

struct row row_unknown(void)
{
	struct row row = { .stack = NULL };

#define FORGET(name) row.name = -1;
	INTEGERS(FORGET)
	NUMBERS(FORGET)
	return row;
}

bool row_is_spare(const struct row *row)
{
	return row->rank < 0 && strcmp(row->state, "spare") == 0;
}

/* A process can have any bytes as its name, and jansson takes UTF-8 only. */
static json_t *printable(const char *text)
{
	char copy[ROW_TEXT_MAX];
	size_t i = 0;

	for (; text[i] != '\0' && i < sizeof(copy) - 1; i++)
		copy[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	copy[i] = '\0';
	return i > 0 ? json_string(copy) : json_null();
}

json_t *row_to_json(const struct row *row)
{
	json_t *json = json_object();
	int failed = json == NULL;

#define ADD(name, value) failed |= json_object_set_new(json, #name, value) != 0;
#define ADD_INTEGER(name) ADD(name, row->name >= 0 ? json_integer(row->name) : json_null())
#define ADD_TEXT(name) ADD(name, printable(row->name))
#define ADD_NUMBER(name) ADD(name, row->name >= 0 && isfinite(row->name) ? json_real(row->name) : json_null())
	INTEGERS(ADD_INTEGER)
	TEXTS(ADD_TEXT)
	NUMBERS(ADD_NUMBER)
	ADD(waiting, json_boolean(row->waiting))
	ADD(loss, row->has_loss && isfinite(row->loss) ? json_real(row->loss) : json_null())
	if (row->stack != NULL)
		ADD(stack, json_string(row->stack))
	if (!failed)
		return json;
	json_decref(json);
	return NULL;
}

bool row_write(FILE *file, const struct row *row)
{
	json_t *json = row_to_json(row);
	const bool written = json != NULL && putc(ROW_BEGIN, file) != EOF && json_dumpf(json, file, JSON_COMPACT) == 0 &&
	                     putc('\n', file) != EOF;

	json_decref(json);
	return written;
}

static int64_t integer_of(const json_t *json, const char *name)
{
	const json_t *value = json_object_get(json, name);

	return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

static double number_of(const json_t *json, const char *name)
{
	double value = json_number_value(json_object_get(json, name));

	return json_is_number(json_object_get(json, name)) && isfinite(value) && value >= 0 ? value : -1;
}

static void text_of(const json_t *json, const char *name, char *text, size_t bytes)
{
	const char *value = json_string_value(json_object_get(json, name));
	size_t i = 0;

	for (; value != NULL && value[i] != '\0' && i < bytes - 1; i++)
		text[i] = isprint((unsigned char)value[i]) ? value[i] : '?';
	text[i] = '\0';
}

/* Returns the lines, in which '?' replaces characters that cannot be printed. NULL: there are no lines or no memory. */
static char *lines_of(const json_t *json)
{
	const char *value = json_string_value(json_object_get(json, "stack"));
	char *text = value != NULL ? strndup(value, ROW_STACK_MAX) : NULL;

	for (char *at = text; at != NULL && *at != '\0'; at++)
		if (*at != '\n' && !isprint((unsigned char)*at))
			*at = '?';
	return text;
}

void rows_free(struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(rows[i].stack);
	free(rows);
}

bool row_from_json(const json_t *json, struct row *row)
{
	memset(row, 0, sizeof(*row));
	if (!json_is_object(json))
		return false;
#define TAKE_INTEGER(name) row->name = integer_of(json, #name);
#define TAKE_TEXT(name) text_of(json, #name, row->name, sizeof(row->name));
#define TAKE_NUMBER(name) row->name = number_of(json, #name);
	INTEGERS(TAKE_INTEGER)
	TEXTS(TAKE_TEXT)
	NUMBERS(TAKE_NUMBER)
	row->waiting = json_is_true(json_object_get(json, "waiting"));
	row->has_loss = json_is_number(json_object_get(json, "loss"));
	row->loss = json_number_value(json_object_get(json, "loss"));
	if (row->slurm_step < 0 || (row->rank < 0 && !row_is_spare(row)) || row->rank >= ROW_WORLD_MAX ||
	    row->world_size > ROW_WORLD_MAX)
		return false;
	row->stack = lines_of(json);
	return true;
}

static json_t *spare_to_json(const struct row *row)
{
	json_t *json = json_object();
	int failed = json == NULL;

	ADD_INTEGER(job)
	ADD_INTEGER(slurm_step)
	ADD_TEXT(node)
	ADD_TEXT(state)
	ADD_TEXT(user)
	ADD_TEXT(partition)
	if (!failed)
		return json;
	json_decref(json);
	return NULL;
}

bool rows_print_json(FILE *file, const struct row *rows, size_t count, const char *job)
{
	json_t *all = json_object(), *ranks = json_array(), *spares = json_array();
	int failed = json_object_set_new(all, "schema", json_integer(ROW_SCHEMA)) != 0;

	failed |= json_object_set_new(all, "job", job != NULL ? json_string(job) : json_null()) != 0;

	for (size_t i = 0; i < count; i++)
		failed |= row_is_spare(&rows[i]) ? json_array_append_new(spares, spare_to_json(&rows[i])) != 0
		                                 : json_array_append_new(ranks, row_to_json(&rows[i])) != 0;
	failed |= json_object_set_new(all, "ranks", ranks) != 0;
	failed |= json_object_set_new(all, "spares", spares) != 0;
	failed |= json_dumpf(all, file, JSON_INDENT(1)) != 0;
	json_decref(all);
	return !failed && fputc('\n', file) != EOF && fflush(file) == 0;
}

/* ---- order ----------------------------------------------------------------------- */

static bool is_gone(const struct row *row)
{
	return strcmp(row->state, "gone") == 0;
}

static int compare(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int by_rank(const void *left, const void *right)
{
	const struct row *a = left, *b = right;
	int order = compare(a->slurm_step, b->slurm_step);

	return order != 0 ? order : compare(a->rank, b->rank);
}

static int stragglers_first(const void *left, const void *right)
{
	const struct row *a = left, *b = right;
	int order = compare(a->job, b->job);

	if (order == 0)
		order = compare(a->slurm_step, b->slurm_step);
	if (order == 0)
		order = compare(row_is_spare(a), row_is_spare(b));
	if (order == 0 && row_is_spare(a))
		return strcmp(a->node, b->node);
	if (order == 0)
		order = compare(is_gone(b), is_gone(a));
	if (order == 0)
		order = compare(a->waiting, b->waiting);
	if (order == 0)
		order = compare(a->step, b->step);
	if (order == 0)
		order = compare(a->collective, b->collective);
	return order != 0 ? order : compare(a->rank, b->rank);
}

static bool append(struct row **rows, size_t *count, const struct row *row)
{
	struct row *more = realloc(*rows, (*count + 1) * sizeof(*more));

	if (more == NULL)
		return false;
	more[(*count)++] = *row;
	*rows = more;
	return true;
}

/* The step whose rows, by rank, are from *begin on; moves *begin behind it. */
static bool fill_step(struct row **rows, size_t *count, size_t *begin, size_t sorted,
                      size_t ranks_max)
{
	const struct row *first = &(*rows)[*begin];
	struct row gone = row_unknown();
	int64_t next = 0, last = 0;

	gone.job = first->job;
	gone.slurm_step = first->slurm_step;
	gone.world_size = first->world_size;
	gone.processes = 0;
	memcpy(gone.user, first->user, sizeof(gone.user));
	memcpy(gone.partition, first->partition, sizeof(gone.partition));
	strcpy(gone.state, "gone");

	for (size_t i = *begin; i < sorted && (*rows)[i].slurm_step == gone.slurm_step; i++)
		last = (*rows)[i].rank;
	if (gone.world_size > (int64_t)ranks_max || last >= (int64_t)ranks_max) {
		while (*begin < sorted && (*rows)[*begin].slurm_step == gone.slurm_step)
			(*begin)++;
		return true;
	}
	for (; *begin < sorted && (*rows)[*begin].slurm_step == gone.slurm_step; (*begin)++) {
		int64_t rank = (*rows)[*begin].rank;
		for (gone.rank = next; gone.rank < rank; gone.rank++)
			if (!append(rows, count, &gone))
				return false;
		next = rank + 1;
	}
	for (gone.rank = next; gone.rank < gone.world_size; gone.rank++)
		if (!append(rows, count, &gone))
			return false;
	return true;
}

void rows_sort(struct row *rows, size_t count)
{
	if (count > 0)
		qsort(rows, count, sizeof(*rows), stragglers_first);
}

bool rows_arrange(struct row **rows, size_t *count, size_t ranks_max)
{
	size_t begin = 0, sorted = *count;

	if (sorted == 0)
		return true;
	qsort(*rows, sorted, sizeof(**rows), by_rank);
	while (begin < sorted)
		if (!fill_step(rows, count, &begin, sorted, ranks_max))
			return false;
	rows_sort(*rows, *count);
	return true;
}

/* ---- for people ------------------------------------------------------------------- */

static void put_seconds(char *text, size_t bytes, double seconds)
{
	if (seconds < 0)
		snprintf(text, bytes, "-");
	else if (seconds < 99.95)
		snprintf(text, bytes, "%.1f s", seconds);
	else if (seconds < 300)
		snprintf(text, bytes, "%.0f s", seconds);
	else if (seconds < 6000)
		snprintf(text, bytes, "%.0f min", seconds / 60);
	else
		snprintf(text, bytes, "%.1f h", seconds / 3600);
}

/* Four digits, and all that are before the point: rates are compared by eye. */
static void put_rate(char *text, size_t bytes, const struct row *row)
{
	const double samples = row->samples_per_second;

	if (samples >= 1e10)
		snprintf(text, bytes, "%.3g/s", samples);
	else if (samples >= 9999999.5)
		snprintf(text, bytes, "%.0fk/s", samples / 1000);
	else if (samples >= 999.95)
		snprintf(text, bytes, "%.0f/s", samples);
	else if (samples > 0)
		snprintf(text, bytes, "%.4g/s", samples);
	else if (row->steps_per_second > 0)
		snprintf(text, bytes, "%.3g st/s", row->steps_per_second);
	else
		snprintf(text, bytes, "-");
}

static void put_collective(char *text, size_t bytes, const struct row *row)
{
	if (row->waiting)
		snprintf(text, bytes, "waits in %s", row->waits_for);
	else if (row->collective > 0)
		snprintf(text, bytes, "after #%lld", (long long)row->collective);
	else
		snprintf(text, bytes, "-");
}

static void print_stack(FILE *file, const char *text)
{
	for (; text != NULL && *text != '\0'; text += *text == '\n') {
		size_t length = strcspn(text, "\n");
		if (length > 0)
			fprintf(file, "%8s%.*s\n", "", (int)length, text);
		text += length;
	}
}

static void put_loss(char *text, size_t bytes, const struct row *row, bool losses)
{
	text[0] = '\0';
	if (losses && row->has_loss)
		snprintf(text, bytes, " %10.5g", row->loss);
	else if (losses)
		snprintf(text, bytes, " %10s", "-");
}

static void print_spare(FILE *file, const struct row *row)
{
	fprintf(file, "%6s  %-10s %-10s waits to take the place of another node\n", "-", row->node, "spare");
}

static double compute_per_step(const struct row *row)
{
	return row->compute_steps > 0 && row->compute_seconds >= 0 ? row->compute_seconds / (double)row->compute_steps : -1;
}

static int by_number(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of what the step's ranks compute in a step, of two in the middle the lower one; -1: not known. */
static double median_compute(const struct row *rows, size_t count)
{
	double *all = malloc(count * sizeof(*all)), median = -1;
	size_t known = 0;

	for (size_t i = 0; i < count && all != NULL; i++)
		if (compute_per_step(&rows[i]) >= 0)
			all[known++] = compute_per_step(&rows[i]);
	if (known > 0) {
		qsort(all, known, sizeof(*all), by_number);
		median = all[(known - 1) / 2];
	}
	free(all);
	return median;
}

/* What a rank computes is told if it is this many times the median, and by a millisecond more. */
static void print_slow(FILE *file, const struct row *row, double median)
{
	const double slow = 1.5, seconds = compute_per_step(row);

	if (median >= 0 && seconds >= slow * median && seconds >= median + 1e-3)
		fprintf(file, "%8scomputes %.1f times as long as the median rank: %.1f ms a step, and the median is %.1f ms\n", "",
		        seconds / (median > 0 ? median : 1e-6), seconds * 1e3, median * 1e3);
}

static void print_row(FILE *file, const struct row *row, bool colour, bool losses)
{
	bool late = !row->waiting && (row->collective >= 0 || is_gone(row));
	char phase[32], since[32], rate[32], collective[ROW_TEXT_MAX + 40], step[48] = "-", cpu[16] = "-",
	     loss[32];

	if (is_gone(row)) {
		fprintf(file, "%s%6lld  %-10s no process of it was found%s\n", colour ? "\033[31m" : "",
		        (long long)row->rank, "-", colour ? "\033[0m" : "");
		return;
	}
	put_seconds(phase, sizeof(phase), row->phase_seconds);
	put_seconds(since, sizeof(since), row->since_seconds);
	put_rate(rate, sizeof(rate), row);
	put_collective(collective, sizeof(collective), row);
	put_loss(loss, sizeof(loss), row, losses);
	if (row->step >= 0 && row->steps > 0)
		snprintf(step, sizeof(step), "%lld/%lld", (long long)row->step, (long long)row->steps);
	else if (row->step >= 0)
		snprintf(step, sizeof(step), "%lld", (long long)row->step);
	if (row->cpu_percent >= 0)
		snprintf(cpu, sizeof(cpu), "%.0f%%", row->cpu_percent);
	fprintf(file, "%s%6lld  %-10s %-10s %9s %11s  %-40s %9s %10s%s %5s  %s%s%s, %s (%lld)%s\n",
	        colour && late ? "\033[33m" : "", (long long)row->rank, row->node,
	        row->phase[0] != '\0' ? row->phase : "-", phase, step, collective, since, rate, loss, cpu,
	        row->state, row->waits_in[0] != '\0' ? " in " : "", row->waits_in,
	        row->program, (long long)row->pid, colour && late ? "\033[0m" : "");
	if (row->error[0] != '\0')
		fprintf(file, "%8serror: %s\n", "", row->error);
	print_stack(file, row->stack);
}

static void print_step(FILE *file, const struct row *rows, size_t count, const char *job, bool colour)
{
	size_t waiting = 0, gone = 0, spares = 0;
	const double median = median_compute(rows, count);
	int64_t restarts = 0;
	bool losses = false;

	for (size_t i = 0; i < count; i++) {
		spares += row_is_spare(&rows[i]);
		waiting += rows[i].waiting;
		gone += is_gone(&rows[i]);
		losses |= rows[i].has_loss;
		restarts = rows[i].restarts > restarts ? rows[i].restarts : restarts;
	}
	if (job != NULL)
		fprintf(file, "step %s", job);
	else
		fprintf(file, "step %lld", (long long)rows->job);
	fprintf(file, ".%lld: %zu ranks, %zu waiting for others", (long long)rows->slurm_step, count - spares, waiting);
	if (gone > 0)
		fprintf(file, ", %zu gone", gone);
	if (spares > 0)
		fprintf(file, ", %zu spare%s", spares, spares > 1 ? "s" : "");
	if (restarts > 0)
		fprintf(file, ", restarted %lld time%s", (long long)restarts, restarts > 1 ? "s" : "");
	fprintf(file, "\n%s%6s  %-10s %-10s %9s %11s  %-40s %9s %10s%s %5s  %s%s\n", colour ? "\033[1m" : "", "RANK",
	        "NODE", "PHASE", "FOR", "STEP", "COLLECTIVE", "SINCE", "RATE", losses ? "       LOSS" : "", "CPU",
	        "PROCESS", colour ? "\033[0m" : "");
	for (size_t i = 0; i < count - spares; i++) {
		print_row(file, &rows[i], colour, losses);
		print_slow(file, &rows[i], median);
	}
	for (size_t i = count - spares; i < count; i++)
		print_spare(file, &rows[i]);
}

void rows_print(FILE *file, const struct row *rows, size_t count, const char *job, bool colour)
{
	for (size_t i = 0, end; i < count; i = end) {
		for (end = i; end < count && rows[end].slurm_step == rows[i].slurm_step && rows[end].job == rows[i].job; end++)
			continue;
		print_step(file, rows + i, end - i, job, colour);
	}
}
