/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/node/stall, spank/srun/stall_step: when a step stalls, and which rank is said to be the cause. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/stall.h"
#include "spank/srun/stall_step.h"
#include "spank/srun/step.h"
#include "tests/support/test.h"

#define SECOND 1000000000ull

enum { LIMIT = 30, NOW = 100000, RANKS = 4, TEXT_MAX = 1024 };

/* What a rank does at NOW, and for how many seconds. */
enum what { WAITS, RECEIVES, COMPUTES, EVALUATES, SAVES, WAITS_IN_EVALUATION, STOPPED, STOPPED_SAVING,
            LEFT, STOPPED_BEHIND, CHILD_LEFT, ENDED, FAILED, NO_PAGE, UNKNOWN, SAYS_WAIT };

struct planned { enum what what; uint32_t collective, seconds; };

static uint32_t phase_of(enum what what)
{
	switch (what) {
	case WAITS: case RECEIVES: case SAYS_WAIT: return DDP_PHASE_WAIT;
	case EVALUATES: case WAITS_IN_EVALUATION: return DDP_PHASE_EVAL;
	case SAVES: case STOPPED_SAVING: return DDP_PHASE_CHECKPOINT;
	default: return DDP_PHASE_FORWARD;
	}
}

static struct stall_rank rank_that(const struct planned *plan, uint32_t rank)
{
	enum what what = plan->what;
	uint64_t then_ns = (NOW - plan->seconds) * SECOND;
	bool collective = what == WAITS || what == WAITS_IN_EVALUATION;
	bool left = what == LEFT || what == STOPPED_BEHIND || what == CHILD_LEFT;
	struct stall_rank made = { .rank = what == UNKNOWN ? UINT32_MAX : rank, .changed_ns = then_ns,
		                   .stopped = what == STOPPED || what == STOPPED_SAVING || what == STOPPED_BEHIND,
		                   .is_task = what != CHILD_LEFT, .closed_ns = left ? then_ns : 0,
		                   .end = what == ENDED ? STALL_GOOD_END : what == FAILED ? STALL_BAD_END
		                          : STALL_NO_END };

	made.page = (struct ddp_progress){
		.magic = what == NO_PAGE ? 0 : DDP_PROGRESS_MAGIC, .step = 4, .bucket = -1,
		.phase = phase_of(what), .updated_ns = then_ns, .collective = plan->collective,
		.collective_ns = then_ns, .closed = left,
		.waiting = collective ? DDP_WAITING_COLLECTIVE
		           : what == RECEIVES ? DDP_WAITING_OTHER : DDP_WAITING_NOT,
		.described = collective ? plan->collective : 0,
		.writer = what == SAYS_WAIT ? DDP_WRITER_PYTHON : DDP_WRITER_LIBDDP,
	};
	if (collective)
		strcpy(made.page.collective_text, "all_reduce f32[10] sum");
	else if (what == RECEIVES)
		strcpy(made.page.collective_text, "recv from rank 3");
	return made;
}

static void take(struct stall_step *step, const struct planned *plan, uint32_t count, uint32_t first,
                 uint32_t world_size, const char *name, uint64_t now)
{
	struct stall_rank ranks[8];
	unsigned char bytes[STALL_NOTE_BYTES];
	struct stall_node node = { .name = name, .world_size = world_size, .seconds = LIMIT,
		                   .ranks = ranks, .count = count };
	struct stall_note note;

	for (uint32_t i = 0; i < count; i++)
		ranks[i] = rank_that(&plan[i], first + i);
	stall_judge_node(&node, NOW * SECOND, &note);
	stall_pack(&note, bytes);
	stall_step_take(step, bytes, now * SECOND);
}

/* NULL: it does not stall, or not yet. */
static const char *verdict(struct stall_step *step, uint64_t now)
{
	static char text[TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));

	if (stall_step_due(step) > now * SECOND)
		return NULL;
	stall_step_say(step, now * SECOND, &sink);
	assert_false(sink.full);
	return text;
}

#define STALLS "the step stalls: no rank has made progress for 31.0 s; "
#define WAITING(ranks) "; waiting: ranks " ranks " in collective #6 all_reduce f32[10] sum for 31.0 s"

