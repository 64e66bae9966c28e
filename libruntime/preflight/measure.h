/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/measure: how fast a rank works, and the links between nodes. */
#pragma once

#include <ddp.h>

#include "preflight/judge_links.h"
#include "preflight/judge_ranks.h"

/* ---- latency and bandwidth between two nodes, and the distance of their clocks, by messages between the first ranks
   of both ---- */

/* Buffers for the measurements of one rank. */
struct preflight_lines;

/* `links` is a communicator of one rank of each node, in order of the nodes. NULL: no memory. */
struct preflight_lines *preflight_lines_open(ddp_comm *links);
void preflight_lines_close(struct preflight_lines *lines);

/* Measures the link to `peer`; both nodes call it. The node with the lower number gets the result; the other one gets
   the nodes' numbers alone. `ms`: how long it may take on a link that is not slow. */
ddp_status preflight_lines_measure(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link);

/* ---- how fast this rank multiplies matrices and moves memory, on its processor, and on its GPU if the context has a
   device ---- */

/* Matrices, arrays, and the queue of a GPU. */
struct preflight_bench;

/* Makes them for so many threads; the same number on all ranks, so that results can be compared. `gpu`: the context
   has a device; `small`: it gets little work. NULL: there is no memory, or the GPU
   cannot be used (ddp_last_error()). */
struct preflight_bench *preflight_bench_open(ddp_context *context, int threads, bool gpu, bool small);
void preflight_bench_close(struct preflight_bench *bench);

bool preflight_bench_has(const struct preflight_bench *bench, enum preflight_work work);

/* Works for so long, and at least for three slices. */
struct preflight_figure preflight_bench_run(struct preflight_bench *bench, enum preflight_work work, int ms);
