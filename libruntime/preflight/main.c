/* SPDX-License-Identifier: Apache-2.0 */
/* ddp-preflight: names sick nodes and links in the seconds before a training.

     srun --ddp ddp-preflight */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ddp.h>

#include "base/clock.h"
#include "kernels.h"
#include "preflight/facts.h"
#include "preflight/judge_facts.h"
#include "preflight/report.h"
#include "preflight/survey.h"

enum { WIDTH = 100, TIMEOUT_SECONDS = 60, SPAWN_MAX = 1024 };

enum { EXIT_FINE, EXIT_ODD, EXIT_UNMEASURED };

struct options {
	struct preflight_output json, exclude;
	const char *wireup;         /* NULL: the best there is */
	int timeout_ms;
	int spawn;                            /* local ranks without Slurm; 0: none */
	bool quiet;                           /* no table unless something is odd */
	const char *device;                   /* NULL: "cuda" where there is a GPU */
	bool no_gpu;
	bool for_srun;                        /* the answer for --ddp=preflight goes to standard output */
	bool always_fine;                     /* what is odd changes no exit status */
};

/* ---- options ---- */

static void print_help(void)
{
	printf("usage: srun --ddp [OPTION]... ddp-preflight [OPTION]...\n"
	       "Measures processors, memory, and links of a step's nodes, compares limits and\n"
	       "versions, and names what is odd. It takes some seconds.\n"
	       "\n"
	       "  --json FILE          write everything to FILE\n"
	       "  --exclude-file FILE  write the odd nodes to FILE, as srun --exclude takes them\n"
	       "  --quiet              print nothing if nothing is odd\n"
	       "  --exit-zero          exit with 0, also if something is odd\n"
	       "  --for-srun           as --ddp=preflight runs it: the table on standard error, the\n"
	       "                       odd nodes on standard output; exit with 0\n"
	       "  --device DEVICE      such as cuda:1 (default: cuda where NVML shows a GPU)\n"
	       "  --no-gpu             leave GPUs alone\n"
	       "  --timeout SECONDS    how long to wait for a rank that does not come (default 60)\n"
	       "  --wireup W           pmix or tcp (default: the best there is)\n"
	       "  --spawn N            fork N local ranks, without Slurm (1 to 1024)\n"
	       "  --help               this text\n"
	       "  --version            the version\n"
	       "\n"
	       "NO_COLOR in the environment: no colours. COLUMNS: the width of lines.\n"
	       "\n"
	       "Exit status: 0 nothing is odd, 1 something is odd, 2 usage, or it could not\n"
	       "measure.\n");
}

static bool read_number(const char *text, long most, int *value)
{
	char *end;
	long number = strtol(text, &end, 10);

	*value = (int)number;
	return end != text && *end == '\0' && number >= 1 && number <= most;
}

static int usage(const char *problem, const char *what)
{
	fprintf(stderr, "ddp-preflight: %s%s\nTry 'ddp-preflight --help'.\n", problem, what);
	return EXIT_UNMEASURED;
}

/* -1: go on; otherwise the exit status. */
static int read_options(struct options *options, int argc, char **argv)
{
	static const struct option known[] = {
		{ "json", required_argument, NULL, 'j' },    { "exclude-file", required_argument, NULL, 'x' },
		{ "quiet", no_argument, NULL, 'q' },
		{ "device", required_argument, NULL, 'd' },       { "for-srun", no_argument, NULL, 'f' },
		{ "exit-zero", no_argument, NULL, 'z' },     { "no-gpu", no_argument, NULL, 'g' },
		{ "timeout", required_argument, NULL, 't' }, { "wireup", required_argument, NULL, 'w' },
		{ "spawn", required_argument, NULL, 's' },   { "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },       { NULL, 0, NULL, 0 },
	};
	int option, seconds = TIMEOUT_SECONDS;

	*options = (struct options){ .spawn = 0 };
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'j': options->json.path = optarg; break;
		case 'x': options->exclude.path = optarg; break;
		case 'q': options->quiet = true; break;
		case 'd': options->device = optarg; break;
		case 'f': options->for_srun = options->always_fine = true; break;
		case 'z': options->always_fine = true; break;
		case 'g': options->no_gpu = true; break;
		case 'w': options->wireup = optarg; break;
		case 't':
			if (!read_number(optarg, 86400, &seconds))
				return usage("--timeout takes seconds from 1 to 86400, not ", optarg);
			break;
		case 's':
			if (!read_number(optarg, SPAWN_MAX, &options->spawn))
				return usage("--spawn takes a number from 1 to 1024, not ", optarg);
			break;
		case 'h': print_help(); return EXIT_FINE;
		case 'v': printf("ddp-preflight %s\n", preflight_version()); return EXIT_FINE;
		default: return usage("see above", "");
		}
	}
	options->timeout_ms = seconds * 1000;
	return optind < argc ? usage("it takes options only, not ", argv[optind]) : -1;
}

/* ---- the run ---- */

