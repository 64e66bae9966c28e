/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* slow=: node/stall_watch.c measures windows, srun/pace_step.c judges them. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/node/stall_watch.h"
#include "spank/srun/pace_step.h"
#include "tests/support/test.h"

enum { WORLD = 8, PER_NODE = 4, MS = 1000 };

static char said[4096];

/* A node's note of one window; times in microseconds. */
static bool tell(struct pace_step *step, uint32_t node, const uint32_t host_us[WORLD], const uint32_t own_us[WORLD])
{
	struct pace_note note = { .world_size = WORLD, .steps = 50, .count = PER_NODE };
	unsigned char bytes[PACE_NOTE_BYTES];

	snprintf(note.node, sizeof(note.node), "n%u", node);
	for (uint32_t i = 0; i < PER_NODE; i++) {
		uint32_t rank = node * PER_NODE + i;
		note.ranks[i] = (struct pace_rank_note){ rank, host_us[rank], own_us[rank] };
	}
	pace_pack(&note, bytes);
	return pace_step_take(step, bytes);
}

/* All nodes tell a window. Returns what is said, each line with its end. */
static const char *round_of(struct pace_step *step, const uint32_t host_us[WORLD], const uint32_t own_us[WORLD])
{
	struct sink all = sink_on(said, sizeof(said));
	char line[512];

	for (uint32_t node = 0; node < WORLD / PER_NODE; node++) {
		struct sink sink = sink_on(line, sizeof(line));
		if (!tell(step, node, host_us, own_us))
			continue;
		for (; pace_step_say(step, &sink); sink = sink_on(line, sizeof(line)))
			sink_add(&all, "%s\n", line);
	}
	return said;
}

static void set(uint32_t times_us[WORLD], uint32_t us)
{
	for (int i = 0; i < WORLD; i++)
		times_us[i] = us;
}

TEST(a_slow_rank_is_told_once_and_again_when_it_was_not)
{
	struct pace_step step = { .percent = 150 };
	uint32_t even[WORLD], slow[WORLD];

	set(even, 20 * MS);
	set(slow, 20 * MS);
	slow[3] = 36 * MS;
	for (int again = 0; again < 2; again++) {
		assert_string_equal(round_of(&step, slow, slow), "");
		assert_string_equal(round_of(&step, slow, slow), "");
		assert_string_equal(round_of(&step, slow, slow), "rank 3 on n0 computes 1.8 times as long as the median of 8 ranks: "
		                    "36.0 ms a step, and the median is 20.0 ms, over 150 steps\n");
		for (int i = 0; i < 100; i++)
			assert_string_equal(round_of(&step, slow, slow), "");
		/* Two rounds are too few to take it back. */
		for (int i = 0; i < 2; i++)
			assert_string_equal(round_of(&step, even, even), "");
		for (int i = 0; i < 4; i++)
			assert_string_equal(round_of(&step, slow, slow), "");
		for (int i = 0; i < 3; i++)
			assert_string_equal(round_of(&step, even, even), "");
	}
	pace_step_end(&step);
}

TEST(ranks_of_a_node_come_in_one_line)
{
	struct pace_step step = { .percent = 150 };
	uint32_t slow[WORLD];

	set(slow, 20 * MS);
	slow[1] = slow[4] = slow[5] = slow[7] = 40 * MS;
	for (int i = 0; i < 2; i++)
		assert_string_equal(round_of(&step, slow, slow), "");
	round_of(&step, slow, slow);
	assert_string_equal(said, "rank 1 on n0 computes 2.0 times as long as the median of 8 ranks: 40.0 ms a step, and the median is "
	                    "20.0 ms, over 150 steps\n"
	                    "ranks 4-5, 7 on n1 compute 2.0 times as long as the median of 8 ranks: 40.0 ms a step, and the median is "
	                    "20.0 ms, over 150 steps\n");
	pace_step_end(&step);
}

/* Its threads could run, and had no processor. */
TEST(a_rank_without_a_processor_is_not_slow)
{
	struct pace_step step = { .percent = 150 };
	uint32_t host[WORLD], own[WORLD];

	set(host, 20 * MS);
	set(own, 20 * MS);
	host[3] = 60 * MS;
	for (int i = 0; i < 100; i++)
		assert_string_equal(round_of(&step, host, own), "");
	/* Nor is one that is slow only in comparison with ranks that had none. */
	set(host, 60 * MS);
	own[3] = 40 * MS;
	for (int i = 0; i < 100; i++)
		assert_string_equal(round_of(&step, host, own), "");
	pace_step_end(&step);
}