TEST(step_is_judged)
{
	static const struct { struct planned ranks[RANKS]; const char *text; } cases[] = {
		/* One computes, the others wait. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { COMPUTES, 5, 32 } },
		  STALLS "rank 3 of 4 on n1 never came: it is in forward of step 4 for 32.0 s, last collective #5 "
		  "32.0 s ago" WAITING("0-2") },
		/* It did something a moment ago. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { COMPUTES, 5, 29 } }, NULL },
		/* It is in what may take any time, or nothing is known of it. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { EVALUATES, 5, 3600 } }, NULL },
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { SAVES, 5, 3600 } }, NULL },
		{ { { SAVES, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { COMPUTES, 5, 31 } }, NULL },
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { NO_PAGE, 0, 3600 } }, NULL },
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { UNKNOWN, 0, 3600 } }, NULL },
		/* Those who wait for another one in an evaluation are not busy with it. */
		{ { { WAITS_IN_EVALUATION, 6, 31 }, { WAITS_IN_EVALUATION, 6, 31 }, { WAITS_IN_EVALUATION, 6, 31 },
		    { COMPUTES, 5, 32 } },
		  STALLS "rank 3 of 4 on n1 never came: it is in forward of step 4 for 32.0 s, last collective #5 "
		  "32.0 s ago" WAITING("0-2") },
		/* Two compute: the one that has got least far. */
		{ { { WAITS, 6, 31 }, { COMPUTES, 5, 50 }, { COMPUTES, 4, 50 }, { WAITS, 6, 31 } },
		  STALLS "rank 2 of 4 on n1 never came, nor did 1 more: it is in forward of step 4 for 50.0 s, last "
		  "collective #4 50.0 s ago" WAITING("0,3") },
		/* All do but one. */
		{ { { COMPUTES, 5, 31 }, { COMPUTES, 5, 50 }, { COMPUTES, 5, 50 }, { RECEIVES, 5, 31 } },
		  STALLS "rank 0 of 4 on n0 never came, nor did 2 more: it is in forward of step 4 for 31.0 s, last "
		  "collective #5 31.0 s ago; waiting: rank 3 in recv from rank 3 for 31.0 s" },
		/* All do. */
		{ { { COMPUTES, 5, 31 }, { COMPUTES, 5, 50 }, { COMPUTES, 5, 50 }, { COMPUTES, 5, 50 } },
		  STALLS "none waits for another: rank 0 of 4 on n0 is in forward of step 4 for 31.0 s, last "
		  "collective #5 31.0 s ago" },
		/* A program of Python says that it waits, and not in which collective. */
		{ { { SAYS_WAIT, 5, 31 }, { SAYS_WAIT, 5, 31 }, { COMPUTES, 5, 32 }, { SAYS_WAIT, 5, 31 } },
		  STALLS "rank 2 of 4 on n1 never came: it is in forward of step 4 for 32.0 s, last collective #5 "
		  "32.0 s ago; waiting: ranks 0-1,3" },
		{ { { WAITS, 6, 31 }, { SAYS_WAIT, 5, 31 }, { COMPUTES, 5, 32 }, { SAYS_WAIT, 5, 31 } },
		  STALLS "rank 2 of 4 on n1 never came: it is in forward of step 4 for 32.0 s, last collective #5 "
		  "32.0 s ago" WAITING("0-1,3") },
		{ { { SAYS_WAIT, 5, 31 }, { SAYS_WAIT, 5, 31 }, { SAYS_WAIT, 4, 31 }, { SAYS_WAIT, 5, 31 } },
		  STALLS "all wait, and furthest behind is rank 2 of 4 on n1, waiting for gradients of step 4 for 31.0 s, "
		  "last collective #4 31.0 s ago; waiting: ranks 0-3" },
		/* One is stopped: whatever it does. */
		{ { { WAITS, 6, 31 }, { STOPPED, 6, 31 }, { WAITS, 6, 31 }, { COMPUTES, 5, 50 } },
		  STALLS "rank 1 of 4 on n0 is stopped by a signal or a debugger, in forward of step 4 for 31.0 s, "
		  "last collective #6 31.0 s ago" WAITING("0,2") },
		{ { { WAITS, 6, 31 }, { STOPPED_SAVING, 5, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 } },
		  STALLS "rank 1 of 4 on n0 is stopped by a signal or a debugger, writing a checkpoint of step 4 for "
		  "31.0 s, last collective #5 31.0 s ago" WAITING("0,2-3") },
		/* One has ended, one has left. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { ENDED, 5, 35 }, { WAITS, 6, 31 } },
		  STALLS "rank 2 of 4 on n1 had ended with code 0, 35.0 s before" WAITING("0-1,3") },
		{ { { WAITS, 6, 31 }, { LEFT, 5, 35 }, { ENDED, 5, 35 }, { WAITS, 6, 31 } },
		  STALLS "rank 1 of 4 on n0 had left by ddp_finalize() or destroy_process_group(), 35.0 s before" WAITING("0,3") },
		/* A whole node has. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { ENDED, 5, 35 }, { ENDED, 5, 36 } },
		  STALLS "rank 2 of 4 on n1 had ended with code 0, 35.0 s before" WAITING("0-1") },
		/* But only a moment ago. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { ENDED, 5, 1 } }, NULL },
		{ { { WAITS, 6, 31 }, { CHILD_LEFT, 5, 35 }, { ENDED, 5, 35 }, { WAITS, 6, 31 } },
		  STALLS "rank 1 of 4 on n0 had left by ddp_finalize() or destroy_process_group(), 35.0 s before" WAITING("0,3") },
		/* All have, and one does not exit, or several. */
		{ { { ENDED, 6, 31 }, { ENDED, 6, 31 }, { LEFT, 5, 35 }, { ENDED, 5, 36 } },
		  STALLS "rank 2 of 4 on n1 has not exited 35.0 s after ddp_finalize() or destroy_process_group()" },
		{ { { LEFT, 6, 31 }, { LEFT, 6, 31 }, { LEFT, 5, 35 }, { LEFT, 5, 36 } },
		  STALLS "rank 2 of 4 on n1 has not exited 35.0 s after ddp_finalize() or destroy_process_group(), nor have 3 more" },
		{ { { ENDED, 6, 31 }, { ENDED, 6, 31 }, { LEFT, 5, 29 }, { ENDED, 5, 36 } }, NULL },
		{ { { ENDED, 6, 31 }, { LEFT, 6, 31 }, { STOPPED_BEHIND, 5, 35 }, { ENDED, 5, 36 } },
		  STALLS "rank 2 of 4 on n1 is stopped by a signal or a debugger, 35.0 s after ddp_finalize() or destroy_process_group()" },
		/* The task is a script, which may do anything behind its program. */
		{ { { ENDED, 6, 31 }, { ENDED, 6, 31 }, { CHILD_LEFT, 5, 35 }, { ENDED, 5, 36 } }, NULL },
		/* One has failed, and the others carry on without it. */
		{ { { WAITS, 6, 31 }, { FAILED, 3, 500 }, { WAITS, 6, 31 }, { COMPUTES, 5, 31 } },
		  STALLS "rank 3 of 4 on n1 never came: it is in forward of step 4 for 31.0 s, last collective #5 "
		  "31.0 s ago" WAITING("0,2") },
		/* Nobody computes: the ranks are in different collectives. */
		{ { { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 6, 31 }, { WAITS, 5, 40 } },
		  STALLS "all wait, and furthest behind is rank 3 of 4 on n1, waiting for gradients of step 4 for "
		  "40.0 s, waiting in collective #5 all_reduce f32[10] sum for 40.0 s" WAITING("0-3") },
		/* It waits for a message, and the others for it. */
		{ { { RECEIVES, 5, 31 }, { RECEIVES, 5, 31 }, { RECEIVES, 5, 31 }, { COMPUTES, 5, 31 } },
		  STALLS "rank 3 of 4 on n1 never came: it is in forward of step 4 for 31.0 s, last collective #5 "
		  "31.0 s ago; waiting: ranks 0-2 in recv from rank 3 for 31.0 s" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct stall_step step = { .seconds = LIMIT };
		const char *text;
		take(&step, cases[i].ranks, 2, 0, RANKS, "n0", NOW);
		take(&step, cases[i].ranks + 2, 2, 2, RANKS, "n1", NOW);
		text = verdict(&step, NOW);
		if ((text != NULL) != (cases[i].text != NULL))
			fail_msg("case %zu: %s", i, text != NULL ? text : "no stall");
		if (text != NULL)
			assert_string_equal(text, cases[i].text);
		stall_step_end(&step);
	}
}

static const struct planned waits[2] = { { WAITS, 6, 31 }, { WAITS, 6, 31 } };
static const struct planned hangs[2] = { { WAITS, 6, 31 }, { COMPUTES, 5, 31 } };
static const struct planned runs[2] = { { WAITS, 6, 1 }, { COMPUTES, 5, 1 } };

TEST(step_says_once_until_it_goes_on)
{
	static const struct { const struct planned *ranks; uint32_t first; bool said; } told[] = {
		{ hangs, 2, false }, { waits, 0, true }, { waits, 0, false }, { runs, 2, false },
		{ waits, 0, false }, { hangs, 2, true }, { runs, 0, false }, { waits, 0, true },
	};
	struct stall_step step = { .seconds = LIMIT };

	for (size_t i = 0; i < COUNT(told); i++) {
		take(&step, told[i].ranks, 2, told[i].first, RANKS, "n", NOW + i);
		assert_int_equal(verdict(&step, NOW + i) != NULL, told[i].said);
	}
	stall_step_end(&step);
}

/* What a node told long ago is put in today's time. */
TEST(old_notes_are_dated)
{
	struct stall_step step = { .seconds = LIMIT };

	take(&step, hangs, 2, 2, RANKS, "n1", NOW - 600);
	take(&step, waits, 2, 0, RANKS, "n0", NOW);
	assert_string_equal(verdict(&step, NOW),
	                    STALLS "rank 3 of 4 on n1 never came: it is in forward of step 4 for 31.0 s, last "
	                    "collective #5 31.0 s ago (600 s ago); waiting: ranks 0-2 in collective #6 all_reduce "
	                    "f32[10] sum for 631.0 s");
	stall_step_end(&step);
}

/* A node whose tasks have ended says so at once; others leave a little later. */
TEST(end_of_a_node_counts_as_progress)
{
	static const struct planned ended[2] = { { ENDED, 6, 0 }, { ENDED, 6, 0 } };
	struct stall_rank ranks[2] = { rank_that(&ended[0], 2), rank_that(&ended[1], 3) };
	struct stall_node node = { .name = "n1", .world_size = RANKS, .ranks = ranks, .count = 2 };
	struct stall_step step = { .seconds = LIMIT };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct stall_note note;

	take(&step, waits, 2, 0, RANKS, "n0", NOW);
	stall_judge_node(&node, NOW * SECOND, &note);
	assert_true(note.stalled);
	stall_pack(&note, bytes);
	stall_step_take(&step, bytes, NOW * SECOND);
	assert_null(verdict(&step, NOW));
	assert_true(stall_step_due(&step) == (NOW + LIMIT) * SECOND);
	assert_string_equal(verdict(&step, NOW + LIMIT),
	                    "the step stalls: no rank has made progress for 30.0 s; rank 2 of 4 on n1 had ended with "
	                    "code 0, 30.0 s before; waiting: ranks 0-1 in collective #6 all_reduce f32[10] sum for "
	                    "61.0 s");
	stall_step_end(&step);
}

/* 1000 nodes of 8 ranks, told in any order. */
TEST(ranks_of_many_nodes_are_put_together)
{
	enum { NODES = 1000, EACH = 8 };
	struct planned all[EACH], one[EACH];
	struct stall_step step = { .seconds = LIMIT };
	uint64_t start_ns;
	const char *text;

	for (int i = 0; i < EACH; i++)
		all[i] = one[i] = waits[0];
	one[3] = hangs[1];
	start_ns = ddp_now_ns();
	for (uint32_t i = 0; i < NODES; i++) {
		uint32_t node = i * 7 % NODES;
		assert_null(verdict(&step, NOW));
		take(&step, node == 3 ? one : all, EACH, node * EACH, NODES * EACH, "n", NOW);
	}
	text = verdict(&step, NOW);
	assert_non_null(text);
	assert_non_null(strstr(text, "rank 27 of 8000 on n never came: "));
	assert_non_null(strstr(text, "; waiting: ranks 0-26,28-7999 in collective #6 "));
	/* Some milliseconds; a busy machine may take its time. */
	assert_true(ddp_now_ns() - start_ns < 5 * SECOND);
	stall_step_end(&step);
}

TEST(many_ranges_are_cut)
{
	struct stall_rank ranks[200];
	struct stall_node node = { .name = "n0", .world_size = 100500, .seconds = LIMIT, .ranks = ranks,
		                   .count = COUNT(ranks) };
	struct stall_step step = { .seconds = LIMIT };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct stall_note note;
	char text[TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));

	for (uint32_t i = 0; i < COUNT(ranks); i++)
		ranks[i] = rank_that(waits, 100000 + 2 * i);
	stall_judge_node(&node, NOW * SECOND, &note);
	assert_true(note.stalled && note.cut);
	stall_pack(&note, bytes);
	stall_step_take(&step, bytes, NOW * SECOND);
	stall_step_say(&step, NOW * SECOND, &sink);
	assert_non_null(strstr(text, "ranks 100000,100002,"));
	assert_non_null(strstr(text, ",100030,... in collective"));
	stall_step_end(&step);
}

