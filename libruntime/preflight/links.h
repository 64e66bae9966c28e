/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/links: latency and bandwidth between two nodes, and the distance of their clocks, by messages between the
   first ranks of both. */
#pragma once

#include <ddp.h>

#include "preflight/judge_links.h"

/* Buffers for the measurements of one rank. */
struct preflight_lines;

/* `links` is a communicator of one rank of each node, in order of the nodes. NULL: no memory. */
struct preflight_lines *preflight_lines_open(ddp_comm *links);
void preflight_lines_close(struct preflight_lines *lines);

/* Measures the link to `peer`; both nodes call it. The node with the lower number gets the result; the other one gets
   the nodes' numbers alone. `ms`: how long it may take on a link that is not slow. */
ddp_status preflight_lines_measure(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link);