TEST(less_than_a_millisecond_is_no_difference)
{
	struct pace_step step = { .percent = 150 };
	uint32_t slow[WORLD];

	set(slow, 500);
	slow[3] = 1499;
	for (int i = 0; i < 100; i++)
		assert_string_equal(round_of(&step, slow, slow), "");
	slow[3] = 1500;
	for (int i = 0; i < 2; i++)
		assert_string_equal(round_of(&step, slow, slow), "");
	assert_string_not_equal(round_of(&step, slow, slow), "");
	pace_step_end(&step);
}

static uint32_t random_below(uint64_t *seed, uint32_t limit)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33) % limit;
}

/* Windows of a machine on which anything else runs: each window of each rank may take up to three times as long, and is told
   as half discounted. */
TEST(an_even_training_is_never_slow)
{
	struct pace_step step = { .percent = 150 };
	uint64_t seed = 1;

	for (int i = 0; i < 20000; i++) {
		uint32_t host[WORLD], own[WORLD], base = 5 * MS + random_below(&seed, 100 * MS);
		for (int rank = 0; rank < WORLD; rank++) {
			/* One in 30 is far behind. */
			const bool late = random_below(&seed, 30) == 0;
			own[rank] = base + random_below(&seed, base / (late ? 1 : 5));
			host[rank] = own[rank] + random_below(&seed, 2 * base);
		}
		assert_string_equal(round_of(&step, host, own), "");
	}
	pace_step_end(&step);
}

TEST(a_slow_rank_is_found_in_noise)
{
	uint64_t seed = 5;

	for (int run = 0; run < 200; run++) {
		struct pace_step step = { .percent = 150 };
		int lines = 0;
		for (int i = 0; i < 100; i++) {
			uint32_t own[WORLD], base = 20 * MS;
			for (int rank = 0; rank < WORLD; rank++)
				own[rank] = base + random_below(&seed, base / 5);
			own[6] = own[6] * 9 / 5;
			round_of(&step, own, own);
			lines += said[0] != '\0';
			assert_true(said[0] == '\0' || strncmp(said, "rank 6 on n1 ", 13) == 0);
		}
		assert_int_equal(lines, 1);
		pace_step_end(&step);
	}
}

TEST(a_node_that_tells_no_more_does_not_count)
{
	struct pace_step step = { .percent = 150 };
	uint32_t slow[WORLD];
	char line[512];
	bool any = false;

	set(slow, 20 * MS);
	round_of(&step, slow, slow);
	slow[1] = 40 * MS;
	for (int i = 0; i < 20; i++)
		any |= tell(&step, 0, slow, slow);
	/* Half of the ranks are too few. */
	assert_false(any);
	round_of(&step, slow, slow);
	round_of(&step, slow, slow);
	round_of(&step, slow, slow);
	struct sink sink = sink_on(line, sizeof(line));
	assert_false(pace_step_say(&step, &sink));
	assert_non_null(strstr(said, "rank 1 on n0"));
	pace_step_end(&step);
}

TEST(a_note_that_is_none_is_refused)
{
	struct pace_note note = { .world_size = 4, .steps = 50, .count = 1, .node = "n\001", .ranks = { { 3, 7, 5 } } }, got;
	unsigned char bytes[PACE_NOTE_BYTES];

	pace_pack(&note, bytes);
	assert_true(pace_unpack(bytes, &got));
	assert_string_equal(got.node, "n?");
	assert_int_equal(got.ranks[0].rank, 3);
	note.ranks[0].rank = 4;
	pace_pack(&note, bytes);
	assert_false(pace_unpack(bytes, &got));
	note.ranks[0] = (struct pace_rank_note){ 3, 7, 8 };
	pace_pack(&note, bytes);
	assert_false(pace_unpack(bytes, &got));
	memset(bytes, 0xff, sizeof(bytes));
	assert_false(pace_unpack(bytes, &got));
	memset(bytes, 0, sizeof(bytes));
	assert_false(pace_unpack(bytes, &got));
}

