/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/report: the result as a table for people, as JSON, and as a list of nodes for srun --exclude. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "preflight/finding.h"
#include "preflight/survey.h"

/* `width`: of the terminal, in columns. */
void preflight_report(FILE *out, const struct preflight_survey *survey, const struct preflight_findings *findings,
                      double seconds, int width, bool colour);

/* The same and all figures as JSON, in a file of preflight_output_open(). False: errno says why. */
bool preflight_report_json(int file, const struct preflight_survey *survey, const struct preflight_findings *findings,
                           double seconds);

/* The nodes that are to be left out, as srun --exclude takes them: NAME,NAME and a newline; nothing if there are
   none. */
bool preflight_report_exclude(int file, const struct preflight_survey *survey,
                              const struct preflight_findings *findings);

/* Writes what srun's plugin reads (spank/launch/preflight.h): "ODD NODES NAME,NAME" and a newline. */
bool preflight_report_answer(FILE *out, const struct preflight_survey *survey,
                             const struct preflight_findings *findings);

/* Opens a file, or makes it, before the measurement, which would be in vain if it could not be written. It keeps what
   is in there. -1: `why` says what is wrong, or what to do. */
int preflight_output_open(const char *path, const char **why);

/* Writes the text in place of what is in the file. A pipe, a device, and what standard output or error go to, such as
   /dev/stdout, get it behind what they have. Closes the file. False: errno says why. */
bool preflight_output_write(int file, const char *text);
