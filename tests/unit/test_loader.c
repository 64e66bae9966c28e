/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* data/loader: batches read ahead, their order, errors and positions. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "tests/support/context_ranks.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

/* A dataset whose sample i is the number i; sample `broken` cannot be read. */
struct numbers {
	int64_t broken;
	atomic_int reads; /* readers count together */
	unsigned pause_us;
	bool silent, handles; /* it gives no reason; what it says of samples that it has read is none */
};

static ddp_status read_number(void *self, int64_t index, void *sample)
{
	struct numbers *numbers = self;

	numbers->reads++;
	if (numbers->pause_us > 0)
		usleep(numbers->pause_us);
	if (numbers->handles && index != numbers->broken)
		ddp_set_error("a failure that the program has dealt with");
	if (index == numbers->broken && !numbers->silent)
		ddp_set_error("no number %lld", (long long)index);
	if (index == numbers->broken)
		return DDP_ERR_IO;
	memcpy(sample, &index, sizeof(index));
	return DDP_OK;
}

static ddp_loader *make(struct numbers *numbers, int64_t size, int rank, int world_size,
                        ddp_loader_options options)
{
	ddp_loader *loader;
	ddp_dataset dataset = { .size = size, .sample_bytes = sizeof(int64_t),
	                        .read = read_number, .self = numbers };

	if (options.batch_size == 0)
		options.batch_size = 4;
	assert_int_equal(ddp_loader_make(rank, world_size, &dataset, &options, &loader), DDP_OK);
	return loader;
}

TEST(batches_follow_the_sampler_over_epochs)
{
	struct numbers numbers = { .broken = -1 };
	ddp_loader *loader = make(&numbers, 23, 1, 2, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .seed = 5 });
	ddp_sampler *sampler;
	ddp_batch batch;
	int64_t count;

	assert_int_equal(ddp_sampler_create(23, 2, 1, 5, true, DDP_TAIL_PAD, &sampler), DDP_OK);
	assert_int_equal(ddp_loader_batches_per_epoch(loader), 3);
	for (int64_t epoch = 0; epoch < 3; epoch++) {
		ddp_sampler_set_epoch(sampler, epoch);
		const int64_t *indices = ddp_sampler_indices(sampler, &count);
		for (int64_t b = 0; b < 3; b++) {
			assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
			assert_int_equal(batch.epoch, epoch);
			assert_int_equal(batch.batch, b);
			assert_int_equal(batch.samples, 4);
			assert_memory_equal(batch.data, indices + 4 * b, 4 * sizeof(int64_t));
		}
	}
	ddp_sampler_free(sampler);
	ddp_loader_free(loader);
}

enum { UPDATE = 12, UPDATE_SAMPLES = 50, UPDATES = 9 };

/* Adds which samples each of the first updates has on a rank. */
static void see_updates(ddp_tail tail, int world_size, int accumulate, int rank, int (*seen)[UPDATE_SAMPLES])
{
	struct numbers numbers = { .broken = -1 };
	ddp_loader *loader = make(&numbers, UPDATE_SAMPLES, rank, world_size, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS,
		.batch_size = UPDATE / world_size / accumulate, .tail = tail, .seed = 9, .accumulate = accumulate });
	ddp_batch batch;

	for (int u = 0; u < UPDATES; u++) {
		for (int a = 0; a < accumulate; a++) {
			assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
			assert_int_equal(batch.epoch, u / (tail == DDP_TAIL_DROP ? 4 : 5));
			for (int64_t i = 0; i < batch.samples; i++)
				seen[u][((const int64_t *)batch.data)[i]]++;
		}
	}
	ddp_loader_free(loader);
}

