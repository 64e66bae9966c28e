/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

void make_printable(char *text)
{
	for (; *text != '\0'; text++)
		if (!isprint((unsigned char)*text))
			*text = '?';
}

bool error_set(struct error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	make_printable(error->text);
	return false;
}
