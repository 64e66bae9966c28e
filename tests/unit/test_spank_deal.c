/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/deal: orders come out as they went in, and what is cut or contradicts itself is none. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/wire/deal.h"
#include "tests/support/test.h"

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

enum { ROOM = 256 };

/* A copy that ends where the payload does, so that a sanitizer sees who reads behind it. */
static unsigned char *exact(const unsigned char *bytes, size_t count)
{
	unsigned char *copy = malloc(count > 0 ? count : 1);

	assert_non_null(copy);
	memcpy(copy, bytes, count);
	return copy;
}

static struct deal_go some_go(void)
{
	return (struct deal_go){ .generation = 3, .restart_count = 2, .world_size = 6, .node_count = 3, .node_rank = 1,
		                 .master = 0, .local_count = 2, .port_seed = 0x12345678, .key = KEY,
		                 .nodes = "n0,n3,n2" };
}

static bool unpacks(const struct deal_go *go, const uint32_t *ranks, struct deal_go *got)
{
	unsigned char bytes[ROOM], *copy;
	size_t count = deal_pack_go(go, ranks, bytes);
	bool good;

	assert_int_equal(count, deal_go_bytes(go->local_count, go->nodes));
	copy = exact(bytes, count);
	good = deal_unpack_go(copy, count, got);
	if (good) {
		assert_string_equal(got->nodes, go->nodes);
		for (uint32_t i = 0; i < go->local_count; i++)
			assert_int_equal(deal_rank(got, i), ranks[i]);
	}
	free(copy);
	return good;
}

TEST(go_comes_out_as_it_went_in)
{
	const uint32_t ranks[] = { 2, 5 };
	struct deal_go go = some_go(), got;

	assert_true(unpacks(&go, ranks, &got));
	assert_int_equal(got.generation, 3);
	assert_int_equal(got.restart_count, 2);
	assert_int_equal(got.world_size, 6);
	assert_int_equal(got.node_count, 3);
	assert_int_equal(got.node_rank, 1);
	assert_int_equal(got.master, 0);
	assert_int_equal(got.local_count, 2);
	assert_int_equal(got.port_seed, 0x12345678);
	assert_string_equal(got.key, KEY);
	go.node_rank = DEAL_SPARE;
	go.local_count = 0;
	assert_true(unpacks(&go, ranks, &got));
	assert_int_equal(got.node_rank, DEAL_SPARE);
}

TEST(go_that_contradicts_itself_is_none)
{
	static const struct { size_t field; uint32_t value; } cases[] = {
		{ offsetof(struct deal_go, generation), 0 },
		{ offsetof(struct deal_go, generation), DEAL_GENERATIONS + 1 },
		{ offsetof(struct deal_go, restart_count), 3 },
		{ offsetof(struct deal_go, world_size), 5 }, /* there is a rank 5 */
		{ offsetof(struct deal_go, world_size), 2 },
		{ offsetof(struct deal_go, node_count), 0 },
		{ offsetof(struct deal_go, node_count), 7 },
		{ offsetof(struct deal_go, node_rank), 3 },
		{ offsetof(struct deal_go, node_rank), DEAL_SPARE }, /* with ranks */
		{ offsetof(struct deal_go, master), 3 },
		{ offsetof(struct deal_go, local_count), 0 },
	};
	static const char *const lists[] = { "", "n0 n1", "n0\n", "n\x7f" };
	const uint32_t ranks[] = { 2, 5 };
	struct deal_go go, got;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		go = some_go();
		memcpy((char *)&go + cases[i].field, &cases[i].value, sizeof(cases[i].value));
		if (unpacks(&go, ranks, &got))
			fail_msg("case %zu was taken", i);
	}
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		go = some_go();
		go.nodes = lists[i];
		assert_false(unpacks(&go, ranks, &got));
	}
	go = some_go();
	go.key[5] = 'A';
	assert_false(unpacks(&go, ranks, &got));
	go.key[5] = '\0';
	assert_false(unpacks(&go, ranks, &got));
}

TEST(join_comes_out_as_it_went_in)
{
	const uint32_t tasks[] = { 1, 4 };
	struct deal_join join = { .version = DEAL_VERSION, .node_id = 7, .generation = 2, .task_count = 2,
		                  .release = "0.2\n" }, got;
	unsigned char bytes[ROOM];
	size_t count = deal_pack_join(&join, tasks, bytes);

	assert_int_equal(count, deal_join_bytes(2));
	assert_true(deal_unpack_join(bytes, count, &got));
	assert_int_equal(got.version, DEAL_VERSION);
	assert_int_equal(got.node_id, 7);
	assert_int_equal(got.generation, 2);
	assert_int_equal(got.task_count, 2);
	assert_int_equal(deal_task(&got, 0), 1);
	assert_int_equal(deal_task(&got, 1), 4);
	assert_string_equal(got.release, "0.2?");
	join.task_count = 0;
	count = deal_pack_join(&join, tasks, bytes);
	assert_false(deal_unpack_join(bytes, count, &got));
}

