/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/room.h"

#include <string.h>

void room_find(struct room *room, char *const *environment, const struct variables *variables)
{
	room->count = 0;
	for (int i = 0; i < variables->count; i++) {
		const char *name = variables->item[i].name, *now = environment_get(environment, name);
		if (variables->item[i].value != NULL || now == NULL)
			continue;
		room->name[room->count] = name;
		room->text[room->count++] = (char *)now - strlen(name) - 1;
	}
}

static bool take_place(struct room *room, const char *name, const char *value)
{
	const size_t name_length = strlen(name), value_bytes = strlen(value) + 1;

	for (int i = 0; i < room->count; i++) {
		char *text = room->text[i];
		if (text == NULL || strlen(text) < name_length + value_bytes)
			continue;
		memcpy(text, name, name_length);
		text[name_length] = '=';
		memcpy(text + name_length + 1, value, value_bytes);
		room->text[i] = NULL;
		return true;
	}
	return false;
}

bool room_put(struct room *room, char *const *environment, const char *name, const char *value)
{
	char *now = (char *)environment_get(environment, name);

	if (now == NULL)
		return take_place(room, name, value);
	if (strlen(now) < strlen(value))
		return false;
	memmove(now, value, strlen(value) + 1);
	return true;
}