TEST(updates_hold_the_same_samples_on_any_number_of_ranks)
{
	static const struct { int ranks, accumulate; } worlds[] = { { 1, 1 }, { 4, 1 }, { 2, 2 }, { 1, 4 }, { 1, 12 }, { 3, 4 } };

	for (int t = 0; t < 2; t++) {
		static int first[UPDATES][UPDATE_SAMPLES], seen[UPDATES][UPDATE_SAMPLES];

		for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++) {
			memset(seen, 0, sizeof(seen));
			for (int rank = 0; rank < worlds[w].ranks; rank++)
				see_updates(t == 0 ? DDP_TAIL_DROP : DDP_TAIL_UNEVEN, worlds[w].ranks, worlds[w].accumulate, rank, seen);
			if (w == 0)
				memcpy(first, seen, sizeof(first));
			assert_memory_equal(seen, first, sizeof(first));
		}
	}
}

/* Reads update u of a rank. */
static void see_update(ddp_loader *loader, int (*seen)[UPDATE_SAMPLES], int u)
{
	ddp_batch batch;

	for (int a = 0; a < ddp_loader_accumulation(loader); a++) {
		assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
		for (int64_t i = 0; i < batch.samples; i++)
			seen[u][((const int64_t *)batch.data)[i]]++;
	}
}

/* Also where ranks do not get equally many; and where a world has lost ranks in the middle. */
TEST(a_global_batch_holds_the_same_samples_on_any_number_of_ranks)
{
	enum { LOST_IN = 3 };
	static int first[UPDATES][UPDATE_SAMPLES], seen[UPDATES][UPDATE_SAMPLES];
	struct numbers numbers = { .broken = -1 };

	for (int t = 0; t < 2; t++) {
		const ddp_tail tail = t == 0 ? DDP_TAIL_DROP : DDP_TAIL_UNEVEN;
		memset(first, 0, sizeof(first));
		see_updates(tail, 1, 1, 0, first);
		for (int ranks = 1; ranks <= 14; ranks++) {
			memset(seen, 0, sizeof(seen));
			for (int rank = 0; rank < ranks; rank++) {
				ddp_loader *loader = make(&numbers, UPDATE_SAMPLES, rank, ranks, (ddp_loader_options){
					DDP_LOADER_OPTIONS_FIELDS, .batch_size = 1 + ranks % 3, .tail = tail, .seed = 9, .global_batch = UPDATE });
				for (int u = 0; u < UPDATES; u++)
					see_update(loader, seen, u);
				ddp_loader_free(loader);
			}
			assert_memory_equal(seen, first, sizeof(first));

			/* Rank 0 is lost, so the others have its number and those before theirs. */
			memset(seen, 0, sizeof(seen));
			for (int rank = 0; rank < ranks; rank++) {
				ddp_loader *loader = make(&numbers, UPDATE_SAMPLES, rank, ranks, (ddp_loader_options){
					DDP_LOADER_OPTIONS_FIELDS, .batch_size = 12, .tail = tail, .seed = 9, .global_batch = UPDATE });
				for (int u = 0; u < (rank == 0 && ranks > 1 ? LOST_IN : UPDATES); u++) {
					ddp_loader_state at = ddp_loader_get_state(loader);
					if (u == LOST_IN && ranks > 1) {
						assert_int_equal(ddp_loader_refit(loader, rank - 1, ranks - 1), DDP_OK);
						assert_int_equal(ddp_loader_seek(loader, &at), DDP_OK);
					}
					see_update(loader, seen, u);
				}
				ddp_loader_free(loader);
			}
			assert_memory_equal(seen, first, sizeof(first));
		}
	}
}

