/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/nodelist.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMENSIONS_MAX = 8, DIGITS_MAX = 18 };

/* One number of a bracket, or a range of them, with its width in digits. */
struct range {
	uint64_t low, high;
	size_t width;
};

/* One bracket of the item under way: its text, where it stands, its number. */
struct dimension {
	const char *text;   /* behind '[' */
	const char *next;   /* the range behind the present one */
	struct range range; /* the present range */
	uint64_t number;    /* the present number of it */
};

struct item {
	const char *text;
	size_t length;
	int dimensions;
	struct dimension dimension[DIMENSIONS_MAX];
};

static bool is_host_byte(char c)
{
	unsigned char u = (unsigned char)c;

	return isalnum(u) || c == '-' || c == '_' || c == '.';
}

static bool malformed(const char *list, const char *where, const char *reason, struct error *error)
{
	return error_set(error, "node list '%.80s%s' is malformed at byte %zu: %s", list,
	                 strlen(list) > 80 ? "..." : "", (size_t)(where - list) + 1, reason);
}

/* Digits, at most DIGITS_MAX of them; returns how many, 0 if none or too many. */
static size_t read_digits(const char *text, uint64_t *number)
{
	size_t width = 0;

	*number = 0;
	while (isdigit((unsigned char)text[width])) {
		if (width == DIGITS_MAX)
			return 0;
		*number = *number * 10 + (uint64_t)(text[width] - '0');
		width++;
	}
	return width;
}

/* Reads "7" or "01-10"; returns what stands behind it, NULL if malformed. */
static const char *read_range(const char *text, struct range *range)
{
	size_t width = read_digits(text, &range->low);

	if (width == 0)
		return NULL;
	range->width = width;
	range->high = range->low;
	text += width;
	if (*text != '-')
		return text;
	text++;
	width = read_digits(text, &range->high);
	if (width == 0 || range->high < range->low)
		return NULL;
	return text + width;
}

static void start_range(struct dimension *dimension, const char *text)
{
	const char *end = read_range(text, &dimension->range);

	dimension->number = dimension->range.low;
	dimension->next = *end == ',' ? end + 1 : NULL;
}

/* Checks the item that starts at `text` and notes its brackets. */
static bool open_item(const char *list, const char *text, struct item *item, struct error *error)
{
	const char *p = text;

	item->text = text;
	item->dimensions = 0;
	while (*p != '\0' && *p != ',') {
		if (*p != '[') {
			if (!is_host_byte(*p))
				return malformed(list, p, "a byte that no host name has", error);
			p++;
			continue;
		}
		if (item->dimensions == DIMENSIONS_MAX)
			return malformed(list, p, "more than 8 brackets in one item", error);
		item->dimension[item->dimensions].text = p + 1;
		do {
			struct range range;
			const char *end = read_range(p + 1, &range);
			if (end == NULL)
				return malformed(list, p + 1, "a number or a rising range is expected", error);
			p = end;
		} while (*p == ',');
		if (*p != ']')
			return malformed(list, p, "']' is expected", error);
		start_range(&item->dimension[item->dimensions], item->dimension[item->dimensions].text);
		item->dimensions++;
		p++;
	}
	item->length = (size_t)(p - text);
	if (item->length == 0)
		return malformed(list, p, "a host is expected", error);
	return true;
}

/* Writes the item's present host. False if it is too long for a host name. */
static bool write_host(const struct item *item, char host[HOST_NAME_MAX_BYTES])
{
	const char *p = item->text;
	const char *end = item->text + item->length;
	size_t used = 0;
	int dimension = 0;

	while (p < end && used < HOST_NAME_MAX_BYTES) {
		char digits[DIGITS_MAX + 1];
		size_t count = 0;
		uint64_t number;

		if (*p != '[') {
			host[used++] = *p++;
			continue;
		}
		number = item->dimension[dimension].number;
		do {
			digits[count++] = (char)('0' + number % 10);
			number /= 10;
		} while (number > 0);
		while (count < item->dimension[dimension].range.width)
			digits[count++] = '0';
		while (count > 0 && used < HOST_NAME_MAX_BYTES)
			host[used++] = digits[--count];
		dimension++;
		p = (const char *)memchr(p, ']', (size_t)(end - p)) + 1;
	}
	if (used == HOST_NAME_MAX_BYTES)
		return false;
	host[used] = '\0';
	return true;
}

/* Moves to the item's next host; false behind the last. */
static bool advance(struct item *item)
{
	for (int i = item->dimensions - 1; i >= 0; i--) {
		struct dimension *dimension = &item->dimension[i];
		if (dimension->number < dimension->range.high) {
			dimension->number++;
			return true;
		}
		if (dimension->next != NULL) {
			start_range(dimension, dimension->next);
			return true;
		}
		start_range(dimension, dimension->text);
	}
	return false;
}

bool nodelist_walk(const char *list, nodelist_visit visit, void *user, struct error *error)
{
	char host[HOST_NAME_MAX_BYTES];
	struct item item;
	uint32_t hosts = 0;

	if (list == NULL || list[0] == '\0')
		return error_set(error, "the node list is empty");
	for (const char *p = list;; p = item.text + item.length + 1) {
		if (!open_item(list, p, &item, error))
			return false;
		do {
			if (++hosts > NODELIST_HOSTS_MAX)
				return error_set(error, "the node list has more than %d hosts",
				                 NODELIST_HOSTS_MAX);
			if (!write_host(&item, host))
				return malformed(list, p, "a host name of more than 255 bytes", error);
			if (!visit(user, host))
				return true;
		} while (advance(&item));
		if (item.text[item.length] == '\0')
			return true;
	}
}

