/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/known.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct ddp_known_slot {
	ddp_place place;
	ddp_proof_key key;
} slot;

/* The place's, or an empty one. Half of the table is empty. */
static slot *find_slot(slot *slots, size_t room, const ddp_place *place)
{
	const unsigned char *bytes = (const unsigned char *)place;
	uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */

	for (size_t i = 0; i < sizeof(*place); i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3;
	hash ^= hash >> 32;
	while (slots[hash & (room - 1)].place.family != 0 &&
	       memcmp(&slots[hash & (room - 1)].place, place, sizeof(*place)) != 0)
		hash++;
	return &slots[hash & (room - 1)];
}

static bool grow(ddp_known *k)
{
	ddp_known larger = { .count = k->count, .room = k->room > 0 ? 2 * k->room : 32 };

	larger.slots = calloc(larger.room, sizeof(*larger.slots));
	if (larger.slots == NULL)
		return false;
	for (size_t i = 0; i < k->room; i++) {
		if (k->slots[i].place.family != 0)
			*find_slot(larger.slots, larger.room, &k->slots[i].place) = k->slots[i];
	}
	ddp_known_free(k);
	*k = larger;
	return true;
}

bool ddp_known_add(ddp_known *known, const ddp_place *place, const ddp_proof_key *key)
{
	if (place->family == 0)
		return true;
	if (2 * known->count >= known->room && !grow(known))
		return false;
	slot *s = find_slot(known->slots, known->room, place);
	if (s->place.family == 0)
		known->count++;
	*s = (slot){ .place = *place, .key = *key };
	return true;
}

const ddp_proof_key *ddp_known_find(const ddp_known *known, const ddp_place *place)
{
	const slot *s = known->room > 0 ? find_slot(known->slots, known->room, place) : NULL;

	return s != NULL && s->place.family != 0 ? &s->key : NULL;
}

void ddp_known_free(ddp_known *known)
{
	if (known->slots != NULL)
		explicit_bzero(known->slots, known->room * sizeof(*known->slots));
	free(known->slots);
	*known = (ddp_known){ .slots = NULL };
}
