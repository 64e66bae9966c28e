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

/* Writes a file anew, under another name that is then renamed. False: errno says why. */
bool preflight_report_json(const char *path, const struct preflight_survey *survey,
                           const struct preflight_findings *findings, double seconds);

/* Writes the nodes that are to be left out, as srun --exclude takes them: NAME,NAME and a newline. The file is empty
   if there are none. */
bool preflight_report_exclude(const char *path, const struct preflight_survey *survey,
                              const struct preflight_findings *findings);

/* Writes what srun's plugin reads (spank/launch/preflight.h): "ODD NODES NAME,NAME" and a newline. */
bool preflight_report_answer(FILE *out, const struct preflight_survey *survey,
                             const struct preflight_findings *findings);
