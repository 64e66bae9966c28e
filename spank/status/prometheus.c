/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/prometheus.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/wire/progress_page.h"

static bool fail(const struct textfile *textfile, const char *reason)
{
	fprintf(stderr, "ddp-status: cannot write %s: %s\n", textfile->path, reason);
	return false;
}

bool textfile_begin(struct textfile *textfile, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
	struct stat info;
	int fd;

	*textfile = (struct textfile){ .path = path };
	/* A rename would put a file in the place of a device. */
	if (name[0] == '\0' || (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)))
		return fail(textfile, "it is not a plain file");
	if (asprintf(&textfile->other, "%.*s.%s.XXXXXX", (int)(name - path), path, name) < 0)
		textfile->other = NULL;
	fd = textfile->other != NULL ? mkstemp(textfile->other) : -1;
	textfile->file = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (textfile->file != NULL)
		return true;
	fail(textfile, strerror(errno));
	if (fd >= 0) {
		close(fd);
		unlink(textfile->other);
	}
	free(textfile->other);
	return false;
}

bool textfile_end(struct textfile *textfile, bool keep)
{
	bool written = fflush(textfile->file) == 0 && fchmod(fileno(textfile->file), 0644) == 0;

	written &= fclose(textfile->file) == 0;
	if (keep && written)
		written = rename(textfile->other, textfile->path) == 0;
	if (keep && !written)
		fail(textfile, strerror(errno));
	if (!keep || !written)
		unlink(textfile->other);
	free(textfile->other);
	return written;
}

#define PREFIX "slurm_ddp_"

/* In the order of metrics[]. */
enum figure {
	RANK_UP, RANK_PHASE, RANK_PHASE_START, RANK_PROGRESS, RANK_WAITING, RANK_ERROR, RANK_STEP, RANK_STEPS, RANK_STEP_RATE,
	RANK_SAMPLE_RATE, RANK_EXPOSED, RANK_COMPUTE, RANK_COMPUTE_STEPS, RANK_LOSS, RANK_CPUS, RANK_RESTARTS, SPARE_UP,
	STEP_REQUEUES, STEP_STALLS, STEP_RANKS, FIGURES,
};

/* A label `job` would clash with the one that Prometheus itself gives to each target. */
struct metric {
	const char *name, *type, *help;
};

static bool is_up(const struct row *row)
{
	return strcmp(row->state, "gone") != 0;
}

/* Not finite, or below 0: the row does not tell it. */
static double figure_of(const struct row *row, enum figure figure, double now)
{
	const bool told = row->phase[0] != '\0';

	switch (figure) {
	case RANK_UP: return is_up(row);
	case RANK_PHASE: return told ? 1 : NAN;
	case RANK_PHASE_START: return row->phase_seconds >= 0 ? now - row->phase_seconds : NAN;
	case RANK_PROGRESS: return row->progress_seconds >= 0 ? now - row->progress_seconds : NAN;
	case RANK_WAITING: return told ? row->waiting : NAN;
	case RANK_ERROR: return told ? row->error[0] != '\0' : NAN;
	case RANK_STEP: return (double)row->step;
	case RANK_STEPS: return (double)row->steps;
	case RANK_STEP_RATE: return row->steps_per_second;
	case RANK_SAMPLE_RATE: return row->samples_per_second;
	case RANK_EXPOSED: return row->exposed_ratio;
	case RANK_COMPUTE: return row->compute_seconds;
	case RANK_COMPUTE_STEPS: return (double)row->compute_steps;
	case RANK_LOSS: return row->has_loss ? row->loss : NAN;
	case RANK_CPUS: return row->cpu_percent / 100;
	case RANK_RESTARTS: return (double)row->restarts;
	case SPARE_UP: return row_is_spare(row) ? 1 : NAN;
	case STEP_REQUEUES: return (double)row->requeues;
	case STEP_STALLS: return (double)row->stalls;
	case STEP_RANKS: return (double)row->world_size;
	case FIGURES: break;
	}
	return NAN;
}

