/* SPDX-License-Identifier: Apache-2.0 */
/* srun's side of restart=: brings together the plan (plan.h), the nodes' links, and what the relay knows of the step's
   end. The plan works in the relay's thread (srun/relay_srun.h). libc only; there is one step in a process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/srun/links.h"
#include "spank/srun/plan.h"
#include "spank/srun/step.h"
#include "spank/wire/channel.h"

/* Sets how the step is restarted. To be called before the relay is opened. */
void dealer_open(const struct plan_policy *policy);
bool dealer_is_open(void);

/* relay_actions calls these. */
extern const struct relay_restart dealer_restart;
void dealer_take_frame(uint32_t link, const struct frame *frame);
void dealer_take_link(uint32_t link, enum links_event event);

/* Sets the nodes that are to wait as spares, if others wait (plan_policy). The list is the dealer's from now on. Before
   dealer_begin(). */
void dealer_avoid(char *odd_nodes);

/* Tells, before Slurm launches the step, how many nodes and tasks it has, and how many spares, and nodes at least,
   which roster_fits() takes. False without memory. */
bool dealer_begin(uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes, struct error *error);

/* After the relay is closed. */
void dealer_close(void);

/* Whether all ranks of the last generation have ended well. SLURM's own exit status also counts nodes that were
   replaced. */
bool dealer_has_succeeded(void);