/* A task may write to its page as it likes, and a user send what he likes to srun. */
TEST(wild_pages_and_notes_are_printable)
{
	struct stall_step step = { .seconds = LIMIT };
	int sound = 0;

	srandom(1);
	for (int round = 0; round < 4000; round++) {
		struct stall_rank rank = { .rank = 0, .changed_ns = SECOND };
		struct stall_node node = { .name = "n\n\x1b[1m", .world_size = 1, .ranks = &rank, .count = 1 };
		unsigned char bytes[STALL_NOTE_BYTES], *page = (unsigned char *)&rank.page;
		struct stall_note note;
		char text[TEXT_MAX];
		struct sink sink = sink_on(text, round % 2 == 0 ? sizeof(text) : 50);
		for (size_t i = 0; i < sizeof(rank.page); i++)
			page[i] = (unsigned char)random();
		rank.page.magic = DDP_PROGRESS_MAGIC;
		rank.page.phase %= 8;
		rank.page.waiting %= 3;
		stall_judge_node(&node, NOW * SECOND, &note);
		stall_pack(&note, bytes);
		if (round % 4 >= 2)
			bytes[(size_t)random() % sizeof(bytes)] = (unsigned char)random();
		stall_step_take(&step, bytes, NOW * SECOND);
		sound += stall_unpack(bytes, &note);
		stall_step_say(&step, (NOW + LIMIT) * SECOND, &sink);
		for (const char *p = text; *p != '\0'; p++)
			assert_true(*p >= ' ' && *p <= '~');
		step.said = false;
	}
	assert_true(sound >= 2000 && sound < 4000);
	stall_step_end(&step);
}

