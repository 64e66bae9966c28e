/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "preflight/release.h"

enum { TIMEOUT_SECONDS = 60, SPAWN_MAX = 1024 };

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
	return PREFLIGHT_EXIT_FAILED;
}

int preflight_options_read(struct preflight_options *options, int argc, char **argv)
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

	*options = (struct preflight_options){ .timeout_ms = TIMEOUT_SECONDS * 1000 };
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'j': options->json = optarg; break;
		case 'x': options->exclude = optarg; break;
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
		case 'h': print_help(); return PREFLIGHT_EXIT_FINE;
		case 'v': printf("ddp-preflight %s\n", preflight_version()); return PREFLIGHT_EXIT_FINE;
		default: return usage("see above", "");
		}
	}
	options->timeout_ms = seconds * 1000;
	return optind < argc ? usage("it takes options only, not ", argv[optind]) : -1;
}
