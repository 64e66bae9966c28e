/* SPDX-License-Identifier: Apache-2.0 */
#include "state/room.h"

#include "base/pages.h"
#include "base/thread.h"

static size_t bytes_of(const ddp_room *room)
{
	return (size_t)room->elements * sizeof(float);
}

static void *fill(void *argument)
{
	const ddp_room *room = argument;
	volatile char *bytes = (volatile char *)room->memory;
	const size_t page = ddp_system_page_bytes();

	for (size_t at = 0; at < bytes_of(room); at += page)
		bytes[at] = 0;
	return NULL;
}

static void end_filling(ddp_room *room)
{
	if (room->fills)
		pthread_join(room->thread, NULL);
	room->fills = false;
}

void ddp_room_free(ddp_room *room)
{
	end_filling(room);
	ddp_pages_free(room->memory, bytes_of(room));
	*room = (ddp_room){ 0 };
}

bool ddp_room_take(ddp_room *room, int64_t elements)
{
	end_filling(room);
	if (elements <= room->elements)
		return true;
	ddp_room_free(room);
	room->elements = elements;
	room->memory = ddp_pages_alloc(bytes_of(room));
	if (room->memory == NULL)
		room->elements = 0;
	return room->memory != NULL;
}

void ddp_room_fill(ddp_room *room)
{
	end_filling(room);
	room->fills = room->elements > 0 && ddp_thread_start(&room->thread, fill, room) == 0;
}
