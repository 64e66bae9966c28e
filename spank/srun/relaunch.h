/* SPDX-License-Identifier: Apache-2.0 */
/* SLURM ends a step that it cannot start on each of its nodes, because slurmd does not answer there, or the Prolog
   fails. With restart= and enough nodes, srun then starts itself again: no node can join a step later, so another one
   begins. If srun has made the job for the step, that job has ended too, and srun asks for another one without the
   nodes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/launch/srun_options.h"
#include "spank/options/site.h"
#include "spank/srun/presence.h"

struct relaunch_step {
	uint32_t nodes, tasks, spares, min_nodes;
	uint32_t jobs;    /* so many more srun may ask for */
	uint32_t own_job; /* that srun has made for the step; 0: the job goes on */
	bool may_go_on;   /* in another step */
};

/* When srun begins: notes where its input begins, and takes what the srun before it has left for it, so that no task
   and no other srun gets that. */
void relaunch_begin(void);

/* How many spares and further jobs are left, if an srun before this one has left nodes out; otherwise as it is. */
void relaunch_take_rest(uint32_t *spares, uint32_t *jobs);

/* At srun's very end: if there are nodes of the step on which no task has begun, names them, and starts srun again,
   unless end_signal_came(). False: there are none. True: srun was not started again. */
bool relaunch_unstarted(const struct relaunch_step *step, const struct presence *presence,
                        const struct srun_words *given);

/* ---- restart=, spare= and min-nodes=, which srun settles before the step begins. A user's that do not fit the step
   are refused; a site's do not count then. ---- */

struct restart_policy_facts {
	const struct srun_words *given;
	const char *mpi;      /* SLURM_MPI_TYPE of the user; "": not set */
	bool later_component; /* the step has another component, whose options were taken */
	bool starts_daemon;   /* of an MPI launcher */
};

/* By srun's words and the site's configuration. Opens the dealer, if the step can be restarted. */
bool restart_policy_decide(struct request *request, const struct restart_policy_facts *facts, struct error *error);

/* srun has no port on which the nodes reach it. */
bool restart_policy_without_port(struct settings *settings, struct error *error);

/* The step has so many nodes and tasks. */
bool restart_policy_fit(struct settings *settings, uint32_t nodes, uint32_t tasks, struct error *error);
