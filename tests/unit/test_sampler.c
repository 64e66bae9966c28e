/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* data/sampler: the order of PyTorch's DistributedSampler. */
#include <stdlib.h>
#include <string.h>

#include "data/sampler.h"
#include "sampler_vectors.h"
#include "tests/support/test.h"

static ddp_sampler *make(int64_t size, int world_size, int rank, uint64_t seed, bool shuffle,
                         ddp_tail tail)
{
	ddp_sampler *sampler;

	assert_int_equal(ddp_sampler_create(size, world_size, rank, seed, shuffle, tail, &sampler), DDP_OK);
	return sampler;
}

TEST(ten_thousandth_draw_is_the_standard_one)
{
	ddp_mt19937 engine;
	uint32_t draw = 0;

	ddp_mt19937_seed(&engine, 5489);
	for (int i = 0; i < 10000; i++)
		draw = ddp_mt19937_next(&engine);
	assert_int_equal(draw, 4123659995u); /* ISO C++, [rand.predef] */
}

TEST(recorded_indices_of_pytorch_are_met)
{
	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
		const struct vector *v = &vectors[i];
		int64_t count;
		ddp_sampler *sampler = make(v->size, v->world_size, v->rank, v->seed, v->shuffle,
		                            v->drop ? DDP_TAIL_DROP : DDP_TAIL_PAD);
		assert_int_equal(ddp_sampler_set_epoch(sampler, v->epoch), DDP_OK);
		const int64_t *indices = ddp_sampler_indices(sampler, &count);
		assert_int_equal(count, v->count);
		assert_memory_equal(indices, v->indices, (size_t)count * sizeof(*indices));
		ddp_sampler_free(sampler);
	}
}

TEST(million_samples_are_permuted_as_by_pytorch)
{
	uint32_t *order = malloc(1000000 * sizeof(*order));

	assert_non_null(order);
	ddp_randperm(17, 1000000, order);
	for (int i = 0; i < 10; i++)
		assert_int_equal(order[i * 100000], million[i]);
	free(order);
}

TEST(large_sizes_draw_64_bits)
{
	uint32_t order[sizeof(wide) / sizeof(wide[0])];

	ddp_randperm_wide(17, sizeof(wide) / sizeof(wide[0]), order);
	assert_memory_equal(order, wide, sizeof(wide));
}

/* Counts how often the ranks together give each of `size` indices. */
static void deal(int64_t size, int world_size, ddp_tail tail, int *times)
{
	memset(times, 0, (size_t)size * sizeof(*times));
	for (int rank = 0; rank < world_size; rank++) {
		int64_t count;
		ddp_sampler *sampler = make(size, world_size, rank, 3, true, tail);
		const int64_t *indices = ddp_sampler_indices(sampler, &count);
		assert_int_equal(count, ddp_sampler_share(size, world_size, rank, tail));
		for (int64_t i = 0; i < count; i++) {
			assert_true(indices[i] >= 0 && indices[i] < size);
			times[indices[i]]++;
		}
		ddp_sampler_free(sampler);
	}
}

TEST(uneven_gives_each_sample_exactly_once)
{
	int times[101];

	for (int64_t size = 1; size <= 101; size += 10)
		for (int world_size = 1; world_size < 9; world_size++) {
			deal(size, world_size, DDP_TAIL_UNEVEN, times);
			for (int64_t i = 0; i < size; i++)
				assert_int_equal(times[i], 1);
		}
}

TEST(dropping_gives_each_sample_at_most_once)
{
	int times[101];
	int total = 0;

	deal(101, 8, DDP_TAIL_DROP, times);
	for (int i = 0; i < 101; i++) {
		assert_true(times[i] <= 1);
		total += times[i];
	}
	assert_int_equal(total, 96);
}

TEST(epochs_differ_and_come_back)
{
	int64_t first[50], count;
	ddp_sampler *sampler = make(50, 1, 0, 0, true, DDP_TAIL_PAD);

	memcpy(first, ddp_sampler_indices(sampler, &count), sizeof(first));
	ddp_sampler_set_epoch(sampler, 1);
	assert_memory_not_equal(first, ddp_sampler_indices(sampler, &count), sizeof(first));
	ddp_sampler_set_epoch(sampler, 0);
	assert_memory_equal(first, ddp_sampler_indices(sampler, &count), sizeof(first));
	ddp_sampler_free(sampler);
}

/* 4 ranks use 44 of the samples, 3 ranks have what is left, and the next epoch is whole again. */
TEST(any_number_of_ranks_goes_on_at_any_place)
{
	int times[2][101] = { { 0 } };
	int64_t count;

	for (int rank = 0; rank < 4; rank++) {
		ddp_sampler *sampler = make(101, 4, rank, 7, true, DDP_TAIL_UNEVEN);
		const int64_t *indices = ddp_sampler_indices(sampler, &count);
		for (int i = 0; i < 11; i++)
			times[0][indices[i]]++;
		ddp_sampler_free(sampler);
	}
	for (int rank = 0; rank < 3; rank++) {
		ddp_sampler *sampler = make(101, 3, rank, 7, true, DDP_TAIL_UNEVEN);
		assert_int_equal(ddp_sampler_set_place(sampler, 0, 44), DDP_OK);
		for (int e = 0; e < 2; e++) {
			const int64_t *indices = ddp_sampler_indices(sampler, &count);
			for (int64_t i = 0; i < count; i++)
				times[e][indices[i]]++;
			assert_int_equal(ddp_sampler_set_epoch(sampler, 1), DDP_OK);
		}
		ddp_sampler_free(sampler);
	}
	for (int i = 0; i < 101; i++)
		assert_true(times[0][i] == 1 && times[1][i] == 1);
}

TEST(impossible_arguments_are_refused)
{
	ddp_sampler *sampler = NULL;
	const struct { int64_t size; int world_size, rank, tail; const char *says; } bad[] = {
		{ 0, 1, 0, 0, "size is 0" },
		{ INT64_C(1) << 32, 1, 0, 0, "size is 4294967296" },
		{ 5, 0, 0, 0, "rank 0 of 0" },
		{ 5, 2, 2, 0, "rank 2 of 2" },
		{ 5, 2, -1, 0, "rank -1 of 2" },
		{ 5, 2, 0, 3, "3 is no ddp_tail" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(ddp_sampler_create(bad[i].size, bad[i].world_size, bad[i].rank, 0, true,
		                                    (ddp_tail)bad[i].tail, &sampler), DDP_ERR_INVALID);
		assert_non_null(strstr(ddp_last_error(), bad[i].says));
	}
	sampler = make(5, 1, 0, 0, true, DDP_TAIL_PAD);
	assert_int_equal(ddp_sampler_set_epoch(sampler, -1), DDP_ERR_INVALID);
	assert_int_equal(ddp_sampler_set_place(sampler, 0, -1), DDP_ERR_INVALID);
	assert_int_equal(ddp_sampler_set_place(sampler, 3, 5), DDP_ERR_INVALID);
	assert_string_equal(ddp_last_error(), "sampler: epoch 3 has no sample 5: epochs begin at 0, and samples are 0 .. 4");
	ddp_sampler_free(sampler);
	ddp_sampler_free(NULL);
}
