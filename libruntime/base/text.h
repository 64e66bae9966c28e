/* SPDX-License-Identifier: Apache-2.0 */
/* Small text helpers: strict numbers, lists of ranks for messages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A decimal number and nothing else (no blank, no sign but '-'), within
   [min, max]. *value is written on success only. */
bool ddp_parse_int64(const char *text, int64_t min, int64_t max, int64_t *value);

/* Copies `text`; false, with an empty `to`, if it does not fit. */
bool ddp_copy_text(char *to, size_t bytes, const char *text);

/* Writes the ranks r of 0 .. count - 1 with listed[r] as "rank 3" or
   "ranks 1, 4-6"; ends in "..." where `bytes` do not suffice. Returns `text`. */
const char *ddp_rank_list(const bool *listed, int count, char *text, size_t bytes);
