/* SPDX-License-Identifier: Apache-2.0 */
/* The site's line in plugstack.conf: the same keys as --ddp, one to a word, as
   defaults, locked=KEY,KEY,... for those that users may not give, max-KEY=N for the most
   that they may ask for, and words of the site alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"
#include "spank/options/options.h"

/* A user's list of keys (options.h): each key once, none that the site has locked, and none that contradicts another
   one. Pure. Runs as root too. */

/* Reads a user's list on top of `settings`. `locked` has the bits of keys that
   the site keeps for itself. NULL, "" and "(null)", all of which Slurm hands
   on for a missing argument, are the empty list. The settings are unchanged after an error. */
bool user_list_read(struct settings *settings, const char *list, uint32_t locked, struct error *error);

struct site {
	struct settings defaults;
	uint32_t locked; /* bit i: key i of the table */
	uint32_t most[3]; /* of restart, spare and requeue; UINT32_MAX: no limit */
	bool off; /* every --ddp is refused */
	bool notes_failures; /* comment=failures: srun notes in the job's comment why a step failed */
};

/* Strict: an unknown, malformed or repeated word is an error that names it,
   and leaves the built-in defaults in `site`. */
bool site_parse(struct site *site, int count, char *const words[], struct error *error);

/* Whether one of SLURM's files has KEY=yes. The file must be this user's or the owner's. */
bool site_file_says_yes(const char *path, uid_t owner, const char *key);

/* What --ddp asks of this process: the site's line, and on top of it the user's list. Of lists there
   may be several: what sbatch has handed on, srun's own, and one for each component of a
   heterogeneous step. Pure. */
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
