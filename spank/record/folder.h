/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder's files: DIR/JOB.STEP/rank-N.jsonl. Everything here runs as the user, who owns the folder and the
 * files: in a task, in a child of slurmstepd's that has become the user, or in ddp-status. libc only.
 */
#ifndef SPANK_RECORD_FOLDER_H
#define SPANK_RECORD_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/error.h"

/* Makes the step's folder in DIR. With `make`, DIR is made if it does not exist, and then is the user's alone. A folder for
   all users is not made: the user who came first would lock out the others. */
bool record_folder_make(const char *dir, bool make, uint32_t job, uint32_t step, struct error *error);

/* Returns the step's folder, which is made if it does not exist; -1 with a sentence. */
int record_folder_open(const char *dir, bool make, uint32_t job, uint32_t step, struct error *error);

/* Adds a line to the rank's file. Files of more than RECORD_FILE_MAX bytes grow no further. */
enum { RECORD_FILE_MAX = 64 << 20 };
bool record_folder_add(int folder, uint32_t rank, const char *line, size_t bytes, struct error *error);

#endif
