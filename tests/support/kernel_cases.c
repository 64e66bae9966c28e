/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_values.h"
#include "tests/support/test.h"

kernel_place place;

static struct allocation {
	void *memory;
	void (*free)(void *memory);
} *allocations;
static size_t allocated, room;

static void *free_later(void *memory, void (*release)(void *memory))
{
	if (allocated == room) {
		room = room > 0 ? 2 * room : 64;
		allocations = realloc(allocations, room * sizeof(*allocations));
		assert_non_null(allocations);
	}
	allocations[allocated++] = (struct allocation){memory, release};
	return memory;
}

static void free_all(void)
{
	for (size_t i = 0; i < allocated; i++)
		allocations[i].free(allocations[i].memory);
	free(allocations);
	allocations = NULL;
	allocated = room = 0;
}

static void in_places(void (*test)(void), bool f32_only)
{
	const char *why;
	int rounds = 0;

	allocated = 0; /* what a failed test left is another place's */
	for (; kernel_place_open(rounds, &place, &why); rounds++) {
		place.shuffle(3);
		if (!f32_only || place.type == DK_F32 || place.type == DK_TF32)
			test();
		free_all();
		place.close(&place);
	}
	if (rounds == 0) {
		print_message("%s\n", why);
		skip();
	}
}

void in_each_place(void (*test)(void))
{
	in_places(test, false);
}

void in_each_place_of_f32(void (*test)(void))
{
	in_places(test, true);
}

static void (*tried)(void);

static void try_on_queue(void)
{
	dk_use(place.queue);
	tried();
	dk_use(NULL);
}

void on_each_queue(void (*test)(void))
{
	tried = test;
	in_places(try_on_queue, false);
}

bool fits(int64_t n)
{
	return place.most == 0 || n <= place.most;
}

float *floats(int64_t n)
{
	return free_later(make((size_t)n, sizeof(float)), free);
}

double *doubles(int64_t n)
{
	return free_later(make((size_t)n, sizeof(double)), free);
}

void *bytes_there(size_t bytes)
{
	return free_later(place.alloc(bytes), place.free);
}

dk_type gradient_type(void)
{
	return place.type == DK_MIXED || place.type == DK_MIXED_F16 ? DK_F32 : place.type;
}

void *give_as(dk_type type, const void *from, int64_t n)
{
	const kernel_place as = {.type = type, .copy = place.copy};
	void *there = bytes_there((size_t)n * type_bytes(type));

	kernel_place_give(&as, there, from, n);
	return there;
}

void take_as(dk_type type, void *to, const void *there, int64_t n)
{
	const kernel_place as = {.type = type, .copy = place.copy};

	kernel_place_take(&as, to, there, n);
}

void *give(const void *from, int64_t n)
{
	return give_as(place.type, from, n);
}

void take(void *to, const void *there, int64_t n)
{
	take_as(place.type, to, there, n);
}
