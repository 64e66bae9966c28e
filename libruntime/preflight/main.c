/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp-preflight: names sick nodes and links in the seconds before a training.
 *
 *   srun --ddp ddp-preflight
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ddp.h>

#include "base/clock.h"
#include "kernels.h"
#include "preflight/differences.h"
#include "preflight/gpu.h"
#include "preflight/history.h"
#include "preflight/options.h"
#include "preflight/output.h"
#include "preflight/release.h"
#include "preflight/report.h"
#include "preflight/survey.h"

enum { WIDTH = 100 };

/* A rank whose error another rank tells waits a moment: when a rank exits, its launcher ends the others. */
static int fail(const char *what)
{
	if (ddp_last_error_is_told())
		sleep(1);
	else
		fprintf(stderr, "ddp-preflight: %s: %s\n", what, ddp_last_error());
	return PREFLIGHT_EXIT_FAILED;
}

static int threads_of(const ddp_job *job)
{
	const char *omp = getenv("OMP_NUM_THREADS");
	cpu_set_t cpus;
	int count;

	if (omp != NULL && omp[0] != '\0')
		return dk_threads();
	if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
		return 1;
	count = CPU_COUNT(&cpus);
	/* A launcher that binds ranks to processors has divided them already. */
	if (count >= (int)sysconf(_SC_NPROCESSORS_ONLN))
		count /= job->local_world_size;
	return count > 0 ? count : 1;
}

static int width(void)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	int given = columns != NULL ? atoi(columns) : 0;

	if (given > 0)
		return given;
	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : WIDTH;
}

static bool has_colour(int fd)
{
	const char *no = getenv("NO_COLOR");

	return isatty(fd) && (no == NULL || no[0] == '\0');
}

static bool could_write(bool written, const char *path)
{
	if (!written)
		fprintf(stderr, "ddp-preflight: cannot write %s: %s\n", path, strerror(errno));
	return written;
}

/* ---- history ---- */

/* A node's value is its best rank's, of the first measurement and of those after it. */
static void sum_up(const struct preflight_survey *s, struct preflight_values *values)
{
	struct preflight_link *calm = malloc((size_t)(s->link_count + 1) * sizeof(*calm));
	int count = calm != NULL ? preflight_calm_links(calm, s->link, s->link_count) : 0;

	for (int r = 0; r < s->ranks; r++) {
		struct preflight_values *v = &values[s->node[r]];
		for (int record = PREFLIGHT_RECORD_PRODUCT; record <= PREFLIGHT_RECORD_MEMORY; record++) {
			double peak = s->figures[r].of[PREFLIGHT_ALONE][record == PREFLIGHT_RECORD_PRODUCT ? PREFLIGHT_PRODUCT : PREFLIGHT_MEMORY].peak;
			if (peak > v->of[record])
				v->of[record] = peak;
		}
		v->threads = v->threads > s->facts[r].threads ? v->threads : s->facts[r].threads;
	}
	for (int i = 0; s->alone != NULL && i < s->repeats * s->ranks_again.count; i++) {
		struct preflight_values *v = &values[s->node[s->ranks_again.rank[i % s->ranks_again.count]]];
		if (s->alone[i].of[PREFLIGHT_ALONE][PREFLIGHT_PRODUCT].peak > v->of[PREFLIGHT_RECORD_PRODUCT])
			v->of[PREFLIGHT_RECORD_PRODUCT] = s->alone[i].of[PREFLIGHT_ALONE][PREFLIGHT_PRODUCT].peak;
		if (s->alone[i].of[PREFLIGHT_ALONE][PREFLIGHT_MEMORY].peak > v->of[PREFLIGHT_RECORD_MEMORY])
			v->of[PREFLIGHT_RECORD_MEMORY] = s->alone[i].of[PREFLIGHT_ALONE][PREFLIGHT_MEMORY].peak;
	}
	for (int n = 0; n < s->nodes; n++) {
		values[n].of[PREFLIGHT_RECORD_BANDWIDTH] = preflight_node_bandwidth(calm, count, n);
		values[n].of[PREFLIGHT_RECORD_SPEED] = preflight_node_speed(calm, count, n);
	}
	free(calm);
}

struct past {
	struct preflight_history history;
	struct preflight_values *values;
	int *threads;        /* of each node's ranks */
	bool *nodes, *ranks; /* that are slower than usual */
	bool any;
};

static void past_close(struct past *past)
{
	preflight_history_close(&past->history);
	free(past->values);
	free(past->threads);
	free(past->nodes);
	free(past->ranks);
}

