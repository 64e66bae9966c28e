/* SPDX-License-Identifier: Apache-2.0 */
/* comm_shrink: ranks whose communicator breaks, and that go on with what is left of it. */
#pragma once

#include "tests/support/comm_ranks.h"

/* Runs ranks of which some may die. */
void test_run_shrinking(int ranks, const int *node_of, int timeout_ms, int (*body)(ddp_comm *, void *),
                        void *argument);

/* In a rank: breaks the communicator in the way of `status`, with all ranks alive. */
void test_break(ddp_comm *comm, ddp_status status);

/* All ranks but `out` of them, from `first` on, shrink to what they can go on with, where they
   keep their order; and sum over it. */
ddp_comm *test_shrink_to_all_but(ddp_comm *comm, int first, int out);

/* A sum of many numbers, each this rank's `value`. */
void test_expect_sum(ddp_comm *comm, int value, int expected);