static const struct metric metrics[FIGURES] = {
	[RANK_UP] = { "rank_up", "gauge", "Whether a process of the rank was found (1) or not (0)." },
	[RANK_PHASE] = { "rank_phase", "gauge", "The phase of the rank, as a label. The value is 1." },
	[RANK_PHASE_START] = { "rank_phase_start_timestamp_seconds", "gauge", "When the phase began, in seconds since 1970." },
	[RANK_PROGRESS] = { "rank_last_progress_timestamp_seconds", "gauge",
	  "When the rank last made progress, in seconds since 1970: a phase, a collective or a wait began." },
	[RANK_WAITING] = { "rank_waiting", "gauge", "Whether the rank waits for other ranks (1) or not (0)." },
	[RANK_ERROR] = { "rank_error", "gauge", "Whether the rank has met an error that is not over (1) or not (0)." },
	[RANK_STEP] = { "rank_step", "gauge", "The step of the training that is under way." },
	[RANK_STEPS] = { "rank_planned_steps", "gauge", "The step with which the training ends." },
	[RANK_STEP_RATE] = { "rank_steps_per_second", "gauge", "Steps per second, of the last step." },
	[RANK_SAMPLE_RATE] = { "rank_samples_per_second", "gauge",
	  "Samples per second of all ranks together, of the last step." },
	[RANK_EXPOSED] = { "rank_exposed_communication_ratio", "gauge",
	  "How much of the last step the rank waited for gradients, from 0 to 1." },
	[RANK_COMPUTE] = { "rank_compute_seconds_total", "counter",
	  "How long the rank has computed in its steps, without waits for other ranks." },
	[RANK_COMPUTE_STEPS] = { "rank_compute_steps_total", "counter", "In how many steps." },
	[RANK_LOSS] = { "rank_loss", "gauge", "The loss of the last step, where the program tells it." },
	[RANK_CPUS] = { "rank_used_cpus", "gauge", "How many CPUs the rank's processes used." },
	[RANK_RESTARTS] = { "rank_restarts_total", "counter",
	  "How often the programs of this step were started again (restart=)." },
	[SPARE_UP] = { "spare_up", "gauge", "A node that waits to take another one's place (spare=). The value is 1." },
	[STEP_REQUEUES] = { "step_requeues_total", "counter", "How often Slurm has started the job again." },
	[STEP_STALLS] = { "step_stalls_total", "counter",
	  "How often all ranks of the node made no progress for the time of stall=." },
	[STEP_RANKS] = { "step_ranks", "gauge", "How many ranks the step has on all nodes." },
};

/* One for each step on a node, and not for each rank. */
static bool is_of_node(enum figure figure)
{
	return figure >= STEP_REQUEUES;
}

static void put_label(FILE *file, const char *name, const char *value, bool *first)
{
	/* Prometheus takes an empty label for none. */
	if (value[0] == '\0')
		return;
	fprintf(file, "%s%s=\"", *first ? "{" : ",", name);
	for (; *value != '\0'; value++) {
		if (*value == '\\' || *value == '"')
			fprintf(file, "\\%c", *value);
		else
			putc(*value >= ' ' && *value <= '~' ? *value : '?', file);
	}
	putc('"', file);
	*first = false;
}

static void put_number_label(FILE *file, const char *name, int64_t value, bool *first)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", (long long)value);
	put_label(file, name, value >= 0 ? text : "", first);
}

/* A user's own phase would be one more time series. */
static const char *phase_of(const struct row *row)
{
	static const uint32_t others[] = { DDP_PROGRESS_STARTING, DDP_PROGRESS_COMPUTING, DDP_PROGRESS_ENDING, PROGRESS_NCCL };

	for (uint32_t phase = 0; strcmp(progress_phase_name(phase), "unknown") != 0; phase++)
		if (strcmp(progress_phase_name(phase), row->phase) == 0)
			return progress_phase_name(phase);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (strcmp(progress_phase_name(others[i]), row->phase) == 0)
			return progress_phase_name(others[i]);
	return strcmp(row->phase, "finished") == 0 ? "finished" : "unknown";
}

