/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/losses.h"

#include <stdlib.h>
#include <string.h>

void losses_add(struct losses *losses, uint32_t node)
{
	uint32_t room = losses->room > 0 ? 2 * losses->room : 16, *larger;

	for (uint32_t i = 0; i < losses->count; i++)
		if (losses->nodes[i] == node)
			return;
	if (losses->count == losses->room) {
		larger = realloc(losses->nodes, room * sizeof(*larger));
		if (larger == NULL)
			return;
		losses->nodes = larger;
		losses->room = room;
	}
	losses->nodes[losses->count++] = node;
}

void losses_add_all(struct losses *losses, const struct links *links)
{
	const struct links_node *node;

	for (uint32_t i = 0; (node = links_node(links, i)) != NULL; i++)
		if ((node->silent || node->lost) && !node->bye)
			losses_add(losses, i);
}

bool losses_any_new(const struct losses *losses)
{
	return losses->asked < losses->count;
}

static const char *name_of(const struct losses *losses, const struct links *links, uint32_t index)
{
	return links_node(links, losses->nodes[index])->opening.node;
}

char *losses_names(const struct losses *losses, const struct links *links)
{
	size_t bytes = 0;
	char *names, *end;

	for (uint32_t i = losses->asked; i < losses->count; i++)
		bytes += strlen(name_of(losses, links, i)) + 1;
	names = bytes > 0 ? malloc(bytes) : NULL;
	end = names;
	for (uint32_t i = losses->asked; names != NULL && i < losses->count; i++) {
		end = stpcpy(end, name_of(losses, links, i));
		*end++ = i + 1 < losses->count ? ',' : '\0';
	}
	return names;
}

void losses_note_request(struct losses *losses)
{
	losses->asked = losses->count;
}

void losses_end(struct losses *losses)
{
	free(losses->nodes);
	*losses = (struct losses){ .nodes = NULL };
}
