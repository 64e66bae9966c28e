/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/work: how fast this rank multiplies matrices and moves memory, on its processor, and on its GPU if the
   context has a device. */
#pragma once

#include "preflight/judge_ranks.h"

#include <ddp.h>

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