static int compare(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int by_step_and_node(const struct row *a, const struct row *b)
{
	int order = compare(a->job, b->job);

	if (order == 0)
		order = compare(a->slurm_step, b->slurm_step);
	if (order == 0)
		order = strcmp(a->user, b->user);
	return order != 0 ? order : strcmp(a->node, b->node);
}

static int by_rank(const void *left, const void *right)
{
	const struct row *const *a = left, *const *b = right;
	int order = by_step_and_node(*a, *b);

	if (order == 0)
		order = compare((*a)->rank, (*b)->rank);
	return order != 0 ? order : (*a > *b) - (*a < *b);
}

static bool tells(enum figure figure, const struct row *row, double now, double *value)
{
	*value = figure_of(row, figure, now);
	if (row_is_spare(row) != (figure == SPARE_UP) || !isfinite(*value) || (*value < 0 && figure != RANK_LOSS))
		return false;
	/* A rank that is gone has no node, so a step's own figures come from the others. */
	return is_up(row) || figure == RANK_UP;
}

/* Whether a row before it has told the same. A user can have several processes of one rank, and some have no figure. */
static bool was_told(enum figure figure, const struct row *const *rows, size_t index, double now)
{
	double ignored;

	for (size_t i = index; i-- > 0 && by_step_and_node(rows[i], rows[index]) == 0 &&
	                       (is_of_node(figure) || rows[i]->rank == rows[index]->rank);)
		if (tells(figure, rows[i], now, &ignored))
			return true;
	return false;
}

static void put_value(FILE *file, double value)
{
	/* Times of today have ten digits before the point. */
	if (value == floor(value) && fabs(value) < 1e15)
		fprintf(file, " %.0f\n", value);
	else if (fabs(value) >= 1e6 && fabs(value) < 1e12)
		fprintf(file, " %.3f\n", value);
	else
		fprintf(file, " %.9g\n", value);
}

static void put_metric(FILE *file, enum figure figure, const struct row *const *rows, size_t count, double now)
{
	const struct metric *metric = &metrics[figure];
	bool said = false;
	double value;

	for (size_t i = 0; i < count; i++) {
		const struct row *row = rows[i];
		bool first = true;
		if (!tells(figure, row, now, &value) || was_told(figure, rows, i, now))
			continue;
		if (!said)
			fprintf(file, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", metric->name, metric->help,
			        metric->name, metric->type);
		said = true;
		fprintf(file, PREFIX "%s", metric->name);
		put_number_label(file, "jobid", row->job, &first);
		put_number_label(file, "stepid", row->slurm_step, &first);
		if (!is_of_node(figure))
			put_number_label(file, "rank", row->rank, &first);
		put_label(file, "node", row->node, &first);
		put_label(file, "user", row->user, &first);
		put_label(file, "partition", row->partition, &first);
		if (figure == RANK_PHASE)
			put_label(file, "phase", phase_of(row), &first);
		fputs(first ? "" : "}", file);
		put_value(file, value);
	}
}

bool prometheus_write(FILE *file, const struct row *rows, size_t count, const char *node, double now)
{
	const struct row **sorted = calloc(count + 1, sizeof(*sorted));
	size_t ranks = 0;
	bool first = true;

	if (sorted == NULL)
		return false;
	for (size_t i = 0; i < count; i++) {
		sorted[i] = &rows[i];
		ranks += !row_is_spare(&rows[i]);
	}
	qsort(sorted, count, sizeof(*sorted), by_rank);
	for (int i = 0; i < FIGURES; i++)
		put_metric(file, (enum figure)i, sorted, count, now);
	free(sorted);
	/* Also on a node that has no rank, so that its absence tells that nobody looks. */
	if (node != NULL) {
		fprintf(file, "# HELP " PREFIX "node_ranks How many ranks this node has.\n# TYPE " PREFIX "node_ranks gauge\n"
		        PREFIX "node_ranks");
		put_label(file, "node", node, &first);
		fprintf(file, "%s %zu\n", first ? "" : "}", ranks);
	}
	return fflush(file) == 0 && ferror(file) == 0;
}
