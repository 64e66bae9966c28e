/* SPDX-License-Identifier: Apache-2.0 */
/* Runs ddp-preflight on the nodes of a step before its programs start (preflight=): by an srun and a step of its own,
   beside that one. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/options/options.h"

enum { PREFLIGHT_STEP_WORDS = 32, PREFLIGHT_STEP_TEXT = 1024 };

/* The step that is to follow. */
struct preflight_step {
	uint32_t job_id, tasks, nodes;
	const char *srun, *program;
	const char *node_list;     /* as Slurm has it; NULL: not known */
	const char *cpus_per_task; /* NULL: the user does not say */
};

struct preflight_command {
	const char *words[PREFLIGHT_STEP_WORDS]; /* NULL behind the last one */
	char text[PREFLIGHT_STEP_TEXT];          /* of some of the words */
	char *node_list;                         /* allocated */
};

/* Makes the command. False without memory. */
bool preflight_step_command(struct preflight_command *command, const struct preflight_step *step,
                            const struct settings *settings, struct error *error);
void preflight_step_free(struct preflight_command *command);

/* The program has written how many things are odd, and which nodes are to be left out, separated by commas. */
struct preflight_answer {
	uint32_t odd, nodes;
	const char *node_list; /* within the text, which is terminated there */
};

/* Reads the program's answer, "ODD NODES NAME,NAME" and a newline. False: it is none. */
bool preflight_step_answer(char *text, struct preflight_answer *answer);

/* In srun, as the user, once the step is there and before it is launched. Waits for the end of ddp-preflight, whose
   table goes to srun's standard error. `step` lacks the programs and cpus_per_task. Sets *avoid to the list of nodes
   that are to wait as spares, allocated, or NULL. Calls `say` if ddp-preflight could not measure, and the step starts
   all the same. False: the step is not to start. */
bool preflight_run(const struct settings *settings, const struct preflight_step *step, void (*say)(const char *text),
                   char **avoid, struct error *error);
