/*
 * metrics: JSON lines, one object per step, each flushed as it is written.
 * The file is appended to, so that a resumed run continues it.
 */
#ifndef DDP_WATCH_METRICS_H
#define DDP_WATCH_METRICS_H

#include "ddp.h"

typedef struct ddp_metrics ddp_metrics;

ddp_status ddp_metrics_open(const char *path, ddp_metrics **metrics);
void ddp_metrics_close(ddp_metrics *metrics); /* NULL is allowed */

/* A failure to write is logged once and ends the metrics, not the training. */
void ddp_metrics_step(ddp_metrics *metrics, const ddp_step_stats *stats);

#endif