TEST(small_orders_come_out_as_they_went_in)
{
	const struct deal_clear clear = { .generation = 4, .fenced = true, .step = 1ull << 40, .first = 7,
		                          .rest = DEAL_SOME };
	const struct deal_done done = { .generation = 4, .local_task = 1, .rank = 9, .wait_status = 0x4b00,
		                        .never_ran = true };
	const struct deal_lost lost = { .generation = 0, .local_task = 3 };
	struct deal_clear clear_got;
	struct deal_done done_got;
	struct deal_lost lost_got;
	unsigned char bytes[DEAL_SMALL_BYTES];
	uint32_t generation;
	bool keep;
	int status;

	assert_true(deal_unpack_end(bytes, deal_pack_end(6, true, bytes), &generation, &keep));
	assert_int_equal(generation, 6);
	assert_true(keep);
	assert_true(deal_unpack_quit(bytes, deal_pack_quit(DEAL_OWN_STATUS, bytes), &status));
	assert_int_equal(status, DEAL_OWN_STATUS);
	assert_true(deal_unpack_clear(bytes, deal_pack_clear(&clear, bytes), &clear_got));
	assert_int_equal(clear_got.generation, 4);
	assert_true(clear_got.fenced);
	assert_true(clear_got.step == 1ull << 40);
	assert_true(clear_got.first == 7);
	assert_int_equal(clear_got.rest, DEAL_SOME);
	assert_true(deal_unpack_done(bytes, deal_pack_done(&done, bytes), &done_got));
	assert_int_equal(done_got.generation, 4);
	assert_int_equal(done_got.local_task, 1);
	assert_int_equal(done_got.rank, 9);
	assert_int_equal(done_got.wait_status, 0x4b00);
	assert_true(done_got.never_ran);
	assert_true(deal_unpack_lost(bytes, deal_pack_lost(&lost, bytes), &lost_got));
	assert_int_equal(lost_got.local_task, 3);
}

TEST(lists_of_spares_come_out_as_they_went_in)
{
	static const char *const lists[] = { "", "n2", "n[2-5],m1" };
	unsigned char bytes[4 + DEAL_SPARES_MAX], *copy;
	char got[DEAL_SPARES_MAX + 1], longest[DEAL_SPARES_MAX + 2];
	size_t count;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		count = deal_pack_spares(lists[i], bytes);
		copy = exact(bytes, count);
		assert_true(deal_unpack_spares(copy, count, got));
		assert_string_equal(got, lists[i]);
		for (size_t cut = 0; cut < count; cut++)
			assert_false(deal_unpack_spares(copy, cut, got));
		free(copy);
	}
	memset(longest, 'n', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	count = deal_pack_spares(longest, bytes);
	assert_int_equal(count, sizeof(bytes));
	assert_true(deal_unpack_spares(bytes, count, got));
	assert_int_equal(strlen(got), DEAL_SPARES_MAX);
	bytes[10] = '\n';
	assert_false(deal_unpack_spares(bytes, count, got));
	bytes[1] = 0xff;
	assert_false(deal_unpack_spares(bytes, count, got));
}

/* Each payload, cut at each length, is refused, and a longer one is taken. An older release sends the last byte of some
   not. */
TEST(cut_orders_are_none)
{
	const uint32_t numbers[] = { 2, 5 };
	const struct deal_go go = some_go();
	const struct deal_join join = { .version = 1, .task_count = 2 };
	unsigned char bytes[6][ROOM] = { { 0 } };
	const size_t counts[6] = { deal_pack_go(&go, numbers, bytes[0]), deal_pack_join(&join, numbers, bytes[1]),
		                   deal_pack_end(1, false, bytes[2]), deal_pack_clear(&(struct deal_clear){ 1, false, 2, 1, DEAL_NONE }, bytes[3]),
		                   deal_pack_done(&(struct deal_done){ 1, 0, 0, 0, false }, bytes[4]),
		                   deal_pack_lost(&(struct deal_lost){ 1, 0 }, bytes[5]) };
	static const size_t newer[6] = { 1, 0, 1, 1, 0, 0 };
	struct deal_go go_got;
	struct deal_join join_got;
	struct deal_clear clear_got;
	struct deal_done done_got;
	struct deal_lost lost_got;
	uint32_t generation;
	bool keep;

	for (int kind = 0; kind < 6; kind++) {
		for (size_t count = 0; count <= counts[kind] + 1; count++) {
			unsigned char *copy = exact(bytes[kind], count);
			const bool taken[] = { deal_unpack_go(copy, count, &go_got), deal_unpack_join(copy, count, &join_got),
				               deal_unpack_end(copy, count, &generation, &keep),
				               deal_unpack_clear(copy, count, &clear_got),
				               deal_unpack_done(copy, count, &done_got),
				               deal_unpack_lost(copy, count, &lost_got) };
			assert_int_equal(taken[kind], count + newer[kind] >= counts[kind]);
			free(copy);
		}
	}
}
