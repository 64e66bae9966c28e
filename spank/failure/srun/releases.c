/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/releases.h"

#include <string.h>

static bool is_named(const struct releases *releases, const char *node)
{
	for (uint32_t i = 0; i < releases->count; i++)
		if (strcmp(releases->named[i].node, node) == 0)
			return true;
	return false;
}

void releases_note(struct releases *releases, const char *own, const char *node, const char *release, size_t bytes)
{
	char name[HOST_NAME_MAX_BYTES] = "", text[RELEASE_BYTES] = "";
	struct sink names = sink_on(name, sizeof(name)), texts = sink_on(text, sizeof(text));

	sink_add_untrusted(&names, node, sizeof(name));
	sink_add_untrusted(&texts, release, bytes);
	if (name[0] == '\0' || text[0] == '\0' || strcmp(text, own) == 0 || is_named(releases, name))
		return;
	releases->more = releases->count == RELEASES_NAMED;
	if (releases->more)
		return;
	memcpy(releases->named[releases->count].node, name, sizeof(name));
	memcpy(releases->named[releases->count].release, text, sizeof(text));
	releases->count++;
}

bool releases_describe(const struct releases *releases, const char *own, struct sink *sink)
{
	if (releases->count == 0)
		return false;
	sink_add(sink, "the plugin spank_ddp is of release %s on srun's host", own);
	for (uint32_t i = 0; i < releases->count; i++)
		sink_add(sink, ", of %s on %s", releases->named[i].release, releases->named[i].node);
	sink_add(sink, "%s: a key of --ddp that one of them does not have is refused",
	         releases->more ? ", and of others on more nodes" : "");
	return true;
}