/* ---- the node --------------------------------------------------------------------------- */

static void see(struct pace_watch *watch, uint64_t steps, uint64_t ns_per_step)
{
	struct ddp_progress slots[DDP_PROGRESS_SLOTS] = { { .magic = 0 } };

	for (uint32_t i = 0; i < 3; i++) {
		slots[2] = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .pid = (uint32_t)getpid(),
			                          .compute_steps = steps, .compute_ns = steps * ns_per_step * (i + 1) };
		/* The third tells nothing. */
		slots[2].closed = i == 2;
		pace_add_page(watch, i, 10 + i, slots, false);
	}
}

TEST(a_window_has_steps_and_time)
{
	const uint64_t second = 1000000000u;
	uint64_t now_ns = 100 * second;
	struct pace_watch watch;
	struct pace_note note;

	assert_true(pace_open(&watch, 3, 2));
	see(&watch, 100, 5000000);
	assert_false(pace_next_note(&watch, 16, now_ns, &note));
	/* Too few steps, then too little time */
	see(&watch, 149, 5000000);
	assert_false(pace_next_note(&watch, 16, now_ns + 3 * second, &note));
	see(&watch, 150, 5000000);
	assert_false(pace_next_note(&watch, 16, now_ns + second, &note));
	assert_true(pace_next_note(&watch, 16, now_ns + 3 * second, &note));
	assert_int_equal(note.count, 2);
	assert_int_equal(note.steps, 50);
	assert_int_equal(note.world_size, 16);
	assert_int_equal(note.ranks[0].rank, 10);
	assert_int_equal(note.ranks[0].host_us, 5000);
	assert_int_equal(note.ranks[1].host_us, 10000);
	assert_true(note.ranks[1].own_us <= 10000);
	/* The next window begins there, and long steps need fewer. */
	now_ns += 3 * second;
	assert_false(pace_next_note(&watch, 16, now_ns, &note));
	see(&watch, 155, 5000000);
	assert_false(pace_next_note(&watch, 16, now_ns + 299 * second, &note));
	assert_true(pace_next_note(&watch, 16, now_ns + 300 * second, &note));
	assert_int_equal(note.steps, 5);
	/* Another program begins at 0. */
	see(&watch, 5, 5000000);
	assert_false(pace_next_note(&watch, 16, now_ns + 900 * second, &note));
	see(&watch, 60, 5000000);
	assert_true(pace_next_note(&watch, 16, now_ns + 903 * second, &note));
	assert_int_equal(note.steps, 55);
	pace_forget(&watch);
	assert_false(pace_next_note(&watch, 16, now_ns + 2000 * second, &note));
	munmap(watch.ranks, 3 * sizeof(*watch.ranks));
}

TEST(many_ranks_come_in_several_notes)
{
	enum { COUNT = PACE_RANKS_MAX + 3 };
	struct ddp_progress slots[DDP_PROGRESS_SLOTS] = { { .magic = DDP_PROGRESS_MAGIC, .pid = (uint32_t)getpid() } };
	struct pace_watch watch;
	struct pace_note note;

	assert_true(pace_open(&watch, COUNT, 1));
	for (uint64_t round = 1; round <= 2; round++) {
		slots[0].compute_steps = round * 100;
		slots[0].compute_ns = round * 100000000;
		for (uint32_t i = 0; i < COUNT; i++)
			pace_add_page(&watch, i, i, slots, false);
		assert_int_equal(pace_next_note(&watch, COUNT, round * 5000000000u, &note), round == 2);
	}
	assert_int_equal(note.count, PACE_RANKS_MAX);
	assert_true(pace_next_note(&watch, COUNT, 10100000000u, &note));
	assert_int_equal(note.count, 3);
	assert_int_equal(note.ranks[2].rank, COUNT - 1);
	assert_false(pace_next_note(&watch, COUNT, 10200000000u, &note));
	munmap(watch.ranks, COUNT * sizeof(*watch.ranks));
}

TEST(the_kernel_tells_who_waited_for_a_processor)
{
	assert_int_equal(pace_wait_ns(0x7ffffff0), 0);
	if (access("/proc/self/schedstat", R_OK) != 0)
		skip();
	assert_true(pace_wait_ns(getpid()) > 0);
}
