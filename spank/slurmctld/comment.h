/* SPDX-License-Identifier: Apache-2.0 */
/* srun adds notes to its job's comment, as the user. What others wrote there stays. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the comment with the note to `after`. False: there is none, or it does not fit. */
typedef bool comment_edit(const void *about, const char *before, char *after, size_t bytes);

/* A comment that is longer takes no note. */
enum { COMMENT_MAX = 4096 };

/*
 * Has slurmctld tell the job's comment, and give it back as `edit` has changed it. A comment of `most` bytes or more
 * is left alone. Threads of one srun change it one after the other, so that each finds the other's note; another srun
 * of the same job may still come between. Returns 0, Slurm's reason, or -1: slurmctld does not tell the comment, or
 * there is no note.
 */
int comment_change(uint32_t job_id, size_t most, comment_edit *edit, const void *about);
