/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* comm/ops/blocks: how operations are cut. */
#include <stdlib.h>

#include "comm/core/offsets.h"
#include "comm/ops/blocks.h"
#include "tests/support/test.h"

enum { LIMIT = 256 * 1024, WINDOW = 4 * 1024 * 1024, LONGEST = 1 << 30 };

TEST(a_window_holds_a_chunk_of_each_of_many_slices)
{
	static const struct {
		size_t element, wide;
	} types[] = { { 1, 4 }, { 2, 4 }, { 4, 4 }, { 8, 8 } };

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const size_t element = types[t].element, wide = types[t].wide;
		for (size_t slices = 1; slices <= WINDOW / element; slices += 1 + slices / 7) {
			size_t count = ddp_chunk_count(LIMIT, WINDOW / slices, element, wide, LONGEST);
			assert_true(count > 0);
			assert_true(count * element * slices <= WINDOW);
			assert_true(count * wide <= LIMIT || count == 64);
			assert_true(count < 64 || count % 64 == 0);
		}
		assert_int_equal(ddp_chunk_count(LIMIT, WINDOW / (WINDOW / element * 2), element, wide, LONGEST), 0);
	}
}

/* Also where the longest slice is a little shorter than that: a window is cut
   into whole chunks, so it must hold one. */
TEST(a_chunk_as_long_as_the_longest_slice_fits_in_its_share)
{
	for (size_t slices = 1; slices <= WINDOW / 8 / 64; slices += 1 + slices / 7) {
		const size_t share = WINDOW / slices;
		for (size_t longest = share / 4 > 200 ? share / 4 - 200 : 0; longest < share / 4 + 200; longest++) {
			size_t count = ddp_chunk_count(LIMIT, share, 4, 4, longest);
			assert_true(count > 0 && count * 4 <= share);
			assert_true(count < longest + 64 || count == 64);
		}
	}
}

TEST(a_chunk_is_not_much_longer_than_the_longest_slice)
{
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, LONGEST), LIMIT / 4);
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, 65), 128);
	assert_int_equal(ddp_chunk_count(LIMIT, WINDOW, 4, 4, 0), 64);
}

TEST(parts_cover_everything_once)
{
	for (size_t count = 0; count < 300; count += 1 + count / 9) {
		for (int parts = 1; parts < 20; parts++) {
			size_t at = 0;
			for (int i = 0; i < parts; i++) {
				const ddp_range part = ddp_part(count, parts, i, 16);
				assert_int_equal(part.begin, at);
				at += part.count;
			}
			assert_int_equal(at, count);
		}
	}
}

TEST(offsets_of_blocks_are_sums_of_the_counts_before)
{
	const size_t counts[] = { 3, 0, 7, 1 }, recv_counts[] = { 0, 5, 2, 9 };
	const size_t offsets[] = { 0, 3, 3, 10, 11 }, recv_offsets[] = { 0, 0, 5, 7, 16 };
	const ddp_operation even = { .kind = DDP_ALL_TO_ALL, .count = 6 };
	const ddp_operation vector = { .kind = DDP_ALL_TO_ALL, .counts = counts, .recv_counts = recv_counts };
	ddp_comm *comm = calloc(1, sizeof(*comm));

	assert_non_null(comm);
	comm->size = 4;
	for (int again = 0; again < 2; again++) {
		comm->run.operation = &vector;
		assert_int_equal(ddp_offsets_make(comm), DDP_OK);
		for (int r = 0; r <= 4; r++) {
			assert_int_equal(ddp_block_offset(comm, r), offsets[r]);
			assert_int_equal(ddp_recv_offset(comm, r), recv_offsets[r]);
		}
		comm->run.operation = &even;
		assert_int_equal(ddp_offsets_make(comm), DDP_OK);
		assert_int_equal(ddp_block_offset(comm, 4), 24);
		assert_int_equal(ddp_recv_offset(comm, 1), 6);
	}
	ddp_offsets_free(comm);
	free(comm);
}
