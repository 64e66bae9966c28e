/* SPDX-License-Identifier: Apache-2.0 */
#include "base/c_locale.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t c_locale; /* 0: there is no memory for it, or not made yet */
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* This thread's locale until now, for uselocale(). */
static locale_t use_c_locale(void)
{
	pthread_once(&c_locale_once, make_c_locale);
	return uselocale(c_locale);
}

const char *ddp_reason(int error)
{
	pthread_once(&c_locale_once, make_c_locale);
	return c_locale != (locale_t)0 ? strerror_l(error, c_locale) : strerror(error);
}

const char *ddp_lookup_reason(int error)
{
	const locale_t before = use_c_locale();
	const char *reason = gai_strerror(error);

	uselocale(before);
	return reason;
}

const char *ddp_signal_text(int number)
{
	const locale_t before = use_c_locale();
	const char *text = strsignal(number);

	uselocale(before);
	return text;
}

double ddp_read_number(const char *text, char **end)
{
	const locale_t before = use_c_locale();
	const double value = strtod(text, end);
	const int error = errno;

	uselocale(before);
	errno = error;
	return value;
}

bool ddp_parse_number(const char *text, double *value)
{
	char *end;
	const double parsed = ddp_read_number(text, &end);

	if (end == text || *end != '\0' || !isfinite(parsed))
		return false;
	*value = parsed;
	return true;
}

int ddp_format_list(char *text, size_t bytes, const char *format, va_list arguments)
{
	const locale_t before = use_c_locale();
	const int length = vsnprintf(text, bytes, format, arguments);

	uselocale(before);
	return length;
}

int ddp_format(char *text, size_t bytes, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	const int length = ddp_format_list(text, bytes, format, arguments);
	va_end(arguments);
	return length;
}
