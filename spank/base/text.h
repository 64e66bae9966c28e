/* SPDX-License-Identifier: Apache-2.0 */
/* Texts: a sink, which puts a text together piece by piece, and an error, which is one sentence. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* A buffer of fixed size. Its text is cut at the end, never overrun, and always terminated. */
struct sink {
	char *text;
	size_t bytes, used; /* `used` leaves out the terminator */
	bool full;          /* something was cut */
};

/* An empty text in `bytes` of the caller's, at least one. */
struct sink sink_on(char *text, size_t bytes);

/* Later text is added behind the text that is there. */
struct sink sink_behind(char *text, size_t bytes);

void sink_add(struct sink *sink, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Adds `size` bytes, or as far as the first NUL, with '?' for what is not
   printable: for texts that are not to be trusted. */
void sink_add_untrusted(struct sink *sink, const char *bytes, size_t size);

/* Writes a text with its terminator behind the first `*used` of `bytes` bytes, and adds it to `*used`. NULL: it does
   not fit. */
char *sink_keep(char *text, size_t bytes, size_t *used, const char *format, va_list arguments)
	__attribute__((format(printf, 4, 0)));

/* Writes the text, or as much as the descriptor takes, and returns how many bytes that were. If these are fewer, errno
   tells why. */
size_t text_write(int fd, const char *text, size_t bytes);

/* One sentence about what went wrong, handed up by the pure core. */
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
