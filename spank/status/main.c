/* SPDX-License-Identifier: Apache-2.0 */
/* ddp-status: what each rank of a running job is doing. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/status/cluster.h"
#include "spank/status/probe.h"

enum { EXIT_SHOWN = 0, EXIT_NOTHING = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3 };
enum { INTERVAL_MS = 500, SECONDS_MAX = 86400 };

struct options {
	bool json, probe, stacks;
	int watch_ms;    /* 0: once */
	int interval_ms;
	char what[64], job[32];
	int64_t step;    /* below 0: all */
};

static void print_help(void)
{
	printf("usage: ddp-status [OPTION]... JOBID[.STEP]\n"
	       "Shows what each rank of a running job is doing, stragglers first.\n"
	       "\n"
	       "  --watch SECONDS     again and again, with a pause of so long\n"
	       "  --interval SECONDS  measure CPU time over so long (default 0.5)\n"
	       "  --stack             also the stacks of Python's threads, of programs with slurm_ddp\n"
	       "  --json              one JSON object instead of a table\n"
	       "  --help              this text\n"
	       "  --version           the version\n"
	       "\n"
	       "For programs of libddp: phase, step, last collective and since when, rate. For\n"
	       "any program: state, CPU time, and the kernel's function in which it sleeps.\n"
	       "NO_COLOR in the environment: no colours.\n"
	       "\n"
	       "Exit status: 0 shown, 1 no such job, step or rank, or Slurm fails, 2 usage,\n"
	       "3 the job is another user's.\n");
}

static bool parse_seconds(const char *text, int *ms)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value >= 0.05 && value <= SECONDS_MAX))
		return false;
	*ms = (int)(value * 1000);
	return true;
}

/* "12", "12.0": digits only, as they travel into commands. */
static bool parse_what(const char *text, struct options *options)
{
	size_t job = strspn(text, "0123456789"), step;

	if (job == 0 || job >= sizeof(options->job) || strlen(text) >= sizeof(options->what))
		return false;
	options->step = -1;
	if (text[job] == '.') {
		step = strspn(text + job + 1, "0123456789");
		if (step == 0 || step > 9 || text[job + 1 + step] != '\0')
			return false;
		options->step = atol(text + job + 1);
	} else if (text[job] != '\0') {
		return false;
	}
	strcpy(options->what, text);
	memcpy(options->job, text, job);
	options->job[job] = '\0';
	return true;
}

static int usage(const char *problem, const char *what)
{
	fprintf(stderr, "ddp-status: %s%s\nTry 'ddp-status --help'.\n", problem, what);
	return EXIT_USAGE;
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{ "watch", required_argument, NULL, 'w' }, { "interval", required_argument, NULL, 'i' },
		{ "json", no_argument, NULL, 'j' },        { "stack", no_argument, NULL, 's' },
		{ "probe", no_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },        { "version", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	*options = (struct options){ .interval_ms = INTERVAL_MS };
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'w':
		case 'i':
			if (!parse_seconds(optarg, option == 'w' ? &options->watch_ms : &options->interval_ms))
				return usage(option == 'w' ? "--watch takes seconds from 0.05 to 86400, not "
				                           : "--interval takes seconds from 0.05 to 86400, not ",
				             optarg);
			break;
		case 'j': options->json = true; break;
		case 's': options->stacks = true; break;
		case 'p': options->probe = true; break;
		case 'h': print_help(); return EXIT_SHOWN;
		case 'v': printf("ddp-status %s\n", PACKAGE_VERSION); return EXIT_SHOWN;
		default: return usage("see above", "");
		}
	}
	if (optind != argc - 1)
		return usage(optind == argc ? "which job? JOBID or JOBID.STEP is needed"
		                            : "one job is expected, not also ",
		             optind == argc ? "" : argv[optind + 1]);
	if (!parse_what(argv[optind], options))
		return usage("a job is JOBID or JOBID.STEP, in digits, not ", argv[optind]);
	return -1;
}

static bool use_colour(void)
{
	const char *no = getenv("NO_COLOR");

	return isatty(STDOUT_FILENO) && (no == NULL || no[0] == '\0');
}

static int show(const struct options *options, const struct job *job, const char *program)
{
	struct row *rows = NULL;
	size_t count = 0;
	bool shown = cluster_probe(job, program, options->what, options->interval_ms, options->stacks, &rows,
	                           &count);

	if (shown && !rows_arrange(&rows, &count, job->ranks_max)) {
		fprintf(stderr, "ddp-status: no memory for the ranks of job %s\n", options->job);
		shown = false;
	}
	if (shown && count == 0) {
		fprintf(stderr, "ddp-status: no rank of %s runs now\n", options->what);
		shown = false;
	}
	if (shown && options->watch_ms > 0 && use_colour())
		printf("\033[H\033[2J");
	if (shown && options->json)
		shown = rows_print_json(stdout, rows, count, options->job);
	else if (shown)
		rows_print(stdout, rows, count, options->job, use_colour());
	rows_free(rows, count);
	return shown && fflush(stdout) == 0 ? EXIT_SHOWN : EXIT_NOTHING;
}

/* By which the nodes find it, too. */
static bool find_self(char *path, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", path, bytes - 1);

	if (length < 0)
		return false;
	path[length] = '\0';
	return true;
}

int main(int argc, char **argv)
{
	struct options options;
	struct job job;
	char program[4096];
	int status = parse_options(argc, argv, &options);

	if (status >= 0)
		return status;
	if (options.probe) {
		const struct probe probe = { options.job, options.step, options.interval_ms, options.stacks };
		return probe_run(&probe) ? EXIT_SHOWN : EXIT_NOTHING;
	}
	if (!find_self(program, sizeof(program))) {
		perror("ddp-status: /proc/self/exe");
		return EXIT_NOTHING;
	}
	if (!cluster_find_job(options.job, &job))
		return EXIT_NOTHING;
	if (geteuid() != 0 && geteuid() != job.owner) {
		fprintf(stderr, "ddp-status: job %s is user %u's: only that user and root may look at it\n",
		        options.job, (unsigned)job.owner);
		return EXIT_REFUSED;
	}
	while ((status = show(&options, &job, program)) == EXIT_SHOWN && options.watch_ms > 0)
		usleep((useconds_t)options.watch_ms * 1000);
	return status;
}