/* On rank 0. Which ranks are slower than usual, and so are measured again. */
static bool past_open(struct past *past, const struct preflight_survey *s, const char *path)
{
	past->values = calloc((size_t)s->nodes, sizeof(*past->values));
	past->threads = calloc((size_t)s->nodes, sizeof(*past->threads));
	past->nodes = calloc((size_t)s->nodes, sizeof(*past->nodes));
	past->ranks = calloc((size_t)s->ranks, sizeof(*past->ranks));
	if (!preflight_history_open(&past->history, s->names, s->nodes) || past->values == NULL ||
	    past->threads == NULL || past->nodes == NULL || past->ranks == NULL) {
		errno = ENOMEM;
		return false;
	}
	sum_up(s, past->values);
	for (int n = 0; n < s->nodes; n++)
		past->threads[n] = past->values[n].threads;
	past->history.threads = past->threads;
	if (!preflight_history_read(&past->history, path))
		return false;
	past->any = preflight_history_doubt(&past->history, past->values, past->nodes);
	for (int r = 0; r < s->ranks; r++)
		past->ranks[r] = past->nodes[s->node[r]];
	return true;
}

/* ---- the result, on rank 0 ---- */

static struct preflight_findings findings;

static bool conclude(const struct preflight_survey *s, const struct preflight_options *options, struct past *past,
                     uint64_t begin_ns)
{
	bool busy = preflight_is_busy(&s->people, s->figures), written = true;

	findings.count = findings.odd = 0;
	preflight_differences(&findings, s->facts, s->ranks);
	preflight_survey_judge(s, &findings);
	if (options->history != NULL) {
		sum_up(s, past->values);
		if (!busy)
			preflight_history_judge(&findings, &past->history, past->values);
		written &= could_write(preflight_history_append(options->history, time(NULL), busy, s->names, past->values, s->nodes),
		                       options->history);
	}
	if (busy)
		preflight_find(&findings, &(struct preflight_finding){ .about = "cpu", .node = -1, .rank = -1, .peer = -1 },
		               "other processes use the processors, so only large differences count");
	else if (preflight_links_wait(&s->links_again, s->link_again, s->repeats))
		preflight_find(&findings, &(struct preflight_finding){ .about = "cpu", .node = -1, .rank = -1, .peer = -1 },
		               "a rank that measured links had to wait for its processor, so of its links only large differences count");
	if (options->json != NULL)
		written &= could_write(preflight_report_json(options->json, s, &findings, ddp_seconds_since(begin_ns)), options->json);
	if (options->exclude != NULL)
		written &= could_write(preflight_report_exclude(options->exclude, s, &findings), options->exclude);
	if (!options->quiet || findings.odd > 0)
		preflight_report(options->for_srun ? stderr : stdout, s, &findings, ddp_seconds_since(begin_ns), width(),
		                 has_colour(options->for_srun ? STDERR_FILENO : STDOUT_FILENO));
	if (options->for_srun)
		written &= could_write(preflight_report_answer(stdout, s, &findings), "standard output");
	return written;
}

/* ---- before the measurement ---- */

/* On rank 0. */
static bool can_write(const struct preflight_options *options)
{
	const struct {
		const char *option, *path;
		bool appends;
	} outputs[] = {
		{ "--json", options->json, false }, { "--exclude-file", options->exclude, false }, { "--history", options->history, true },
	};
	char why[PREFLIGHT_WHY];
	bool can = true;

	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
		if (outputs[i].path == NULL || preflight_output_check(outputs[i].path, outputs[i].appends, why))
			continue;
		fprintf(stderr, "ddp-preflight: %s cannot write %s: %s\n", outputs[i].option, outputs[i].path, why);
		can = false;
	}
	return can;
}

/* On all ranks; rank 0 tells. *same: all ranks run the same program. */
static ddp_status compare_releases(ddp_context *context, const char *node, bool *same)
{
	const int ranks = ddp_get_job(context)->world_size;
	struct preflight_release own, *all = malloc((size_t)ranks * sizeof(*all));
	char text[PREFLIGHT_RELEASE_TEXT];
	ddp_status status;

	if (all == NULL) {
		ddp_set_error("no memory for what %d ranks run", ranks);
		return DDP_ERR_NOMEM;
	}
	preflight_release_own(&own, node);
	status = ddp_all_gather(ddp_world(context), &own, all, sizeof(own), DDP_U8);
	*same = status == DDP_OK && preflight_releases_agree(all, ranks, text);
	if (status == DDP_OK && !*same && ddp_get_job(context)->rank == 0)
		fprintf(stderr, "ddp-preflight: %s\n", text);
	free(all);
	return status;
}

/* On all ranks: whether the measurement can begin; otherwise *code is this rank's exit status. Rank 0 alone tells why, so
   that srun says once that it is not 0. */
