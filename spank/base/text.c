/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct sink sink_on(char *text, size_t bytes)
{
	text[0] = '\0';
	return (struct sink){ .text = text, .bytes = bytes };
}

struct sink sink_behind(char *text, size_t bytes)
{
	return (struct sink){ .text = text, .bytes = bytes, .used = strnlen(text, bytes - 1) };
}

void sink_add(struct sink *sink, const char *format, ...)
{
	size_t room = sink->bytes - sink->used;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(sink->text + sink->used, room, format, arguments);
	va_end(arguments);
	sink->full |= length < 0 || (size_t)length >= room;
	if (length > 0)
		sink->used += (size_t)length < room ? (size_t)length : room - 1;
}

void sink_add_untrusted(struct sink *sink, const char *bytes, size_t size)
{
	for (size_t i = 0; i < size && bytes[i] != '\0'; i++)
		sink_add(sink, "%c", isprint((unsigned char)bytes[i]) ? bytes[i] : '?');
}

char *sink_keep(char *text, size_t bytes, size_t *used, const char *format, va_list arguments)
{
	size_t room = bytes - *used;
	int length = vsnprintf(text + *used, room, format, arguments);

	if (length < 0 || (size_t)length >= room)
		return NULL;
	text += *used;
	*used += (size_t)length + 1;
	return text;
}

size_t text_write(int fd, const char *text, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = write(fd, text + done, bytes - done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			errno = EIO;
		if (got <= 0)
			break;
		done += (size_t)got;
	}
	return done;
}

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
