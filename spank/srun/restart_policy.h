/* SPDX-License-Identifier: Apache-2.0 */
/* srun settles restart=, spare= and min-nodes= before the step begins. A user's that do not fit the step are refused; a
   site's do not count then. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/launch/srun_options.h"
#include "spank/options/site.h"

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