/* Behind ddp_finalize() a rank may write its results. */
TEST(processor_time_is_progress_behind_the_end)
{
	struct stall_rank rank = { .rank = 1 };
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC, .pid = 7 };

	for (int closed = 0; closed < 2; closed++) {
		page.closed = (uint32_t)closed;
		stall_see(&rank, &page, STALL_NO_END, false, 10 * SECOND);
		stall_see_task(&rank, 7, 1000, 10 * SECOND);
		assert_true(rank.is_task && rank.changed_ns == 10 * SECOND);
		stall_see(&rank, &page, STALL_NO_END, false, 12 * SECOND);
		stall_see_task(&rank, 7, 1100, 12 * SECOND);
		assert_true(rank.changed_ns == 10 * SECOND);
		stall_see(&rank, &page, STALL_NO_END, false, 14 * SECOND);
		stall_see_task(&rank, 7, 1201, 14 * SECOND);
		assert_true(rank.changed_ns == (closed ? 14 : 10) * SECOND);
		assert_true(rank.closed_ns == (closed ? 10 : 0) * SECOND);
	}
	stall_see_task(&rank, 8, 1201, 14 * SECOND);
	assert_false(rank.is_task);
	page.closed = 0;
	stall_see(&rank, &page, STALL_NO_END, false, 15 * SECOND);
	assert_true(rank.closed_ns == 0);
}

