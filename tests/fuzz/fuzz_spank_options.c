/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: the --ddp list, alone and beside a site's line and locked keys.
 * slurmstepd reads both as root.
 * fuzz-sources: spank/options/options.c spank/options/site.c spank/base/text.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/options/options.h"
#include "spank/options/site.h"

/* What any accepted settings must hold. */
static void check(const struct settings *settings)
{
	if (settings->port_low < 1024 || settings->port_high < settings->port_low ||
	    settings->timeout_seconds > 604800 ||
	    memchr(settings->address_suffix, '\0', sizeof(settings->address_suffix)) == NULL ||
	    memchr(settings->trace_dir, '\0', sizeof(settings->trace_dir)) == NULL ||
	    memchr(settings->bucket_mb, '\0', sizeof(settings->bucket_mb)) == NULL ||
	    strpbrk(settings->address_suffix, "/; $") != NULL)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The user's list, and behind a newline the words of a site. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *words[8];
	struct settings settings, before;
	struct site site;
	struct error error = { "" };
	int count = 0;

	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	char *line = strchr(text, '\n');
	if (line != NULL) {
		*line = '\0';
		for (char *word = strtok(line + 1, " \n"); word != NULL && count < 8; word = strtok(NULL, " \n"))
			words[count++] = word;
	}
	if (!site_parse(&site, count, words, &error) && error.text[0] == '\0')
		abort();
	check(&site.defaults);
	settings = before = site.defaults;
	if (user_list_read(&settings, text, site.locked, &error)) {
		if ((settings.given & site.locked) != 0)
			abort();
	} else if (memcmp(&settings, &before, sizeof(before)) != 0) {
		abort();
	}
	check(&settings);
	free(text);
	return 0;
}
