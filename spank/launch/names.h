/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of the variables that the plugin sets or takes out, those of options
   included. What sets them (variables.c) and what takes them out (prepare.c) go by it, and a
   test holds srun-ddp(7) against it. Pure. */
#pragma once

#include <stdbool.h>

/* The kind says what a name's value in a caller's environment means to the step or job that the
   caller starts. */
enum name_kind {
	NAME_RANK,     /* RANK and what comes with it: of the caller's step */
	NAME_TORCHRUN, /* torchrun and torch read or set it, and would believe it */
	NAME_STEP,     /* only the plugin sets it: of the caller's step */
	NAME_CHOICE,   /* the user may set it, too; DDP_DERIVED tells the plugin's value from the user's */
	NAME_SLURM,    /* Slurm sets it for a step, and does not take it out of the next one */
	NAME_RENUMBERED, /* Slurm sets it, and the plugin changes it in a generation of restart= */
	NAME_LIST,     /* the user's, to which the plugin adds a folder that does nothing elsewhere: it stays */
	NAME_HANDOVER, /* srun's word to its nodes; a task needs it no more */
};

struct name {
	const char *text;
	enum name_kind kind;
};

/* The index-th name from 0 on, NULL behind the last. */
const struct name *name_at(int index);

/* The entry of a name, or NULL. */
const struct name *name_find(const char *text);

/* Parts the items of DDP_DERIVED, each NAME=VALUE; no value of the plugin's has it. */
#define DERIVED_SEPARATOR "\t"

/* Whether DDP_DERIVED, which may be NULL, says that the plugin set the name to this value. */
bool name_is_derived(const char *derived, const char *text, const char *value);

/* All messages about nodes that lack the plugin say this; the nodes follow. */
#define PLUGIN_ABSENT_ON "the plugin spank_ddp is absent on "

/* srun puts this text in place of ranks. A node without the plugin leaves the text there, and no
   program can take the text for a number. */
#define PLUGIN_IS_ABSENT \
	"srun --ddp was asked for, but " PLUGIN_ABSENT_ON "this node"
