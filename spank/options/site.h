/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The site's line in plugstack.conf: the same keys as --ddp, one to a word, as
 * defaults, locked=KEY,KEY,... for those that users may not give, max-KEY=N for the most
 * that they may ask for, and words of the site alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/error.h"
#include "spank/options/options.h"

/* A user's list of keys (options.h): each key once, none that the site has locked, and none that contradicts another
   one. Pure. Runs as root too. */

/*
 * Reads a user's list on top of `settings`. `locked` has the bits of keys that
 * the site keeps for itself. NULL, "" and "(null)", all of which Slurm hands
 * on for a missing argument, are the empty list. The settings are unchanged after an error.
 */
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

/* Whether the site's limits allow these settings. */
bool site_allows(const struct site *site, const struct settings *settings, struct error *error);

/* Whether one of SLURM's files has KEY=yes. The file must be this user's or the owner's. */
bool site_file_says_yes(const char *path, uid_t owner, const char *key);
