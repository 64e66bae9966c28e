/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks' work in srun, as the user. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/options/site.h"

/* Before srun has read its options: notes whether it is in an allocation. */
void srun_note_job(void);

/* Once the options are known: whether this srun starts the shell of salloc, which has no ranks. */
bool srun_is_salloc_shell(void);

/* Before srun reads its environment: srun itself sets SLURM_MPI_TYPE later, for the site's MpiDefault. */
void srun_note_environment(void);

/* Once the options are known: listens for the nodes, and puts into the environment
   what the tasks' side needs. `stale`: what launch_list_stale() gave. */
bool srun_begin(struct request *request, const char *stale, struct error *error);

/* A step, or a component of a heterogeneous one, as SLURM numbers it. */
struct srun_step {
	uint32_t job_id, step_id, tasks, nodes;
};

/* Runs ddp-preflight on the nodes of the step that is about to start, if it is to run (preflight=). False: it does
   not let the step start, which was said. The step then starts without programs, and srun exits with 1. */
bool srun_looks_ahead(const struct request *request, const struct srun_step *step, int count, char *words[]);

/* A step, or a component of a heterogeneous one, of so many tasks and nodes is about
   to start.
   Marks it, so that a program on a node without the plugin can tell. False if that fails, or if the step cannot be
   restarted as asked. */
bool srun_take_step(struct request *request, uint32_t job_id, uint32_t step_id, uint32_t tasks,
                    uint32_t nodes, struct error *error);

/* The words that srun is about to launch, in place, of a component of so many tasks. A dry
   run puts others there; false if it cannot. */
bool srun_take_words(const struct request *request, int count, char *words[], uint32_t tasks,
                     struct error *error);

/* Says what is held of a failure. */
void srun_end(void);

/* For on_exit(3). srun's status is the highest of its tasks', and that of a task
   which was ended for another one's failure is 137. Where a failure was said, its
   code is told instead. The handler is to run after all that Slurm and its plugins
   registered. */
void srun_leave_with_first_code(int status, void *unused);
