/* SPDX-License-Identifier: Apache-2.0 */
/* The variables that a task gets: names, values and where each value comes
   from. Pure: the shell hands the list to Slurm, tests read it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/identity/identity.h"
#include "spank/options/options.h"
#include "spank/wire/deal.h"

/* Slurm's own variables of a task, as they are in a generation: its rank, the ranks of its node, the nodes that
   take part. Programs that read these, such as JAX and libddp, agree then with those that read RANK and WORLD_SIZE.
   Variables that describe the job change with the step's if they said the same. Pure. */
enum { RENUMBER_MAX = 16, RENUMBER_TEXT_MAX = 65536 };

struct renumbered {
	struct {
		const char *name, *value;
	} item[RENUMBER_MAX];
	int count;
	char text[RENUMBER_TEXT_MAX];
	size_t used;
	bool overflow;
};

/* `environment` is the task's as Slurm made it; `pid` is the program's. Values may point into `go`, which is no
   spare's. False, with a sentence, if there is no room. */
bool renumber(struct renumbered *renumbered, char *const *environment, const struct deal_go *go,
              uint32_t local_task, uint32_t pid, struct error *error);

/* Whether the variable is of PMI or PMIx. A PMI server serves one program of a task only, so a program that is started
   again must not see these variables. `text` is NAME=VALUE. */
bool renumber_hides(const char *text);

/* Begins DDP_KEY in a step, so that the key is known for a step's wherever it is met. */
#define STEP_KEY "step:"

enum { VARIABLES_MAX = 96, VARIABLES_TEXT_MAX = 8192 };

struct variable {
	const char *name;
	const char *value;  /* NULL: the variable is taken out */
	const char *source; /* for people */
};

struct variables {
	struct variable item[VARIABLES_MAX];
	int count;
	char text[VARIABLES_TEXT_MAX]; /* the values */
	size_t used;
	bool overflow;
	const char *unlisted; /* a name that names.c lacks; NULL: none */
};

/* These numbers tell how many CPUs a task has; 0: not known. */
struct cpu_facts {
	uint32_t per_task; /* of the step: 1 also where nobody asked */
	uint32_t asked;    /* SLURM_CPUS_PER_TASK: the step's -c or, without, the job's */
	uint32_t share;    /* the step's CPUs on the node by its tasks there */
	uint32_t bound;    /* CPUs to which the task is bound; 0: to none but its node's */
};

/* The least of what Slurm gives the task, of -c, and of what it is bound to: on a
   node with several threads to a core, whole cores are given, and
   --hint=nomultithread binds to one thread of each. */
uint32_t cpus_of_task(const struct cpu_facts *facts);

/* A task's variables depend on these besides the identity. */
struct task_extras {
	const char *master_address; /* host name or numeric address */
	const char *version;        /* of the plugin */
	const char *key;            /* the step's secret; NULL, or no key, is an error */
	int progress_fd;            /* -1: none */
	const char *nccl_net;       /* where libnccl-net-ddpucx.so is installed */
	const char *python;         /* where slurm_ddp is installed, beside a folder `site` */
	const char *nccl_profiler;  /* where libnccl-profiler-ddp.so is installed */
	struct gpu_view gpu;
	uint32_t restarts_in_step;  /* before the generation, with restart= */
	uint32_t joins;             /* see step_facts */
	uint32_t cpus;              /* cpus_of_task(), for omp=cpus */
	char *const *environment;   /* as the task would have it without us */
	const char *user_threads;   /* OMP_NUM_THREADS as the user has set it; NULL: not */
};

bool environment_build(struct variables *variables, const struct identity *identity,
                       const struct settings *settings, const struct task_extras *extras,
                       struct error *error);

/* Lists the variables of this environment that are of another step. They are to be taken out
   where a step or a job is started. If the environment is a task's, they are ranks that do not
   hold there, the key, which is not to leave its step, and the variables that the plugin has
   derived for the task, such as OMP_NUM_THREADS. Values that a user has set for these variables
   are not among them. */
void environment_leave_step(struct variables *variables, char *const *environment);

/* The variables of a task that is to get none: all names are taken out. */
void environment_clear(struct variables *variables);

/* ---- the places of a task's variables ---- */

/* A room holds the variables of an environment that are to be taken out. SLURM clears 256 KiB for each variable that it
   sets, and so many pages cost a start of many tasks milliseconds. So a value goes into the place of the one before,
   such as srun's word for nodes without the plugin, or of a variable that is taken out, if it is not longer. */
struct room {
	const char *name[VARIABLES_MAX];
	char *text[VARIABLES_MAX]; /* "NAME=VALUE" in the environment; NULL: it has become another variable */
	int count;
};

/* Finds what has no value in `variables`, and is in the environment. */
void room_find(struct room *room, char *const *environment, const struct variables *variables);

/* Sets the variable in the environment. False, and nothing is changed, if there is no place for it. */
bool room_put(struct room *room, char *const *environment, const char *name, const char *value);
