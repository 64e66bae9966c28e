/* SPDX-License-Identifier: Apache-2.0 */
/* context_ranks: runs a test's body on local ranks, each a process with a context. */
#pragma once

#include "context.h"
#include "ddp.h"
#include "tests/support/ranks.h"

/* Returns 0 when all is as wanted; a failed CHECK() prints and ends the rank. The
   context is finalized after it. */
typedef int (*rank_body)(ddp_context *context, void *user);

/* Runs `body` on `ranks` ranks of ddp_spawn(); the exit code of the first that
   fails, or 0. Call it from a process without threads. */
int run_ranks(int ranks, rank_body body, void *user);
/* The same with options for ddp_init(). */
int run_ranks_with(int ranks, const ddp_options *options, rank_body body, void *user);
/* The same on pretended nodes, as in a test_world of comm_ranks.h; 0 if this build refuses several. NULL:
   run_ranks(). */
int run_ranks_on(const int *node_of, int ranks, rank_body body, void *user);
/* Of up to four ranks: the first and the last are on one, the others on another. */
extern const int two_nodes[4];

/* For a rank of comm_ranks: what a model needs. The caller closes its `watch`. */
ddp_context test_context_of(ddp_comm *comm);

/* Fails unless this is the name of the strategy by which the model is reduced, and its summary says what that spreads. */
void check_strategy(const ddp_model *model, const char *name);
