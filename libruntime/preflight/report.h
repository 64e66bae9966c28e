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

/* ddp-preflight writes this file at its end. */
struct preflight_output {
	const char *path; /* NULL: no file */
	int file;         /* the text goes to this descriptor; -1: a new file takes the place of the one at `path` */
};

/* The same and all figures as JSON. False: errno says why. */
bool preflight_report_json(const struct preflight_output *output, const struct preflight_survey *survey,
                           const struct preflight_findings *findings, double seconds);

/* The nodes that are to be left out, as srun --exclude takes them: NAME,NAME and a newline; nothing if there are
   none. */
bool preflight_report_exclude(const struct preflight_output *output, const struct preflight_survey *survey,
                              const struct preflight_findings *findings);

/* Writes what srun's plugin reads (spank/launch/preflight.h): "ODD NODES NAME,NAME" and a newline. */
bool preflight_report_answer(FILE *out, const struct preflight_survey *survey,
                             const struct preflight_findings *findings);

/* Called with the path before the measurement, which would be in vain if the output could not be written. It leaves a
   file as it is, and makes none. False: `why` says what is wrong, or what to do. */
bool preflight_output_open(struct preflight_output *output, const char **why);

/* Writes the text in place of the file, at once. A pipe, a device, and what standard output or error go to, such as
   /dev/stdout, get it behind what they have. Called once. False: errno says why. */
bool preflight_output_write(const struct preflight_output *output, const char *text);
