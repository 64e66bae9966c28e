/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a step on all its nodes, by way of the controller. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "spank/witness/witness.h"

/* Asks once, and says to the user what goes wrong. That the step has ended
   meanwhile is as it should be. The components of a heterogeneous step are steps of the
   same number in jobs of their own; the first one's job stands for all. */
void kill_step(uint32_t job_id, uint32_t step_id);

/* A node whose srun does not answer asks for this. */
struct kill_alone {
	uint32_t job_id, step_id;
	long delay_ms;
	bool heterogeneous;            /* the step has components in other jobs, which end, too */
	const struct witness *witness; /* its end tells that somebody else has asked, */
	const atomic_bool *witness_lost; /* unless it was not Slurm that has killed it */
	bool with_tasks;               /* not once the node's own tasks have ended */
};

/* Asks in a thread, once in the life of the process. In a contained callback (child.h) it asks
   before it returns, and does not ask at all `with_tasks`. */
void kill_start_alone(const struct kill_alone *request);

/* Before the witness goes: waits for the thread as long as timeline.h says. The
   .so stays mapped (-z nodelete), so a slower controller does no harm. */
void kill_finish_alone(void);