/* ddp_train() tells of its own, if the program has not told the loader; epochs end with an update. */
TEST(accumulation_is_told_once)
{
	struct numbers numbers = { .broken = -1 };
	ddp_loader *loader = make(&numbers, 23, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .tail = DDP_TAIL_DROP });
	ddp_batch batch;

	assert_int_equal(ddp_loader_batches_per_epoch(loader), 5);
	for (int b = 0; b < 4; b++)
		assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
	assert_int_equal(ddp_loader_set_accumulate(loader, 6), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "23 samples are less than an update of 24 (4 x 1 x 6: batch_size, ranks, accumulate)"));
	assert_int_equal(ddp_loader_set_accumulate(loader, 2), DDP_OK);
	assert_int_equal(ddp_loader_batches_per_epoch(loader), 4);
	assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
	assert_true(batch.epoch == 1 && batch.batch == 0);
	ddp_loader_free(loader);
	loader = make(&numbers, 23, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .accumulate = 2 });
	assert_int_equal(ddp_loader_set_accumulate(loader, 3), DDP_ERR_INVALID);
	assert_string_equal(ddp_last_error(), "training option accumulate is 3, and the loader's is 2; give the same, or one of them");
	ddp_loader_free(loader);
}

/* A place within an update, and one in the empty batches behind an epoch's last sample: an update begins there. */
TEST(update_begins_where_a_run_was_saved)
{
	static const struct { int batches; int64_t epoch, first, size; } saved[] = { { 1, 0, 8, 64 }, { 2, 0, 16, 64 }, { 9, 1, 0, 66 } };

	for (size_t i = 0; i < sizeof(saved) / sizeof(saved[0]); i++) {
		struct numbers numbers = { .broken = -1 };
		const ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .accumulate = 2, .sequential = true };
		ddp_loader *loader = make(&numbers, saved[i].size, 0, 2, options);
		ddp_batch batch;

		for (int b = 0; b < saved[i].batches; b++)
			assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
		const ddp_loader_state at = ddp_loader_get_state(loader);
		assert_int_equal(ddp_loader_seek(loader, &at), DDP_OK);
		for (int b = 0; b < 2; b++) {
			assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
			assert_int_equal(batch.epoch, saved[i].epoch);
			assert_int_equal(batch.batch % 2, b);
			assert_int_equal(*(const int64_t *)batch.data, saved[i].first + 8 * b);
		}
		ddp_loader_free(loader);
	}
}

TEST(read_error_comes_with_its_batch_and_stays)
{
	struct numbers numbers = { .broken = 9 };
	ddp_loader *loader = make(&numbers, 40, 0, 1,
	                          (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .sequential = true, .prefetch = 8 });
	ddp_batch batch;

	for (int b = 0; b < 2; b++)
		assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(ddp_loader_next(loader, &batch), DDP_ERR_IO);
		assert_string_equal(ddp_last_error(),
		                    "reading sample 9 for batch 2 of epoch 0: no number 9");
	}
	ddp_loader_free(loader);
}

static void expect_same(const ddp_batch *a, const ddp_batch *b)
{
	assert_int_equal(a->epoch, b->epoch);
	assert_int_equal(a->batch, b->batch);
	assert_int_equal(a->samples, b->samples);
	assert_memory_equal(a->data, b->data, (size_t)a->samples * sizeof(int64_t));
}

enum { STRETCH_SAMPLES = 101, STRETCH_EPOCHS = 4 };
typedef int seen_samples[STRETCH_EPOCHS + 1][STRETCH_SAMPLES];

/* Runs some updates of a world from a place on, and returns the place that follows, the same on all ranks. */
static ddp_loader_state run_updates(int world, const ddp_loader_options *options, int updates, const ddp_loader_state *from,
                                    seen_samples *seen)
{
	ddp_loader_state to = { 0 };

	for (int rank = 0; rank < world; rank++) {
		struct numbers numbers = { .broken = -1 };
		ddp_loader *loader = make(&numbers, STRETCH_SAMPLES, rank, world, *options);
		ddp_batch batch = { .epoch = 0 };

		if (from != NULL)
			assert_int_equal(ddp_loader_seek(loader, from), DDP_OK);
		for (int b = 0; b < updates * options->accumulate && ddp_loader_get_state(loader).epoch < STRETCH_EPOCHS; b++) {
			assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
			assert_true(batch.batch < ddp_loader_batches_per_epoch(loader));
			for (int64_t i = 0; i < batch.samples; i++)
				(*seen)[batch.epoch][((const int64_t *)batch.data)[i]]++;
		}
		const ddp_loader_state own = ddp_loader_get_state(loader);
		assert_true(rank == 0 || (own.epoch == to.epoch && own.samples == to.samples));
		to = own;
		ddp_loader_free(loader);
	}
	return to;
}

