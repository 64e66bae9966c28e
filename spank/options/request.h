/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What --ddp asks of this process: the site's line, and on top of it the user's list. Of lists there
 * may be several: what sbatch has handed on, srun's own, and one for each component of a
 * heterogeneous step. Pure.
 */
#pragma once

#include <stdbool.h>

#include "spank/base/error.h"
#include "spank/options/options.h"
#include "spank/options/site.h"

enum { REQUEST_LIST_MAX = 4096 };

struct request {
	struct site site;
	struct settings settings;
	bool wanted;        /* --ddp was given, and not taken back by off */
	struct error error; /* what is wrong with the site's line or the option; "" */

	/* Slurm hands one list of --ddp, the last, to all components of a heterogeneous job or step. */
	unsigned lists;                /* of the component whose options are being read */
	char list[REQUEST_LIST_MAX];   /* the last one, "" for --ddp alone, */
	char before[REQUEST_LIST_MAX]; /* and the one before it */
	unsigned components;           /* were read before, and */
	bool any;                      /* one of them had a list: */
	char first[REQUEST_LIST_MAX];
};

/* Takes a user's list, which NULL, "" and "(null)" leave empty. The last list counts, and each starts from
   the site's defaults. An earlier error of the request stays. */
bool request_take_list(struct request *request, const char *list, struct error *error);

/* Is to be called behind the options of each component. A component without --ddp has the others' list, but sbatch
   hands on the list of the first component only (`in_sbatch`). False if the lists of two components differ, or if
   sbatch would drop the list. */
bool request_components_agree(struct request *request, bool in_sbatch, struct error *error);

/* Whether the site keeps the key for itself. */
bool request_locks(const struct request *request, const char *key);
