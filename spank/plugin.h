/* SPDX-License-Identifier: Apache-2.0 */
/* srun.c, stepd.c and task.c do this for the callbacks of plugin.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <slurm/spank.h>

#include "spank/identity/master.h"
#include "spank/node/node.h"
#include "spank/options/site.h"
#include "spank/slurmctld/query.h"

/* ---- srun.c: the callbacks' work in srun, as the user ---- */

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

/* ---- stepd.c: in slurmstepd, as root, before its tasks run and when they end ---- */

/* A copy of Slurm's handle of a task tells what Slurm knows of the task, once the callback that was
   given the handle is over. */
struct stepd_handle {
	_Alignas(16) unsigned char bytes[128];
	bool good;
};

/* The tasks, which are forked from slurmstepd, begin with a copy of it. */
struct stepd {
	struct request *request;
	bool normal_step;   /* not the batch script, extern or interactive step */
	struct node_address master; /* for addr=ip */
	uint32_t affinity;  /* CPUs of slurmstepd, before tasks are bound */
	char user_threads[64]; /* OMP_NUM_THREADS as the user has set it; "": not */
	bool daemon;        /* an MPI launcher's: it gets nothing */
	bool container_wins; /* plugstack.conf names Pyxis behind this plugin */
	bool no_witness;    /* it would be waited for */
	int log_control;    /* of ddp-log; -1: there is none */
	struct node node;
	struct kill_alone alone; /* how this node asks for the step's end itself; job_id 0: not at all */
	uint32_t node_id, node_count;
	struct stepd_handle *handles; /* by local task; NULL: none */
};

/* Nothing fails here: what is wrong is kept in request->error for the tasks to say. */
void stepd_begin(spank_t spank, struct stepd *stepd);
/* A task was forked, or was reaped. */
void stepd_take_fork(spank_t spank, struct stepd *stepd);
void stepd_take_end(spank_t spank, struct stepd *stepd);
/* The step has ended on this node: a line for slurmd's log. */
void stepd_log(spank_t spank, const struct stepd *stepd);
/* slurmstepd ends. */
void stepd_end(struct stepd *stepd);

/* ---- task.c: in a task, as the user, just before the program ---- */

/* Writes the task's environment. Ends the process after an error: in a
   plugstack.conf that calls the plugin optional, Slurm would run the program
   without ranks. */
void task_begin(spank_t spank, struct stepd *stepd);
