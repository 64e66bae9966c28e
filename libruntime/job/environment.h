/* SPDX-License-Identifier: Apache-2.0 */
/* environment: the identity that a launcher wrote into the environment, and
   what Slurm's own variables say about it. */
#pragma once

#include "job/job.h"

/* A variable's value; NULL if it is unset or empty. */
const char *ddp_environment(const char *name);

/* Whether RANK or WORLD_SIZE is there, so that ddp_environment_job() decides. */
bool ddp_environment_has_rank(void);

/* RANK and the rest, checked against each other. */
ddp_status ddp_environment_job(ddp_job *job);

/* DDP_KEY; absent is no error. */
ddp_status ddp_environment_key(ddp_key *key);

/* The numbers of job, step and restart, 0 where there are none. */
ddp_status ddp_environment_slurm_ids(ddp_job *job);

/* How often Slurm has started the job again; 0 outside of jobs. DDP_RESTART_COUNT counts the restarts of
   the step, too. */
uint32_t ddp_environment_requeues(void);

/* Errors that Slurm's variables betray: the plugin absent although asked for,
   or another step's variables inherited. */
ddp_status ddp_environment_check_plugin(void);

/* Whether this process may be a world of one, although no launcher says who it
   is: not as one task of several, nor in a batch script without srun. */
ddp_status ddp_environment_check_single(void);

/* Whether this is a step of Slurm's, of which *tasks is the number of tasks. */
bool ddp_environment_step_tasks(int64_t *tasks);
