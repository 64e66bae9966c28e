/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/output: the files of --json and --exclude-file. Whether they can be written is looked at before
   the measurement, which would otherwise be in vain. */
#pragma once

#include <limits.h>
#include <stdbool.h>

enum { PREFLIGHT_WHY = PATH_MAX + 128 };

/* Whether `path` can be written: otherwise `why` says what is wrong and what to do. It may make a file beside `path`,
   and removes it again. */
bool preflight_output_check(const char *path, char why[PREFLIGHT_WHY]);

/* Writes the text under a new name beside `path`, and renames it. A pipe, a device, and what standard output or error
   go to, such as /dev/stdout, are written to themselves. False: errno says why. */
bool preflight_output_write(const char *path, const char *text);
