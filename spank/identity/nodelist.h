/* SPDX-License-Identifier: Apache-2.0 */
/* Slurm's node list grammar: items parted by commas; an item is text with any
   number of bracketed ranges, such as a[1-3,7]b-[01-10]. The last bracket
   counts fastest. Nothing is allocated, and counting and searching expand
   nothing: a list of ten thousand nodes costs microseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"

enum { HOST_NAME_MAX_BYTES = 256, NODELIST_HOSTS_MAX = 1 << 17 };

/* Called for each host in order; false stops the walk. */
typedef bool (*nodelist_visit)(void *user, const char *host);

/* Walks the list. False, with a sentence, if the list is malformed, empty, or
   holds more than NODELIST_HOSTS_MAX hosts. */
bool nodelist_walk(const char *list, nodelist_visit visit, void *user, struct error *error);

/* The first host; reads no further than the list's first item. */
bool nodelist_first(const char *list, char host[HOST_NAME_MAX_BYTES], struct error *error);

/* Gives the host behind so many others. False, with a sentence, if there is none. */
bool nodelist_at(const char *list, uint32_t index, char host[HOST_NAME_MAX_BYTES], struct error *error);

/* How many hosts there are. Fails as nodelist_walk() does. */
bool nodelist_count(const char *list, uint32_t *count, struct error *error);

/* Whether the list, which nodelist_count() has found good, names the host. */
bool nodelist_has(const char *list, const char *host);

/* Writes the `count` names that `name` gives for 0, 1, ..., in this order, as Slurm does. Neighbours that differ only
   in a number which grows by one become a range: "n[0-2],n7,a". False if the text has no room for it. */
bool nodelist_write(char *text, size_t bytes, uint32_t count,
                    const char *(*name)(const void *user, uint32_t index), const void *user);

/* Whether names with commas between them, and no brackets, have this one; NULL has none. */
bool names_have(const char *names, const char *name);
