/* SPDX-License-Identifier: Apache-2.0 */
/* Writes node lists as Slurm does, in a given order. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the `count` names that `name` gives for 0, 1, ..., in this order. Neighbours that differ only in a number
   which grows by one become a range: "n[0-2],n7,a". False if the text has no room for it. */
bool nodelist_write(char *text, size_t bytes, uint32_t count,
                    const char *(*name)(const void *user, uint32_t index), const void *user);
