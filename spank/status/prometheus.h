/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as figures in Prometheus' text format. ddp-status(1) lists them. Pure. */
#ifndef STATUS_PROMETHEUS_H
#define STATUS_PROMETHEUS_H

#include <stdbool.h>
#include <stdio.h>

#include "spank/status/row.h"

/*
 * `now` is the time, in seconds since 1970. `node` is the node that the figures are of; NULL: they are of a job. Of two
 * rows with one rank the first counts, because Prometheus refuses a text that has a figure twice. False: no memory, or
 * the file took not all.
 */
bool prometheus_write(FILE *file, const struct row *rows, size_t count, const char *node, double now);

#endif
