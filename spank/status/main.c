/* SPDX-License-Identifier: Apache-2.0 */
/* ddp-status: what each rank of a running job is doing. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "spank/base/release.h"
#include "spank/status/prometheus.h"
#include "spank/status/sources.h"
#include "spank/witness/dump.h"

enum { EXIT_SHOWN = 0, EXIT_NOTHING = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3 };
enum { INTERVAL_MS = 500, SECONDS_MAX = 86400 };

enum format { FORMAT_TABLE, FORMAT_JSON, FORMAT_PROMETHEUS };

struct options {
	enum format format;
	bool probe, stacks;
	bool node;            /* the ranks of this node, without Slurm */
	const char *textfile; /* NULL: stdout */
	int watch_ms;    /* 0: once */
	int interval_ms;
	char what[64], job[32]; /* "": all of this node */
	char dump[RECORD_DIR_MAX + 8]; /* "--dump" or "--dump=DIR", as the nodes get it; "": not */
	int64_t step;    /* below 0: all */
};

static void print_help(void)
{
	printf("usage: ddp-status [OPTION]... JOBID[.STEP]\n"
	       "       ddp-status --node [OPTION]... [JOBID[.STEP]]\n"
	       "Shows what each rank of a running job is doing, stragglers first.\n"
	       "\n"
	       "  --format FORMAT     table (default), json, or prometheus\n"
	       "  --node              only this node's ranks, of all jobs if none is named: asks\n"
	       "                      nothing of SLURM. Root sees those of all users\n"
	       "  --textfile FILE     writes the figures of --node --format prometheus to FILE, for\n"
	       "                      the textfile collector of Prometheus' node_exporter\n"
	       "  --watch SECONDS     again and again, with a pause of so long, until no rank runs\n"
	       "  --interval SECONDS  measure CPU time over so long (default 0.5)\n"
	       "  --stack             also the stacks of programs with slurm_ddp, and under\n"
	       "                      --ddp=record= of programs of libddp\n"
	       "  --dump[=DIR]        also have each rank's flight record written: below DIR, or where\n"
	       "                      --ddp=record= said. `ddp-report --record DIR` merges them\n"
	       "  --json              the same as --format json\n"
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

static bool parse_format(const char *text, enum format *format)
{
	static const char *const names[] = { "table", "json", "prometheus" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(text, names[i]) == 0) {
			*format = (enum format)i;
			return true;
		}
	return false;
}

/* NULL: the step's own directory. */
static bool parse_dump(const char *dir, struct options *options)
{
	if (dir != NULL && (dir[0] != '/' || strlen(dir) >= RECORD_DIR_MAX))
		return false;
	snprintf(options->dump, sizeof(options->dump), "--dump%s%s", dir != NULL ? "=" : "", dir != NULL ? dir : "");
	return true;
}

static int usage(const char *problem, const char *what)
{
	fprintf(stderr, "ddp-status: %s%s\nTry 'ddp-status --help'.\n", problem, what);
	return EXIT_USAGE;
}

/* Looks for options that do not go together; -1: all do. */
static int check_options(const struct options *options)
{
	if (options->textfile != NULL && options->format != FORMAT_PROMETHEUS)
		return usage("--textfile takes the format prometheus only", "");
	if (options->dump[0] != '\0' && options->node)
		return usage("--dump is for a job", "");
	if (options->stacks && (options->node || options->format == FORMAT_PROMETHEUS))
		return usage("--stack goes with a job, as table or JSON", "");
	return -1;
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{ "watch", required_argument, NULL, 'w' }, { "interval", required_argument, NULL, 'i' },
		{ "json", no_argument, NULL, 'j' },        { "stack", no_argument, NULL, 's' },
		{ "probe", no_argument, NULL, 'p' },   { "format", required_argument, NULL, 'f' },
		{ "node", no_argument, NULL, 'n' },    { "textfile", required_argument, NULL, 't' },
		{ "dump", optional_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },        { "version", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	*options = (struct options){ .interval_ms = INTERVAL_MS, .step = -1 };
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'w':
		case 'i':
			if (!parse_seconds(optarg, option == 'w' ? &options->watch_ms : &options->interval_ms))
				return usage(option == 'w' ? "--watch takes seconds from 0.05 to 86400, not "
				                           : "--interval takes seconds from 0.05 to 86400, not ",
				             optarg);
			break;
		case 'j': options->format = FORMAT_JSON; break;
		case 'f':
			if (!parse_format(optarg, &options->format))
				return usage("--format takes table, json or prometheus, not ", optarg);
			break;
		case 'n': options->node = true; break;
		case 't':
			options->node = true;
			options->textfile = optarg;
			options->format = FORMAT_PROMETHEUS;
			break;
		case 's': options->stacks = true; break;
		case 'p': options->probe = true; break;
		case 'd':
			if (!parse_dump(optarg, options))
				return usage("--dump takes a directory that begins with /, of at most 1023 bytes, not ", optarg);
			break;
		case 'h': print_help(); return EXIT_SHOWN;
		case 'v': printf("ddp-status %s\n", release_own()); return EXIT_SHOWN;
		default: return usage("see above", "");
		}
	}
	if (options->node && optind == argc)
		return check_options(options);
	if (optind != argc - 1)
		return usage(optind == argc ? "which job? JOBID or JOBID.STEP is needed"
		                            : "one job is expected, not also ",
		             optind == argc ? "" : argv[optind + 1]);
	if (!parse_what(argv[optind], options))
		return usage("a job is JOBID or JOBID.STEP, in digits, not ", argv[optind]);
	return check_options(options);
}

static bool use_colour(void)
{
	const char *no = getenv("NO_COLOR");

	return isatty(STDOUT_FILENO) && (no == NULL || no[0] == '\0');
}

static double now_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* slurmd knows the node's name, which may be another than the host's. */
static const char *node_name(void)
{
	static char host[ROW_NAME_MAX];
	const char *name = getenv("SLURMD_NODENAME");

	if (name != NULL && name[0] != '\0')
		return name;
	gethostname(host, sizeof(host) - 1);
	host[strcspn(host, ".")] = '\0';
	return host;
}

static bool print_rows(const struct options *options, const struct row *rows, size_t count)
{
	const char *job = options->node ? NULL : options->job;

	switch (options->format) {
	case FORMAT_JSON:
		return rows_print_json(stdout, rows, count, job);
	case FORMAT_PROMETHEUS:
		return prometheus_write(stdout, rows, count, options->node ? node_name() : NULL, now_seconds());
	case FORMAT_TABLE:
		break;
	}
	rows_print(stdout, rows, count, job, use_colour());
	return true;
}

/* The probes' words on whose ranks they are do not count. */
static void name_owner(const struct job *job, struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		rows[i].job = atoll(job->id);
		local_user_name(job->owner, rows[i].user, sizeof(rows[i].user));
	}
}

