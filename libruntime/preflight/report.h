/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/report: the result as a table for people, as JSON, and as a list of nodes for srun --exclude. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "preflight/finding.h"
#include "preflight/survey.h"

/* `width`: of the terminal, in columns. */
void preflight_report(FILE *out, const struct preflight_survey *survey, const struct preflight_findings *findings,
                      double seconds, int width, bool colour);

/* Writes a file anew by preflight_output_write(). False: errno says why. */
bool preflight_report_json(const char *path, const struct preflight_survey *survey,
                           const struct preflight_findings *findings, double seconds);

/* Writes the nodes that are to be left out, as srun --exclude takes them: NAME,NAME and a newline. The file is empty
   if there are none. */
bool preflight_report_exclude(const char *path, const struct preflight_survey *survey,
                              const struct preflight_findings *findings);

/* Writes what srun's plugin reads (spank/launch/preflight.h): "ODD NODES NAME,NAME" and a newline. */
bool preflight_report_answer(FILE *out, const struct preflight_survey *survey,
                             const struct preflight_findings *findings);

/* ---- the files of --json and --exclude-file. Whether they can be written is looked at before the measurement, which
   would otherwise be in vain. ---- */

enum { PREFLIGHT_WHY = PATH_MAX + 128 };

/* Whether `path` can be written: otherwise `why` says what is wrong and what to do. It may make a file beside `path`,
   and removes it again. */
bool preflight_output_check(const char *path, char why[PREFLIGHT_WHY]);

/* Writes the text under a new name beside `path`, and renames it. A pipe, a device, and what standard output or error
   go to, such as /dev/stdout, are written to themselves. False: errno says why. */
bool preflight_output_write(const char *path, const char *text);