static bool can_begin(ddp_context *context, const struct preflight_options *options, const char *node, int *code)
{
	const bool first = ddp_get_job(context)->rank == 0;
	bool same = false;
	ddp_status status = compare_releases(context, node, &same);
	int32_t can = status == DDP_OK && same && (!first || can_write(options));

	if (status == DDP_OK && same)
		status = ddp_broadcast(ddp_world(context), &can, 1, DDP_I32, 0);
	*code = status != DDP_OK ? fail("the ranks cannot compare what they run") : first ? PREFLIGHT_EXIT_FAILED : PREFLIGHT_EXIT_FINE;
	return status == DDP_OK && can != 0;
}

static int measure(ddp_context *context, const struct preflight_options *options, struct preflight_bench *bench,
                   const struct preflight_facts *own, uint64_t begin_ns)
{
	struct preflight_survey survey;
	struct past past = { .any = false };
	int code = PREFLIGHT_EXIT_FAILED;
	bool first = ddp_get_job(context)->rank == 0;
	ddp_status status = preflight_survey_open(&survey, context, bench, own);

	if (status == DDP_OK)
		status = preflight_survey_measure(&survey);
	if (status == DDP_OK && first && options->history != NULL && !past_open(&past, &survey, options->history)) {
		fprintf(stderr, "ddp-preflight: cannot read %s: %s\n", options->history, strerror(errno));
		ddp_comm_abort(ddp_world(context), "the history cannot be read");
		past_close(&past);
		preflight_survey_close(&survey);
		return PREFLIGHT_EXIT_FAILED;
	}
	if (status == DDP_OK)
		status = preflight_survey_again(&survey, past.any ? past.ranks : NULL, &findings);
	if (status == DDP_OK && first) {
		code = conclude(&survey, options, &past, begin_ns) ? PREFLIGHT_EXIT_FINE : PREFLIGHT_EXIT_FAILED;
		if (code == PREFLIGHT_EXIT_FINE && findings.odd > 0 && !options->always_fine)
			code = PREFLIGHT_EXIT_ODD;
	}
	/* One rank tells the result, so that srun says once that it is not 0. */
	if (status == DDP_OK && !first)
		code = PREFLIGHT_EXIT_FINE;
	if (status != DDP_OK)
		code = fail("a measurement failed");
	past_close(&past);
	preflight_survey_close(&survey);
	return code;
}

static int run(const struct preflight_options *options, uint64_t begin_ns)
{
	ddp_options wanted = DDP_OPTIONS;
	struct preflight_facts own = { .rank = 0 };
	struct preflight_bench *bench;
	ddp_context *context;
	int code;

	/* Trace and records would be of this program, and stand in the way of the training's. */
	unsetenv("DDP_TRACE_DIR");
	unsetenv("DDP_RECORD_DIR");
	preflight_facts_limits(&own);
	wanted.timeout_ms = options->timeout_ms;
	wanted.wireup = options->wireup;
	wanted.device = options->no_gpu ? NULL : options->device != NULL ? options->device : preflight_gpu_device();
	if (ddp_init(&wanted, &context) != DDP_OK)
		return fail(wanted.device != NULL ? "the ranks cannot connect, or use their GPUs (--no-gpu leaves GPUs alone)"
		                                  : "the ranks cannot connect");
	dk_set_threads(threads_of(ddp_get_job(context)));
	preflight_facts_read(&own, ddp_get_job(context), dk_threads());
	if (!can_begin(context, options, own.node_name, &code)) {
		(void)ddp_finalize(context);
		return code;
	}
	if (wanted.device != NULL)
		preflight_gpu_read(&own);
	bench = preflight_bench_open(context, dk_threads(), wanted.device != NULL,
	                             wanted.device != NULL && strncmp(wanted.device, "cuda", 4) != 0);
	own.gpu_usable = wanted.device != NULL;
	if (bench == NULL)
		return fail("this rank cannot measure");
	code = measure(context, options, bench, &own, begin_ns);
	preflight_bench_close(bench);
	if (ddp_finalize(context) != DDP_OK && code != PREFLIGHT_EXIT_FAILED)
		code = fail("the end");
	return code;
}

int main(int argc, char **argv)
{
	struct preflight_options options;
	ddp_spawn_result spawned = { .is_rank = true };
	uint64_t begin_ns = ddp_now_ns();
	int code = preflight_options_read(&options, argc, argv);

	if (code >= 0)
		return code;
	if (options.spawn > 0 && ddp_spawn(options.spawn, &spawned) != DDP_OK)
		return fail("--spawn");
	return spawned.is_rank ? run(&options, begin_ns) : spawned.exit_code;
}
