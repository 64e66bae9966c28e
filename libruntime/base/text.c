/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ddp_parse_int64(const char *text, int64_t min, int64_t max, int64_t *value)
{
	const char *digits = text[0] == '-' ? text + 1 : text;
	char *end;

	if (digits[0] < '0' || digits[0] > '9')
		return false;
	errno = 0;
	long long parsed = strtoll(text, &end, 10);
	if (errno != 0 || *end != '\0' || parsed < min || parsed > max)
		return false;
	*value = parsed;
	return true;
}

bool ddp_copy_text(char *to, size_t bytes, const char *text)
{
	size_t length = strlen(text);

	to[0] = '\0';
	if (length >= bytes)
		return false;
	memcpy(to, text, length + 1);
	return true;
}

/* Appends unless that would leave no room for "...". */
static bool append(char *text, size_t bytes, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static bool append(char *text, size_t bytes, const char *format, ...)
{
	static const char more[] = ", ...";
	char piece[48];
	size_t used = strlen(text);
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(piece, sizeof(piece), format, arguments);
	va_end(arguments);
	if (used + (size_t)length + sizeof(more) <= bytes) {
		memcpy(text + used, piece, (size_t)length + 1);
		return true;
	}
	snprintf(text + used, bytes - used, "%s", more);
	return false;
}

const char *ddp_rank_list(const bool *listed, int count, char *text, size_t bytes)
{
	int total = 0;
	bool first = true;

	for (int r = 0; r < count; r++)
		total += listed[r];
	snprintf(text, bytes, "%s", total == 1 ? "rank" : "ranks");
	for (int r = 0; r < count; r++) {
		if (!listed[r])
			continue;
		int last = r;
		while (last + 1 < count && listed[last + 1])
			last++;
		bool fits = last > r
			? append(text, bytes, "%s %d-%d", first ? "" : ",", r, last)
			: append(text, bytes, "%s %d", first ? "" : ",", r);
		if (!fits)
			break;
		first = false;
		r = last;
	}
	return text;
}