TEST(any_change_of_the_page_is_progress)
{
	struct stall_rank rank = { .rank = 1 };
	struct ddp_progress page = { .magic = DDP_PROGRESS_MAGIC };

	stall_see(&rank, &page, STALL_NO_END, false, 5 * SECOND);
	assert_true(rank.changed_ns == 5 * SECOND);
	stall_see(&rank, &page, STALL_NO_END, false, 6 * SECOND);
	assert_true(rank.changed_ns == 5 * SECOND);
	page.collective++;
	stall_see(&rank, &page, STALL_NO_END, false, 7 * SECOND);
	assert_true(rank.changed_ns == 7 * SECOND);
	page.waiting = DDP_WAITING_COLLECTIVE;
	stall_see(&rank, &page, STALL_NO_END, false, 8 * SECOND);
	assert_true(rank.changed_ns == 8 * SECOND);
	stall_see(&rank, &page, STALL_NO_END, true, 9 * SECOND);
	assert_true(rank.stopped && rank.changed_ns == 9 * SECOND);
	/* The next message, or collective of a group, in which it waits like in the last one. */
	page.collective_ns++;
	stall_see(&rank, &page, STALL_NO_END, true, 10 * SECOND);
	assert_true(rank.changed_ns == 10 * SECOND);
	stall_see(&rank, &page, STALL_GOOD_END, false, 11 * SECOND);
	assert_true(rank.changed_ns == 11 * SECOND);
	assert_false(stall_is_quiet(&rank, 2, 12 * SECOND));
	assert_true(stall_is_quiet(&rank, 2, 13 * SECOND));
	stall_forget_time(&rank, 1, SECOND);
	assert_false(stall_is_quiet(&rank, 2, 13 * SECOND));
}

