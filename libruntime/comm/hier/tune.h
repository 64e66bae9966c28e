/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/tune: what the network between nodes does, measured once a communicator and
   agreed on by all ranks; and the choice among the algorithms that are possible
   (comm/hier/algorithms), by what they cost, so that all ranks choose alike.

   DDP_ALGORITHM of the environment overrules the choice, for tests and measurements: a list
   of names of that table with commas between, of which each operation takes the first that it can.
   An unknown name is an error when the world is opened, as is a list that is not the same on all
   ranks; an operation that can take none of the list ends the communicator. Two nodes leave one
   algorithm to each operation. */
#pragma once

#include "comm/hier/reduction.h"

/* Measures the network, the first time that it matters to an operation of
   `bytes` on each rank. Collective, after ddp_node_enter(). */
ddp_status ddp_hier_tune(ddp_comm *comm, size_t bytes);
/* All ranks choose the same. The name becomes that of the communicator's last algorithm. */
ddp_status ddp_hier_choose(const ddp_reduction *x, const ddp_algorithm_row **algorithm);
/* Reads what DDP_ALGORITHM holds; "" asks for nothing. */
ddp_status ddp_hier_want(const char *list, ddp_wanted_list *wanted);