/* Worlds, batches and updates that do not divide one another's places: no sample is lost, none is seen twice. The most that
   a tail may repeat or drop in an epoch are the ranks but one, and less than an update, of the world that ends it. */
TEST(any_world_goes_on_at_any_place)
{
	srand(11);
	for (int turn = 0; turn < 60; turn++) {
		static seen_samples seen;
		ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .seed = 9, .tail = (ddp_tail)(turn % 3), .sequential = turn % 2 };
		ddp_loader_state at = { .epoch = 0 };

		memset(seen, 0, sizeof(seen));
		for (int stretch = 0; at.epoch < STRETCH_EPOCHS; stretch++) {
			options.batch_size = 1 + rand() % 4;
			options.accumulate = 1 + rand() % 3;
			options.readers = 1 + rand() % 2;
			at = run_updates(1 + rand() % 5, &options, 1 + rand() % 5, stretch > 0 ? &at : NULL, &seen);
		}
		for (int e = 0; e < STRETCH_EPOCHS; e++) {
			int missing = 0, repeated = 0;

			for (int i = 0; i < STRETCH_SAMPLES; i++) {
				missing += seen[e][i] == 0;
				repeated += seen[e][i] > 1 ? seen[e][i] - 1 : 0;
			}
			assert_true(missing == 0 || (options.tail == DDP_TAIL_DROP && missing < 4 * 3 * 5));
			assert_true(repeated == 0 || (options.tail == DDP_TAIL_PAD && repeated < 5));
		}
	}
}

/* Of 30 samples, batches of 4 drop two, and batches of 12 drop six. */
TEST(position_behind_what_larger_batches_drop_is_the_next_epoch)
{
	struct numbers numbers = { .broken = -1 };
	const ddp_loader_state at = { .epoch = 2, .samples = 24, .global_batch = 4, .size = 30,
	                              .tail = DDP_TAIL_DROP };
	ddp_loader *loader = make(&numbers, 30, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .batch_size = 12,
	                                                                    .tail = DDP_TAIL_DROP });
	ddp_batch batch;

	assert_int_equal(ddp_loader_seek(loader, &at), DDP_OK);
	assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
	assert_int_equal(batch.epoch, 3);
	assert_int_equal(batch.batch, 0);
	ddp_loader_free(loader);
}

TEST(position_of_another_order_is_refused)
{
	struct numbers numbers = { .broken = -1 };
	ddp_loader *loader = make(&numbers, 30, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .seed = 3 });
	const ddp_loader_state own = ddp_loader_get_state(loader);
	ddp_loader_state bad[7];

	for (int i = 0; i < 7; i++)
		bad[i] = own;
	bad[0].seed = 4;
	bad[1].size = 31;
	bad[2].sequential = true;
	bad[3].tail = DDP_TAIL_DROP;
	bad[4].samples = 32;
	bad[5].samples = -4;
	bad[6].epoch = -1;
	for (int i = 0; i < 7; i++)
		assert_int_equal(ddp_loader_seek(loader, &bad[i]), DDP_ERR_INVALID);
	assert_int_equal(ddp_loader_seek(loader, &own), DDP_OK);
	ddp_loader_free(loader);
}