/* ---- with what else srun knows ----------------------------------------------------- */

static void stall(struct step *step)
{
	struct stall_rank rank = rank_that(hangs + 1, 0);
	struct stall_node node = { .name = "n0", .world_size = 1, .seconds = LIMIT, .ranks = &rank, .count = 1 };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct stall_note note;

	stall_judge_node(&node, NOW * SECOND, &note);
	stall_pack(&note, bytes);
	step_take_stall(step, bytes, NOW * SECOND);
}

static struct step begin(bool kill_on_failure, bool kill_on_stall)
{
	const struct step_policy policy = { .hold_ms = 250, .doubt_ms = 1000, .grace_ms = 60000, .stop_ms = 60000,
		                            .kill_on_failure = kill_on_failure,
		                            .stall_seconds = LIMIT, .kill_on_stall = kill_on_stall };
	struct step step;

	step_start(&step, &policy);
	return step;
}

TEST(stall_is_said_and_ends_the_step_if_so_wished)
{
	struct relay_news bystander = { .text = "bystander", .wait_status = SIGKILL,
		                        .facts = { .end = END_BY_KILL, .sent = SENT_NOTHING } };

	for (int kill = 0; kill < 2; kill++) {
		struct step step = begin(kill == 0, kill != 0);
		struct step_action action;
		assert_true(step_due(&step) == UINT64_MAX);
		stall(&step);
		assert_true(step_due(&step) <= NOW * SECOND);
		assert_true(step_act(&step, NOW * SECOND, &action));
		assert_int_equal(action.kill, kill);
		assert_non_null(strstr(action.text, "rank 0 of 1 on n0 is in forward"));
		assert_int_equal(strstr(action.text, "; the step is ended (stall-action=kill)") != NULL, kill);
		assert_false(step_act(&step, NOW * SECOND, &action));
		/* It is asked for again only if that was in vain; none that it ends is reported. */
		assert_int_equal(step_due(&step) != UINT64_MAX, kill);
		if (kill != 0)
			step_take(&step, &bystander, false, NOW * SECOND);
		assert_false(step_finish(&step, &action));
	}
}

/* Whatever stall= says: nobody is left who could bring them on. */
TEST(waits_for_a_rank_that_never_begins_are_told)
{
	enum { SECOND_NS = 1000000000 };
	const struct ddp_progress first = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .waiting = DDP_WAITING_OTHER,
		                            .collective_ns = SECOND_NS, .updated_ns = SECOND_NS,
		                            .collective_text = DDP_PROGRESS_FIRST_EXCHANGE };
	const struct ddp_progress none = { .magic = 0 };
	struct stall_rank ranks[2] = { { .rank = 0 }, { .rank = 1 } };
	const struct stall_node node = { .name = "n0", .world_size = 2, .ranks = ranks, .count = 2 };
	struct stall_note note;

	/* A rank may still come to it, */
	stall_see(&ranks[0], &first, STALL_NO_END, false, SECOND_NS);
	stall_see(&ranks[1], &none, STALL_NO_END, false, SECOND_NS);
	assert_true(stall_judge_start(&node, 3ull * SECOND_NS, &note));
	assert_false(note.stalled);
	/* or has ended without it. A wait is told after half a second. */
	stall_see(&ranks[1], &none, STALL_GOOD_END, false, SECOND_NS);
	assert_true(stall_judge_start(&node, SECOND_NS + SECOND_NS / 4, &note));
	assert_false(note.stalled);
	assert_true(stall_judge_start(&node, 3ull * SECOND_NS, &note));
	assert_true(note.stalled);
	assert_int_equal(note.kind, STALL_ENDED);
	assert_int_equal(note.at_work, 1);
	assert_string_equal(note.wait, DDP_PROGRESS_FIRST_EXCHANGE);
	/* Past it, no look is needed any more. */
	ranks[0].page.waiting = DDP_WAITING_NOT;
	assert_false(stall_judge_start(&node, 3ull * SECOND_NS, &note));
	assert_false(note.stalled);
}

