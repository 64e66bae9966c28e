/* Ends a step on all its nodes, from slurmstepd, by way of the controller. */
#ifndef SPANK_KILL_H
#define SPANK_KILL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Asks in a thread, after delay_ms: for SIGKILL, or for SIGTERM first and
 * SIGKILL half a second later. What goes wrong is said to the user. Once in
 * the life of the process. Of a heterogeneous step het_nodes lists all nodes, and
 * its components end, too; else it is NULL.
 */
void kill_start(uint32_t job_id, uint32_t step_id, long delay_ms, bool term_first,
                const char *het_nodes);

/* Waits for the thread, but no longer than that: the .so stays mapped
   (-z nodelete), so a slower controller does no harm. */
void kill_join(int seconds);

#endif
