/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/site.h"

#include <stdio.h>
#include <string.h>

static bool parse_locked(uint32_t *locked, const char *list, struct error *error)
{
	for (const char *key = list;; key++) {
		size_t length = strcspn(key, ",");
		int index = option_find(key, length);
		if (index < 0)
			return error_set(error, "locked= names an unknown key '%.*s'",
			                 length < 60 ? (int)length : 60, key);
		*locked |= 1u << index;
		key += length;
		if (*key == '\0')
			return true;
	}
}

static bool parse_comment(struct site *site, const char *value, struct error *error)
{
	site->notes_failures = strcmp(value, "failures") == 0;
	return site->notes_failures || strcmp(value, "no") == 0 ||
	       error_set(error, "comment= takes failures or no, not '%.60s'", value);
}

static bool parse_word(struct site *site, const char *word, uint32_t *seen, struct error *error)
{
	const char *equals = strchr(word, '=');
	size_t key_length = equals != NULL ? (size_t)(equals - word) : strlen(word);
	int index = option_find(word, key_length);
	const struct option *option = option_at(index);
	struct settings before;

	if (strncmp(word, "locked=", 7) == 0)
		return parse_locked(&site->locked, word + 7, error);
	if (strncmp(word, "comment=", 8) == 0)
		return parse_comment(site, word + 8, error);
	if (index >= 0 && (*seen >> index & 1) != 0)
		return error_set(error, "key '%s' is given twice", option->name);
	memcpy(&before, &site->defaults, sizeof(before));
	if (!option_set(&site->defaults, word, key_length, equals != NULL ? equals + 1 : NULL,
	                equals != NULL ? strlen(equals + 1) : 0, error))
		return false;
	if (option->not_for_sites != NULL && memcmp(&before, &site->defaults, sizeof(before)) != 0)
		return error_set(error, "key '%s' is for users: as the site's default %s", option->name,
		                 option->not_for_sites);
	*seen |= 1u << index;
	return true;
}

bool site_parse(struct site *site, int count, char *const words[], struct error *error)
{
	uint32_t seen = 0;
	struct error reason;

	memset(site, 0, sizeof(*site));
	settings_init(&site->defaults);
	for (int i = 0; i < count; i++) {
		if (parse_word(site, words[i], &seen, &reason))
			continue;
		memset(site, 0, sizeof(*site));
		settings_init(&site->defaults);
		return error_set(error, "the site's plugstack line for spank_ddp.so: %s", reason.text);
	}
	return true;
}
