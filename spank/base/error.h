/* SPDX-License-Identifier: Apache-2.0 */
/* One sentence about what went wrong, handed up by the pure core. */
#pragma once

#include <stdbool.h>

struct error {
	char text[640];
};

/* Puts '?' for bytes that would let a user's text forge lines of slurmd's log,
   or command a terminal. */
void make_printable(char *text);

/* Writes the sentence and returns false, so that callers can
   `return error_set(...)`. The text is cut, never overrun, and printable. */
bool error_set(struct error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
