/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dry run's table, in srun: the tasks' rows come in any order. srun's output is
 * kept in memory meanwhile, and printed in order of node and rank at the end.
 */
#pragma once

#include <stdbool.h>

#include "spank/base/error.h"

/* From here on, what is written to standard output is kept; a second call does
   nothing. */
bool table_begin(struct error *error);

/* Prints what was kept; nothing without table_begin(). */
void table_end(void);

/* Puts the rows of check_row() in order, in place; lines that are none come
   first, as they came. False without memory for it. Pure. */
bool table_sort(char *text);
