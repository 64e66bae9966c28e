/* SPDX-License-Identifier: Apache-2.0 */
/* srun adds notes to its job's comment, as the user. What others wrote there stays. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/wire/report.h"

/* Writes the comment with the note to `after`. False: there is none, or it does not fit. */
typedef bool comment_edit(const void *about, const char *before, char *after, size_t bytes);

/* A comment that is longer takes no note. */
enum { COMMENT_MAX = 4096 };

/* Has slurmctld tell the job's comment, and give it back as `edit` has changed it. A comment of `most` bytes or more
   is left alone. Threads of one srun change it one after the other, so that each finds the other's note; another srun
   of the same job may still come between. Returns 0, Slurm's reason, or -1: slurmctld does not tell the comment, or
   there is no note. */
int comment_change(uint32_t job_id, size_t most, comment_edit *edit, const void *about);

/* Why a step failed is noted with comment=failures of the site's line. slurmctld is asked from a thread, so that
   neither the sentence nor the step's end waits for it. */

/* The step has been created, and failures are to be noted. A second call does nothing. */
void comment_begin(uint32_t job_id, uint32_t step_id);

/* Notes the event, and returns at once. Of several events the last one is in the comment. Before comment_begin() it
   does nothing. */
void comment_add_failure(const struct event *event);

/* Waits until the comment is written, some seconds at most. */
void comment_end(void);
