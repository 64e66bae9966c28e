/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/nodelist_write.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/text.h"

enum { DIGITS_MAX = 9 };

/* A name whose last digits are a number. */
struct numbered {
	size_t prefix;  /* bytes before the digits */
	size_t digits;  /* 0: there are none */
	unsigned long number;
};

static struct numbered split(const char *name)
{
	struct numbered split = { .prefix = strlen(name) };

	while (split.prefix > 0 && split.digits < DIGITS_MAX && isdigit((unsigned char)name[split.prefix - 1])) {
		split.prefix--;
		split.digits++;
	}
	if (split.digits > 0)
		split.number = strtoul(name + split.prefix, NULL, 10);
	return split;
}

/* Whether `next` follows `name` in a range. */
static bool follows(const char *name, const char *next)
{
	struct numbered a = split(name), b = split(next);

	return a.digits > 0 && a.digits == b.digits && a.prefix == b.prefix && b.number == a.number + 1 &&
	       memcmp(name, next, a.prefix) == 0;
}

bool nodelist_write(char *text, size_t bytes, uint32_t count,
                    const char *(*name)(const void *user, uint32_t index), const void *user)
{
	struct sink sink = sink_on(text, bytes);

	for (uint32_t i = 0; i < count && !sink.full; i++) {
		const char *first = name(user, i), *last = first;
		size_t prefix = split(first).prefix;
		sink_add(&sink, "%s", i > 0 ? "," : "");
		for (; i + 1 < count && follows(last, name(user, i + 1)); i++)
			last = name(user, i + 1);
		if (last == first)
			sink_add(&sink, "%s", first);
		else
			sink_add(&sink, "%.*s[%s-%s]", (int)prefix, first, first + prefix, last + prefix);
	}
	return !sink.full;
}
