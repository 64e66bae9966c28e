/* SPDX-License-Identifier: Apache-2.0 */
/* c_locale: numbers and reasons as text, in the same form whatever setlocale() the program has
   called: with a point, and in English. What this process writes (a checkpoint's metadata, a metrics
   line, a message), any other one reads. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* strtod(). */
double ddp_read_number(const char *text, char **end);

/* A finite number and nothing else. *value is written on success only. */
bool ddp_parse_number(const char *text, double *value);

/* strerror(), from any thread. */
const char *ddp_reason(int error);

/* gai_strerror(). */
const char *ddp_lookup_reason(int error);

/* strsignal(). */
const char *ddp_signal_text(int number);

/* vsnprintf() and snprintf(). */
int ddp_format_list(char *text, size_t bytes, const char *format, va_list arguments)
	__attribute__((format(printf, 3, 0)));
int ddp_format(char *text, size_t bytes, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
