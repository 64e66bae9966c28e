/* SPDX-License-Identifier: Apache-2.0 */
/* The line about a step in a node's own log: what has run there, and how that ended. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "spank/node/supervise.h"

/* "step 7.0: ranks 2 to 3 of 4 on n1: rank 3 exited with code 7 first, and 1 more did not end
   well; plugin 0.2". Printable bytes only, and nothing that a user chose. */
void journal_step(const struct supervise *supervise, uint32_t job_id, uint32_t step_id,
                  const char *version, char *text, size_t bytes);
