/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks' work in slurmstepd, as root, before its tasks run and when they end. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <slurm/spank.h>

#include "spank/identity/master.h"
#include "spank/node/node.h"
#include "spank/options/site.h"
#include "spank/slurmctld/query.h"

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
