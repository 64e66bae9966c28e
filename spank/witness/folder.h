/* SPDX-License-Identifier: Apache-2.0 */
/* The user's files of record= and log=: DIR/JOB.STEP/rank-N.jsonl and DIR/JOB.STEP/rank-R.start-S.log. Everything here
   runs as the user, who owns the folder and the files: in a task, in a child of slurmstepd's that has become the user,
   or in ddp-status. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"
#include "spank/identity/identity.h"

struct folder_wish {
	const char *option; /* of --ddp, for messages */
	const char *dir;
	bool make;          /* DIR, if it does not exist. A folder for all users is not made: the user who came first would
	                       lock out the others. */
	mode_t mode;        /* of folders that are made, less the umask */
};

/* record='s folders are the user's alone. */
struct folder_wish record_folder_wish(const char *dir, bool make);

/* Makes the step's folder in DIR. */
bool record_folder_make(const struct folder_wish *wish, uint32_t job, uint32_t step, struct error *error);

/* Returns the step's folder, which is made if it does not exist; -1 with a sentence. */
int record_folder_open(const struct folder_wish *wish, uint32_t job, uint32_t step, struct error *error);

/* Adds a line to the rank's file. Files of more than RECORD_FILE_MAX bytes grow no further. */
enum { RECORD_FILE_MAX = 64 << 20 };
bool record_folder_add(int folder, uint32_t rank, const char *line, size_t bytes, struct error *error);

/* With log=, in a task: makes the file of the task's start, and gives what the program will write to ddp-log (pump.h).
   `control` is pump_make()'s. A relative `dir` is one of the working directory. Nothing is cut or overwritten: an
   earlier file of that name grows. A terminal of srun --pty stays as it is. False, with a sentence: the task must not
   run. */
bool redirect_output(int control, const char *dir, const struct identity *identity, struct error *error);
