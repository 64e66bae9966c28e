/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/options: what ddp-preflight can be asked for. */
#pragma once

#include <stdbool.h>

enum { PREFLIGHT_EXIT_FINE = 0, PREFLIGHT_EXIT_ODD = 1, PREFLIGHT_EXIT_FAILED = 2 };

struct preflight_options {
	const char *json, *exclude; /* files; NULL: none */
	const char *wireup;         /* NULL: the best there is */
	int timeout_ms;
	int spawn;                            /* local ranks without Slurm; 0: none */
	bool quiet;                           /* no table unless something is odd */
	const char *device;                   /* NULL: "cuda" where there is a GPU */
	bool no_gpu;
	bool for_srun;                        /* the answer for --ddp=preflight goes to standard output */
	bool always_fine;                     /* what is odd changes no exit status */
};

/* -1: go on; otherwise the exit status. */
int preflight_options_read(struct preflight_options *options, int argc, char **argv);