/* A node of one rank tells srun its note of this moment. */
static void tell(struct stall_step *step, uint32_t rank, const struct ddp_progress *page, enum stall_end end)
{
	struct stall_rank ranks[1] = { { .rank = rank } };
	const struct stall_node node = { .name = "n", .world_size = 2, .ranks = ranks, .count = 1 };
	unsigned char bytes[STALL_NOTE_BYTES];
	struct stall_note note;

	stall_see(&ranks[0], page, end, false, NOW * SECOND);
	stall_judge_node(&node, NOW * SECOND, &note);
	assert_true(note.stalled);
	stall_pack(&note, bytes);
	stall_step_take(step, bytes, NOW * SECOND);
}

/* ---- ranks that others give up for --------------------------------------------------- */

/* What a node tells of ranks that keep others waiting; `asked`: so many seconds ago. */
static bool take_late(struct stall_step *step, const struct planned ranks[2], uint32_t asked, bool seen_before)
{
	struct stall_rank made[2] = { rank_that(&ranks[0], 2), rank_that(&ranks[1], 3) };
	struct stall_node node = { .name = "n1", .world_size = RANKS, .ranks = made, .count = 2 };
	struct stall_note note = { .ranks = 2, .lowest = 2, .world_size = RANKS };
	unsigned char bytes[STALL_NOTE_BYTES];
	bool late;

	for (int i = 0; i < 2; i++) {
		made[i].page.wanted_ns = (NOW - asked) * SECOND;
		if (!seen_before)
			made[i].changed_ns = NOW * SECOND;
	}
	late = stall_judge_late(&node, NOW * SECOND, &note);
	assert_false(note.stalled);
	stall_pack(&note, bytes);
	stall_step_take(step, bytes, NOW * SECOND);
	assert_true(stall_step_due(step) == UINT64_MAX);
	return late;
}

static const char *hearsay(const struct stall_step *step, const char *text, uint64_t now)
{
	static char whole[TEXT_MAX];
	struct sink sink = sink_on(whole, sizeof(whole));

	stall_step_add_hearsay(step, text, now * SECOND, &sink);
	return whole;
}

TEST(who_keeps_others_waiting_is_told)
{
	static const struct { struct planned ranks[2]; uint32_t asked; bool seen_before, late; const char *who; } nodes[] = {
		{ { { WAITS, 6, 3 }, { COMPUTES, 5, 3 } }, 1, true, true,
		  "rank 3 of 4 on n1 did not come (in forward of step 4 for 3.0 s, last collective #5 3.0 s ago); rank 1" },
		/* Nobody has asked, or not lately. */
		{ { { WAITS, 6, 3 }, { COMPUTES, 5, 3 } }, NOW, true, false, "rank 3 of 4 did not come; rank 1" },
		{ { { WAITS, 6, 3 }, { COMPUTES, 5, 3 } }, 60, true, false, "rank 3 of 4 did not come; rank 1" },
		/* It waits itself, has ended, or has no page. */
		{ { { WAITS, 6, 3 }, { WAITS, 5, 3 } }, 1, true, false, "rank 3 of 4 did not come; rank 1" },
		{ { { WAITS, 6, 3 }, { ENDED, 5, 3 } }, 1, true, false, "rank 3 of 4 did not come; rank 1" },
		{ { { WAITS, 6, 3 }, { NO_PAGE, 5, 3 } }, 1, true, false, "rank 3 of 4 did not come; rank 1" },
		/* One is stopped, whoever has asked; but a stop of this moment may be over. */
		{ { { WAITS, 6, 3 }, { STOPPED, 5, 3 } }, NOW, true, true,
		  "rank 3 of 4 on n1 did not come (stopped by a signal or a debugger, in forward of step 4 for 3.0 s, "
		  "last collective #5 3.0 s ago); rank 1" },
		{ { { WAITS, 6, 3 }, { STOPPED, 5, 3 } }, NOW, false, false, "rank 3 of 4 did not come; rank 1" },
		/* Others blame a rank that waits for the one that is stopped. */
		{ { { STOPPED, 5, 3 }, { WAITS, 6, 3 } }, NOW, true, true,
		  "rank 2 of 4 on n1 is stopped by a signal or a debugger, in forward of step 4 for 3.0 s, "
		  "last collective #5 3.0 s ago; rank 3 of 4 did not come; rank 1" },
	};

	for (size_t i = 0; i < COUNT(nodes); i++) {
		struct stall_step step = { .seconds = 0 };
		assert_int_equal(take_late(&step, nodes[i].ranks, nodes[i].asked, nodes[i].seen_before), nodes[i].late);
		assert_string_equal(hearsay(&step, "rank 3 of 4 did not come; rank 1", NOW), nodes[i].who);
		stall_step_end(&step);
	}
}

