/* SPDX-License-Identifier: Apache-2.0 */
/* --ddp=check prints this for a task: a row of a table, or JSON. In srun, table_begin() puts a file in memory in the
   place of standard output, and has the process print the rows in order when it exits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "spank/base/text.h"
#include "spank/launch/variables.h"

/* A row for the task, with its newline; false if `bytes` are too few. */
bool check_row(const struct identity *identity, const struct task_extras *extras,
               const struct variables *variables, char *text, size_t bytes);

/* A JSON object for one variable, with its newline: Slurm cuts lines of more
   than 1024 bytes and mixes the pieces of several tasks. The key is shown as
   "(secret)". False if `bytes` are too few, or the variable is taken out. */
bool check_json(const struct identity *identity, const struct variable *variable, char *text,
                size_t bytes);

/* The tasks' rows come to srun in any order. srun's output is kept in memory meanwhile, and printed in order of node
   and rank at the end. */

/* From here on, what is written to standard output is kept; a second call does
   nothing. */
bool table_begin(struct error *error);

/* Prints what was kept; nothing without table_begin(). */
void table_end(void);

/* Puts the rows of check_row() in order, in place; lines that are none come
   first, as they came. False without memory for it. Pure. */
bool table_sort(char *text);
