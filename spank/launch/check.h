/* SPDX-License-Identifier: Apache-2.0 */
/* --ddp=check prints this for a task: a row of a table, or JSON. */
#pragma once

#include <stddef.h>

#include "spank/launch/variables.h"

/* A row for the task, with its newline; false if `bytes` are too few. */
bool check_row(const struct identity *identity, const struct task_extras *extras,
               const struct variables *variables, char *text, size_t bytes);

/*
 * A JSON object for one variable, with its newline: Slurm cuts lines of more
 * than 1024 bytes and mixes the pieces of several tasks. The key is shown as
 * "(secret)". False if `bytes` are too few, or the variable is taken out.
 */
bool check_json(const struct identity *identity, const struct variable *variable, char *text,
                size_t bytes);

/* Writes the whole text, or as much as the descriptor takes. */
void check_write(int fd, const char *text);