/* A rank whose error another rank tells waits a moment: when a rank exits, its launcher ends the others. */
static int fail(const char *what)
{
	if (ddp_last_error_is_told())
		sleep(1);
	else
		fprintf(stderr, "ddp-preflight: %s: %s\n", what, ddp_last_error());
	return EXIT_UNMEASURED;
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

/* ---- the result, on rank 0 ---- */

static struct preflight_findings findings;

static bool conclude(const struct preflight_survey *s, const struct options *options, uint64_t begin_ns)
{
	bool busy = preflight_is_busy(&s->people, s->figures), written = true;

	findings.count = findings.odd = 0;
	preflight_facts_judge(&findings, s->facts, s->ranks);
	preflight_survey_judge(s, &findings);
	if (busy)
		preflight_find(&findings, &(struct preflight_finding){ .about = "cpu", .node = -1, .rank = -1, .peer = -1 },
		               "other processes use the processors, so only large differences count");
	else if (preflight_links_wait(&s->links_again, s->link_again, s->repeats))
		preflight_find(&findings,
		               &(struct preflight_finding){ .about = "cpu", .node = -1, .rank = -1, .peer = -1 },
		               "a rank that measured links had to wait for its processor, so of its links only large "
		               "differences count");
	if (options->json.path != NULL)
		written &= could_write(preflight_report_json(&options->json, s, &findings, ddp_seconds_since(begin_ns)),
		                       options->json.path);
	if (options->exclude.path != NULL)
		written &= could_write(preflight_report_exclude(&options->exclude, s, &findings), options->exclude.path);
	if (!options->quiet || findings.odd > 0)
		preflight_report(options->for_srun ? stderr : stdout, s, &findings, ddp_seconds_since(begin_ns), width(),
		                 has_colour(options->for_srun ? STDERR_FILENO : STDOUT_FILENO));
	if (options->for_srun)
		written &= could_write(preflight_report_answer(stdout, s, &findings), "standard output");
	return written;
}

/* ---- before the measurement ---- */

/* On rank 0. */
static bool can_write(const char *option, struct preflight_output *output)
{
	const char *why;

	if (output->path == NULL || preflight_output_open(output, &why))
		return true;
	fprintf(stderr, "ddp-preflight: %s cannot write %s: %s\n", option, output->path, why);
	return false;
}

static bool can_write_all(struct options *options)
{
	const bool json = can_write("--json", &options->json);

	return can_write("--exclude-file", &options->exclude) && json;
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

/* On all ranks: whether the measurement can begin; otherwise *code is this rank's exit status. Rank 0 alone tells
   why, so that srun says once that it is not 0. */
static bool can_begin(ddp_context *context, struct options *options, const char *node, int *code)
{
	const bool first = ddp_get_job(context)->rank == 0;
	bool same = false;
	ddp_status status = compare_releases(context, node, &same);
	int32_t can = status == DDP_OK && same && (!first || can_write_all(options));

	if (status == DDP_OK && same)
		status = ddp_broadcast(ddp_world(context), &can, 1, DDP_I32, 0);
	*code = first ? EXIT_UNMEASURED : EXIT_FINE;
	if (status != DDP_OK)
		*code = fail("the ranks cannot compare what they run");
	return status == DDP_OK && can != 0;
}

static int measure(ddp_context *context, const struct options *options, struct preflight_bench *bench,
                   const struct preflight_facts *own, uint64_t begin_ns)
{
	struct preflight_survey survey;
	int code = EXIT_UNMEASURED;
	bool first = ddp_get_job(context)->rank == 0;
	ddp_status status = preflight_survey_open(&survey, context, bench, own);

	if (status == DDP_OK)
		status = preflight_survey_measure(&survey);
	if (status == DDP_OK)
		status = preflight_survey_again(&survey, &findings);
	if (status == DDP_OK && first) {
		code = conclude(&survey, options, begin_ns) ? EXIT_FINE : EXIT_UNMEASURED;
		if (code == EXIT_FINE && findings.odd > 0 && !options->always_fine)
			code = EXIT_ODD;
	}
	/* One rank tells the result, so that srun says once that it is not 0. */
	if (status == DDP_OK && !first)
		code = EXIT_FINE;
	if (status != DDP_OK)
		code = fail("a measurement failed");
	preflight_survey_close(&survey);
	return code;
}

static int run(struct options *options, uint64_t begin_ns)
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
	/* The fake GPU of tests has a host's speed. */
	bench = preflight_bench_open(context, dk_threads(), wanted.device != NULL, getenv("DDP_TEST_SMALL") != NULL);
	own.gpu_usable = wanted.device != NULL;
	if (bench == NULL)
		return fail("this rank cannot measure");
	code = measure(context, options, bench, &own, begin_ns);
	preflight_bench_close(bench);
	if (ddp_finalize(context) != DDP_OK && code != EXIT_UNMEASURED)
		code = fail("the end");
	return code;
}

int main(int argc, char **argv)
{
	struct options options;
	ddp_spawn_result spawned = { .is_rank = true };
	uint64_t begin_ns = ddp_now_ns();
	int code = read_options(&options, argc, argv);

	if (code >= 0)
		return code;
	if (options.spawn > 0 && ddp_spawn(options.spawn, &spawned) != DDP_OK)
		return fail("--spawn");
	return spawned.is_rank ? run(&options, begin_ns) : spawned.exit_code;
}
