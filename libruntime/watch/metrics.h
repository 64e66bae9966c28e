/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: JSON lines, one object per step, each flushed as it is written.
   A run that begins with step 1 begins a new file: what an earlier run left under
   the name is kept as PATH.1, PATH.2, ... A resumed run goes on with the file; of a
   step that it repeats, the later line counts. A restarted step and a requeued job go on
   with it, too, also if they begin with step 1. */
#pragma once

#include "ddp.h"

typedef struct ddp_metrics ddp_metrics;

ddp_status ddp_metrics_open(const char *path, bool restarted, ddp_metrics **metrics);
void ddp_metrics_close(ddp_metrics *metrics); /* NULL is allowed */

/* A failure to write is logged once and ends the metrics, not the training. */
void ddp_metrics_step(ddp_metrics *metrics, const ddp_step_stats *stats);
