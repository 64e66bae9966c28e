/* SPDX-License-Identifier: Apache-2.0 */
/* A user's list of keys (options.h): each key once, none that the site has locked, and none that contradicts another
   one. Pure. Runs as root too. */
#ifndef SPANK_USER_LIST_H
#define SPANK_USER_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/error.h"
#include "spank/options.h"

/*
 * Reads a user's list on top of `settings`. `locked` has the bits of keys that
 * the site keeps for itself. NULL, "" and "(null)", all of which Slurm hands
 * on for a missing argument, are the empty list. The settings are unchanged after an error.
 */
bool user_list_read(struct settings *settings, const char *list, uint32_t locked, struct error *error);

#endif