TEST(free_does_not_wait_for_batches_nobody_asked_for)
{
	struct numbers numbers = { .broken = -1, .pause_us = 100 };
	ddp_loader *loader = make(&numbers, 1000000, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .sequential = true });
	ddp_batch batch;

	ddp_loader_next(loader, &batch);
	ddp_loader_free(loader);
	assert_true(numbers.reads >= 4 && numbers.reads <= 4 * 4);
	ddp_loader_free(NULL);
}

TEST(program_says_why_it_cannot_read)
{
	for (int silent = 0; silent < 2; silent++) {
		struct numbers numbers = { .broken = 2, .silent = silent, .handles = silent };
		ddp_loader *loader = make(&numbers, 20, 0, 1, (ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .sequential = true });
		ddp_batch batch;

		assert_int_equal(ddp_loader_next(loader, &batch), DDP_ERR_IO);
		assert_string_equal(ddp_last_error(), silent ?
			"reading sample 2 for batch 0 of epoch 0: the dataset's read() failed with DDP_ERR_IO and gave no reason (ddp_set_error())" :
			"reading sample 2 for batch 0 of epoch 0: no number 2");
		ddp_loader_free(loader);
	}
}

/* As one reader does: the same batches in the same order over epochs, and what is broken with
   its batch, behind those before it. */
TEST(several_readers_deliver_what_one_does)
{
	const ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .readers = 3, .prefetch = 5, .tail = DDP_TAIL_UNEVEN, .seed = 4 };
	ddp_loader_options alone = options;
	ddp_batch batch, expected;

	alone.readers = 1;
	for (int broken = 0; broken < 2; broken++) {
		struct numbers numbers = { .broken = broken ? 17 : -1, .pause_us = 50 }, others = numbers;
		ddp_loader *several = make(&numbers, 50, 1, 3, options), *one = make(&others, 50, 1, 3, alone);
		ddp_status status = DDP_OK;

		for (int b = 0; b < 40 && status == DDP_OK; b++) {
			status = ddp_loader_next(one, &expected);
			assert_int_equal(ddp_loader_next(several, &batch), status);
			if (status != DDP_OK)
				break;
			expect_same(&batch, &expected);
		}
		assert_int_equal(status, broken ? DDP_ERR_IO : DDP_OK);
		ddp_loader_free(one);
		ddp_loader_free(several);
	}
}

static ddp_status read_beside_another(void *self, int64_t index, void *sample)
{
	atomic_int *inside = self;

	/* The other reader comes, or nothing does. */
	atomic_fetch_add(inside, 1);
	while (index < 8 && atomic_load(inside) < 2)
		usleep(50);
	memcpy(sample, &index, sizeof(index));
	return DDP_OK;
}

TEST(readers_read_at_the_same_time)
{
	atomic_int inside = 0;
	const ddp_dataset dataset = { .size = 400, .sample_bytes = sizeof(int64_t), .read = read_beside_another,
	                              .self = &inside };
	const ddp_loader_options options = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .sequential = true, .readers = 2 };
	ddp_loader *loader;
	ddp_batch batch;

	assert_int_equal(ddp_loader_make(0, 1, &dataset, &options, &loader), DDP_OK);
	for (int64_t b = 0; b < 100; b++) {
		assert_int_equal(ddp_loader_next(loader, &batch), DDP_OK);
		assert_int_equal(((const int64_t *)batch.data)[0], 4 * b);
	}
	ddp_loader_free(loader);
}

