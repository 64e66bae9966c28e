/* SPDX-License-Identifier: Apache-2.0 */
/* A node keeps account of those of its ranks for which other ranks have waited: they still run, or they have
   ended without a report. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/node/supervise.h"

/* Whether `rank` is one of the node's. */
bool blame_is_local(const struct supervise *supervise, uint32_t rank);

/* Says what `rank` does, or how it had ended (see blame_describe()). False: it is
   not of this node, or its end has a report of its own. */
bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes);

/* Says which task of the node had ended with code 0. False: none. */
bool blame_early_end(const struct supervise *supervise, uint64_t now_ns, char *text, size_t bytes);
