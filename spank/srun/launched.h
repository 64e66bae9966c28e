/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tasks Slurm has started, as srun knows it. No callback of a plugin tells this, but srun keeps a table
 * of the tasks for debuggers (MPIR_proctable of the MPIR interface). libc only.
 */
#pragma once

#include <stdint.h>

#include "spank/srun/presence.h"

/* How many tasks the step has, over all components; 0: srun does not know yet, or has no
   table. */
uint32_t launched_tasks(void);

/* Tells presence_start() of what is new. Safe while srun changes or frees the table; does
   nothing where there is none. */
void launched_look(struct presence *presence, uint64_t now_ns);