TEST(wrong_options_are_named)
{
	struct numbers numbers = { .broken = -1 };
	ddp_dataset dataset = { .size = 7, .sample_bytes = 8, .read = read_number, .self = &numbers };
	ddp_loader *loader;
	struct { ddp_loader_options options; ddp_status status; const char *says; } bad[] = {
		{ DDP_LOADER_OPTIONS, DDP_ERR_INVALID, "batch_size is 0" },
		{ { DDP_LOADER_OPTIONS_FIELDS, .batch_size = -1 }, DDP_ERR_INVALID, "batch_size is -1" },
		{ { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 1, .prefetch = -1 }, DDP_ERR_INVALID, "prefetch is -1" },
		{ { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 1, .readers = -1 }, DDP_ERR_INVALID, "readers is -1" },
		{ { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .tail = DDP_TAIL_DROP }, DDP_ERR_INVALID, "an update of 8 (4 x 2 x 1: batch_size" },
		{ { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 1, .accumulate = 0 }, DDP_ERR_INVALID, "accumulate is 0" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(ddp_loader_make(0, 2, &dataset, &bad[i].options, &loader),
		                 bad[i].status);
		assert_non_null(strstr(ddp_last_error(), bad[i].says));
	}
	dataset.reserved[3] = 1;
	assert_int_equal(ddp_loader_make(0, 2, &dataset, &(ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .batch_size = 3 },
	                                 &loader), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "the dataset sets reserved[3]"));
	dataset.reserved[3] = 0;
	dataset.sample_bytes = SIZE_MAX / 2;
	assert_int_equal(ddp_loader_make(0, 2, &dataset, &(ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .batch_size = 3 },
	                                 &loader), DDP_ERR_INVALID);
	dataset.size = 0;
	assert_int_equal(ddp_loader_make(0, 2, &dataset, &(ddp_loader_options){ DDP_LOADER_OPTIONS_FIELDS, .batch_size = 3 },
	                                 &loader), DDP_ERR_INVALID);
}

/* What rank 1 gives instead, and what all ranks are told. */
static const struct {
	int64_t size;
	size_t sample_bytes;
	ddp_loader_options options;
	const char *part;
	uint64_t digest;
} odd_loaders[] = {
	{ 41, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3 }, "the number of samples in the dataset is 4", 0 },
	{ 40, 16, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3 }, "sample_bytes is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 5, .seed = 3 }, "batch_size is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 2 }, "seed is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3 + (1ull << 40) }, "the seed's upper half is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3, .sequential = true }, "sequential is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3, .tail = DDP_TAIL_UNEVEN }, "tail is", 0 },
	{ 40, 8, { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3 }, "the digest of the dataset's contents is", 1ull << 63 },
};

static int odd_loader_body(ddp_context *context, void *user)
{
	struct numbers numbers = { .broken = -1 };
	const ddp_loader_options good = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 4, .seed = 3 };
	bool odd = ddp_get_job(context)->rank == 1;
	ddp_loader *loader = NULL;

	for (size_t i = 0; i < sizeof(odd_loaders) / sizeof(odd_loaders[0]); i++) {
		const ddp_dataset dataset = { .size = odd ? odd_loaders[i].size : 40,
		                              .sample_bytes = odd ? odd_loaders[i].sample_bytes : 8,
		                              .read = read_number, .self = &numbers,
		                              .digest = odd ? odd_loaders[i].digest : 0 };
		ddp_loader_options options = odd ? odd_loaders[i].options : good;
		CHECK(ddp_loader_create(context, &dataset, &options, &loader) == DDP_ERR_MISMATCH);
		CHECK(strstr(ddp_last_error(), "ranks gave different loaders: ") != NULL);
		CHECK(strstr(ddp_last_error(), odd_loaders[i].part) != NULL);
	}
	/* A rank with a wrong argument gets its own error. */
	const ddp_dataset dataset = { .size = odd ? 0 : 40, .sample_bytes = 8, .read = read_number,
	                              .self = &numbers };
	CHECK(ddp_loader_create(context, &dataset, &good, &loader) ==
	       (odd ? DDP_ERR_INVALID : DDP_ERR_MISMATCH));
	CHECK(strstr(ddp_last_error(), odd ? "no samples" : "rank 1 could not make its loader") != NULL);
	CHECK(loader == NULL);
	return 0;
}

TEST_RUNS(ranks_agree_on_what_they_load, assert_int_equal(run_ranks(3, odd_loader_body, NULL), 0));
