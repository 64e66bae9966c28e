/* SPDX-License-Identifier: Apache-2.0 */
/* The names that options have for optimizers and schedules: the library's, in small letters. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <strings.h>

#include <ddp.h>

/* The name of number i of a list; NULL: there is no such number. */
typedef const char *recipe_name(int i);

static inline const char *optimizer_name(int i)
{
	return ddp_optimizer_name((ddp_optimizer)i);
}

static inline const char *schedule_name(int i)
{
	return ddp_schedule_kind_name((ddp_schedule_kind)i);
}

/* Which number of the list `text` is; -1: none. */
static inline int recipe_of(recipe_name *name, const char *text)
{
	for (int i = 0; name(i) != NULL; i++) {
		if (strcasecmp(name(i), text) == 0)
			return i;
	}
	return -1;
}

/* "adamw, sgd, ... or muon" */
static inline const char *recipe_list(recipe_name *name, char *text, size_t bytes)
{
	size_t used = 0;

	for (int i = 0; name(i) != NULL && used < bytes; i++)
		used += (size_t)snprintf(text + used, bytes - used, "%s%s", i == 0 ? "" : name(i + 1) != NULL ? ", " : " or ", name(i));
	for (char *c = text; *c != '\0'; c++) {
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	}
	return text;
}