static bool take_first(void *user, const char *host)
{
	memcpy(user, host, strlen(host) + 1);
	return false;
}

bool nodelist_first(const char *list, char host[HOST_NAME_MAX_BYTES], struct error *error)
{
	return nodelist_walk(list, take_first, host, error);
}

/* The hosts of an item: the product of its brackets, NODELIST_HOSTS_MAX + 1
   standing for any number beyond. */
static uint64_t count_item(const struct item *item)
{
	uint64_t product = 1;

	for (int i = 0; i < item->dimensions; i++) {
		const char *p = item->dimension[i].text;
		uint64_t sum = 0;
		struct range range;
		while ((p = read_range(p, &range)) != NULL) {
			sum += range.high - range.low + 1;
			if (sum > NODELIST_HOSTS_MAX)
				return NODELIST_HOSTS_MAX + 1;
			if (*p++ != ',')
				break;
		}
		product *= sum;
		if (product > NODELIST_HOSTS_MAX)
			return NODELIST_HOSTS_MAX + 1;
	}
	return product;
}

bool nodelist_count(const char *list, uint32_t *count, struct error *error)
{
	struct item item;
	uint64_t hosts = 0;

	if (list == NULL || list[0] == '\0')
		return error_set(error, "the node list is empty");
	for (const char *p = list;; p = item.text + item.length + 1) {
		if (!open_item(list, p, &item, error))
			return false;
		hosts += count_item(&item);
		if (hosts > NODELIST_HOSTS_MAX)
			return error_set(error, "the node list has more than %d hosts", NODELIST_HOSTS_MAX);
		if (item.text[item.length] == '\0')
			break;
	}
	*count = (uint32_t)hosts;
	return true;
}

/* A host against an item: `failed` keeps what was tried in vain, so that
   adjoining brackets cannot make the search explode. */
struct match {
	const char *end;  /* of the item */
	const char *host;
	bool failed[DIMENSIONS_MAX][HOST_NAME_MAX_BYTES];
};

static bool match_rest(struct match *match, const char *p, size_t at, int dimension);

/* Whether the bracket can take `width` digits of the host. */
static bool bracket_takes(const char *p, const char *digits, size_t width)
{
	char text[DIGITS_MAX + 1];
	struct range range;
	uint64_t number;

	memcpy(text, digits, width);
	text[width] = '\0';
	if (read_digits(text, &number) != width)
		return false;
	while ((p = read_range(p, &range)) != NULL) {
		/* Leading zeros only as far as the range's own width asks. */
		bool written_so = width == range.width || (width > range.width && text[0] != '0');
		if (written_so && number >= range.low && number <= range.high)
			return true;
		if (*p++ != ',')
			break;
	}
	return false;
}

static bool match_bracket(struct match *match, const char *p, size_t at, int dimension)
{
	const char *behind = (const char *)memchr(p, ']', (size_t)(match->end - p)) + 1;
	size_t left = strnlen(match->host + at, DIGITS_MAX);

	if (match->failed[dimension][at])
		return false;
	for (size_t width = 1; width <= left; width++)
		if (bracket_takes(p, match->host + at, width) &&
		    match_rest(match, behind, at + width, dimension + 1))
			return true;
	match->failed[dimension][at] = true;
	return false;
}

static bool match_rest(struct match *match, const char *p, size_t at, int dimension)
{
	for (; p < match->end; p++, at++) {
		if (*p == '[')
			return match_bracket(match, p + 1, at, dimension);
		if (match->host[at] != *p)
			return false;
	}
	return match->host[at] == '\0';
}

bool nodelist_has(const char *list, const char *host)
{
	struct error ignored;
	struct item item;

	if (host[0] == '\0' || strlen(host) >= HOST_NAME_MAX_BYTES)
		return false;
	for (const char *p = list; open_item(list, p, &item, &ignored); p += item.length + 1) {
		/* Most items differ from the host before their first bracket. */
		if (item.dimensions == 0) {
			if (strlen(host) == item.length && memcmp(p, host, item.length) == 0)
				return true;
		} else if (p[0] == '[' || p[0] == host[0]) {
			struct match match = { .end = p + item.length, .host = host };
			if (match_rest(&match, p, 0, 0))
				return true;
		}
		if (p[item.length] == '\0')
			break;
	}
	return false;
}

struct search {
	uint32_t left;
	char *host;
	bool found;
};

static bool count_down(void *user, const char *host)
{
	struct search *search = user;

	if (search->left-- > 0)
		return true;
	memcpy(search->host, host, strlen(host) + 1);
	search->found = true;
	return false;
}

bool nodelist_at(const char *list, uint32_t index, char host[HOST_NAME_MAX_BYTES], struct error *error)
{
	struct search search = { .left = index, .host = host };

	return nodelist_walk(list, count_down, &search, error) &&
	       (search.found || error_set(error, "'%.80s' has no %u hosts", list, index + 1));
}

/* ---- writing ---- */

enum { WRITTEN_DIGITS_MAX = 9 };

/* A name whose last digits are a number. */
struct numbered {
	size_t prefix;  /* bytes before the digits */
	size_t digits;  /* 0: there are none */
	unsigned long number;
};

static struct numbered split(const char *name)
{
	struct numbered split = { .prefix = strlen(name) };

	while (split.prefix > 0 && split.digits < WRITTEN_DIGITS_MAX && isdigit((unsigned char)name[split.prefix - 1])) {
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

bool names_have(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = names; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
		if (length > 0 && strcspn(at, ",") == length && memcmp(at, name, length) == 0)
			return true;
	return false;
}