static int show_job(const struct options *options, const struct job *job, const char *program)
{
	struct row *rows = NULL;
	size_t count = 0;
	bool shown = cluster_probe(job, program, options->what, options->interval_ms, options->stacks,
	                           options->dump[0] != '\0' ? options->dump : NULL, &rows, &count);

	name_owner(job, rows, count);
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
	if (shown)
		shown = print_rows(options, rows, count);
	rows_free(rows, count);
	return shown && fflush(stdout) == 0 ? EXIT_SHOWN : EXIT_NOTHING;
}

static bool write_textfile(const char *path, const struct row *rows, size_t count)
{
	struct textfile textfile;
	bool written;

	if (!textfile_begin(&textfile, path))
		return false;
	errno = 0;
	written = prometheus_write(textfile.file, rows, count, node_name(), now_seconds());
	if (!written)
		fprintf(stderr, "ddp-status: cannot write %s: %s; the old figures stay\n", path,
		        strerror(errno != 0 ? errno : ENOMEM));
	return textfile_end(&textfile, written) && written;
}

/* A node without ranks is nothing unusual. If one user's ranks cannot be looked at, the others' are told. */
static int show_node(const struct options *options)
{
	const struct local local = { options->job[0] != '\0' ? atoll(options->job) : -1, options->step, node_name(),
	                             options->interval_ms };
	struct row *rows = NULL;
	size_t count = 0;
	bool shown = local_collect(&local, &rows, &count);

	if (options->watch_ms > 0 && use_colour())
		printf("\033[H\033[2J");
	if (options->textfile != NULL)
		shown &= write_textfile(options->textfile, rows, count);
	else
		shown &= print_rows(options, rows, count);
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
		const char *dir = strchr(options.dump, '=');
		const struct probe probe = { .job = atoll(options.job), .slurm_step = options.step,
			                     .interval_ms = options.interval_ms, .stacks = options.stacks,
			                     .dump = options.dump[0] != '\0', .dump_dir = dir != NULL ? dir + 1 : "" };
		return probe_run(&probe, stdout) ? EXIT_SHOWN : EXIT_NOTHING;
	}
	if (options.node) {
		while ((status = show_node(&options)) == EXIT_SHOWN && options.watch_ms > 0)
			usleep((useconds_t)options.watch_ms * 1000);
		return status;
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
	while ((status = show_job(&options, &job, program)) == EXIT_SHOWN && options.watch_ms > 0)
		usleep((useconds_t)options.watch_ms * 1000);
	return status;
}
