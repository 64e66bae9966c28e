/* One sentence about what went wrong, handed up by the pure core. */
#ifndef SPANK_FAULT_H
#define SPANK_FAULT_H

#include <stdbool.h>

struct fault {
	char text[640];
};

/* Puts '?' for bytes that would let a user's text forge lines of slurmd's log,
   or command a terminal. */
void make_printable(char *text);

/* Writes the sentence and returns false, so that callers can
   `return fault_set(...)`. The text is cut, never overrun, and printable. */
bool fault_set(struct fault *fault, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