TEST(hearsay_is_told_with_what_is_known)
{
	static const struct planned stopped[2] = { { WAITS, 6, 3 }, { STOPPED, 5, 3 } };
	struct stall_step step = { .seconds = 0 };
	struct planned asked[2] = { { WAITS, 6, 3 }, { COMPUTES, 5, 3 } };

	assert_string_equal(hearsay(&step, "rank 1", NOW), "rank 1");
	take_late(&step, asked, 1, true);
	/* A rank that runs is no cause of what others say of a third one. */
	assert_string_equal(hearsay(&step, "rank 2 of 4 on n1 was lost; rank 1: a; b", NOW),
	                    "rank 2 of 4 on n1 was lost; rank 1: a; b");
	assert_string_equal(hearsay(&step, "rank 3 of 40 on n1 was lost; rank 1", NOW),
	                    "rank 3 of 40 on n1 was lost; rank 1");
	assert_string_equal(hearsay(&step, "rank 3 of 4 on n1 exited; rank 2 of 4 on n1 was lost; rank 1", NOW),
	                    "rank 3 of 4 on n1 exited; rank 2 of 4 on n1 was lost; rank 1");
	take_late(&step, stopped, 1, true);
	assert_string_equal(hearsay(&step, "rank 3 of 4 on n1 was lost; rank 1", NOW + 4),
	                    "rank 3 of 4 on n1 was lost (stopped by a signal or a debugger, in forward of step 4 "
	                    "for 3.0 s, last collective #5 3.0 s ago (4 s ago)); rank 1");
	/* It has gone on. */
	take_late(&step, waits, NOW, true);
	assert_string_equal(hearsay(&step, "rank 3 of 4 did not come; rank 1", NOW), "rank 3 of 4 did not come; rank 1");
	stall_step_end(&step);
}

/* A rank comes late to ddp_init(), and all end soon: the other node's word, that its rank waits
   there, is older than the end of this one. */
TEST(rank_that_came_late_and_ended_has_begun)
{
	const struct ddp_progress first = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .waiting = DDP_WAITING_OTHER,
		                            .collective_text = DDP_PROGRESS_FIRST_EXCHANGE };
	const struct ddp_progress left = { .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .closed = 1 };
	const struct ddp_progress none = { .magic = 0 };
	struct stall_step step = { .seconds = 5 };

	tell(&step, 0, &first, STALL_NO_END);
	tell(&step, 1, &left, STALL_GOOD_END);
	assert_false(stall_step_is_blocked(&step));
	tell(&step, 1, &none, STALL_GOOD_END);
	assert_true(stall_step_is_blocked(&step));
	stall_step_end(&step);
}

TEST(no_stall_is_said_of_a_step_that_fails_or_stops)
{
	struct relay_news failure = { .text = "rank 1", .wait_status = 7 << 8,
		                      .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
	struct step step = begin(true, true);
	struct step_action action;

	step_take(&step, &failure, false, NOW * SECOND);
	stall(&step);
	assert_true(step_act(&step, (NOW + 1) * SECOND, &action));
	assert_string_equal(action.text, "rank 1");
	assert_false(step_act(&step, (NOW + 1) * SECOND, &action));
	step_finish(&step, &action);

	/* A rank has saved and ended, as Slurm has asked it to; another one still saves. */
	step = begin(true, true);
	failure.facts.sent = SENT_STOP;
	step_take(&step, &failure, false, NOW * SECOND);
	stall(&step);
	assert_false(step_act(&step, (NOW + 59) * SECOND, &action));
	step_finish(&step, &action);

	/* Where a failure ends nothing, the rest may stall later. */
	step = begin(false, true);
	failure.facts.sent = SENT_NOTHING;
	step_take(&step, &failure, false, NOW * SECOND);
	assert_true(step_act(&step, (NOW + 1) * SECOND, &action));
	assert_false(action.kill);
	stall(&step);
	assert_true(step_act(&step, (NOW + 1) * SECOND, &action));
	assert_true(action.kill);
	step_finish(&step, &action);
}
