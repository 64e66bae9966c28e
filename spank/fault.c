#include "spank/fault.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

void make_printable(char *text)
{
	for (; *text != '\0'; text++)
		if (!isprint((unsigned char)*text))
			*text = '?';
}

bool fault_set(struct fault *fault, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	make_printable(fault->text);
	return false;
}
