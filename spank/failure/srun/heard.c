/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/heard.h"

#include <stdlib.h>

enum { FIRST_ROOM = 64 };

static uint64_t get_number(const unsigned char bytes[8])
{
	uint64_t number = 0;

	for (int i = 0; i < 8; i++)
		number |= (uint64_t)bytes[i] << (8 * i);
	return number;
}

/* The node's place, or a free one. There is always a free one. */
static struct heard_node *place_of(struct heard_node *nodes, size_t room, uint64_t mark)
{
	size_t at = mark & (room - 1);

	while (nodes[at].window != 0 && nodes[at].mark != mark)
		at = (at + 1) & (room - 1);
	return &nodes[at];
}

/* False without memory. */
static bool make_room(struct heard *heard)
{
	size_t room = heard->room > 0 ? 2 * heard->room : FIRST_ROOM;
	struct heard_node *nodes;

	if (2 * (heard->count + 1) <= heard->room)
		return true;
	nodes = calloc(room, sizeof(*nodes));
	if (nodes == NULL)
		return false;
	for (size_t i = 0; i < heard->room; i++)
		if (heard->nodes[i].window != 0)
			*place_of(nodes, room, heard->nodes[i].mark) = heard->nodes[i];
	free(heard->nodes);
	heard->nodes = nodes;
	heard->room = room;
	return true;
}

static bool note_older(struct heard_node *node, uint64_t number)
{
	uint64_t age = node->newest - number, bit;

	if (age >= HEARD_WINDOW)
		return false;
	bit = (uint64_t)1 << age;
	if ((node->window & bit) != 0)
		return false;
	node->window |= bit;
	return true;
}

bool heard_first(struct heard *heard, const unsigned char nonce[RELAY_NONCE_BYTES], bool last_word)
{
	uint64_t mark = get_number(nonce), number = get_number(nonce + 8), step;
	struct heard_node *node;

	if (!make_room(heard))
		return false;
	node = place_of(heard->nodes, heard->room, mark);
	if (node->window == 0) {
		*node = (struct heard_node){ .mark = mark, .newest = number, .window = 1 };
		heard->count++;
		return true;
	}
	if (number <= node->newest)
		return !last_word && note_older(node, number);
	step = number - node->newest;
	node->window = (step < HEARD_WINDOW ? node->window << step : 0) | 1;
	node->newest = number;
	return true;
}

void heard_end(struct heard *heard)
{
	free(heard->nodes);
	*heard = (struct heard){ .nodes = NULL };
}
