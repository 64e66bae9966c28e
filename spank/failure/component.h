/* The jobs over which a heterogeneous step spreads, as slurmctld knows them. */
#ifndef SPANK_COMPONENT_H
#define SPANK_COMPONENT_H

#include <stdint.h>

enum { COMPONENTS_MAX = 128 };

/*
 * Writes job_id and the other components of its heterogeneous job that have
 * nodes in step_nodes, and returns how many there are: 1 where the job is no
 * such job, or the controller does not answer. Two requests to the controller:
 * what the environment says of other jobs is the user's word, and root's
 * slurmstepd acts on the answer. Of that word step_nodes can but leave
 * components out.
 */
int component_jobs(uint32_t job_id, const char *step_nodes, uint32_t jobs[COMPONENTS_MAX]);

#endif
