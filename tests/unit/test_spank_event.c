/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/event: a failure as a line that programs read. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "spank/slurmctld/requeue_judge.h"
#include "spank/wire/event.h"
#include "tests/support/test.h"

static struct event crash(const char *text)
{
	struct event event = event_begin(EVENT_CRASH);

	event.job_id = 12;
	event.step_id = 0;
	event.uid = 1000;
	event.node = "n1";
	event.rank = 3;
	event.world_size = 4;
	event.wait_status = SIGSEGV;
	event.seconds = 8.25;
	event.training_step = 7;
	event.time = 1764151200;
	event.text = text;
	return event;
}

TEST(line_has_what_is_known)
{
	struct event event = crash("rank 3 of 4 on n1 was killed");
	char line[EVENT_LINE_MAX];

	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=crash job=12 step=0 uid=1000 node=n1 rank=3 ranks=4 signal=11 seconds=8.2 "
	                    "training_step=7 time=1764151200 text=\"rank 3 of 4 on n1 was killed\"");
	event = event_begin(EVENT_STALL);
	event.stalls = 2;
	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=stall stalls=2");
	event = event_begin(EVENT_EXIT);
	event.wait_status = 7 << 8;
	event_write(&event, line, sizeof(line));
	assert_string_equal(line, "failure v=1 kind=exit code=7");
}

TEST(nobody_forges_a_key_or_a_line)
{
	struct event event = crash("x\" kind=exit\ntext=\"\\ [ddp: run 1]\x1b\xff");
	char line[EVENT_LINE_MAX];

	event.node = "n1 kind=exit\n";
	event_write(&event, line, sizeof(line));
	assert_non_null(strstr(line, " node=n1?kind?exit? rank"));
	assert_non_null(strstr(line, " text=\"x\\\" kind=exit?text=\\\"\\\\ (ddp: run 1)??\""));
	assert_null(strchr(line, '\n'));
}

TEST(long_texts_are_cut_within_their_quotes)
{
	char text[2000], line[EVENT_LINE_MAX];
	struct event event;

	for (int quotes = 0; quotes < 2; quotes++) {
		memset(text, quotes ? '"' : 'x', sizeof(text) - 1);
		text[sizeof(text) - 1] = '\0';
		event = crash(text);
		for (size_t room = sizeof(line); room > 160; room -= 7) {
			event_write(&event, line, room);
			size_t length = strlen(line);
			assert_true(length < room);
			assert_int_equal(line[length - 1], '"');
			/* A backslash before the last quote would make it one of the text. */
			assert_true(!quotes || line[length - 2] == '"');
		}
	}
}

TEST(kinds_follow_from_the_facts)
{
	static const struct { struct end_facts facts; enum event_kind kind; } cases[] = {
		{ { .end = END_CODE }, EVENT_EXIT },
		{ { .end = END_CRASH }, EVENT_CRASH },
		{ { .end = END_BY_KILL }, EVENT_KILLED },
		{ { .end = END_BY_KILL, .out_of_memory = true }, EVENT_MEMORY },
		{ { .end = END_BY_REQUEST }, EVENT_STOPPED },
		{ { .end = END_CODE, .blames_peer = true }, EVENT_PEER },
		{ { .end = END_CODE, .blames_peer = true, .names_peer = true }, EVENT_EXIT },
		{ { .end = END_CODE, .silent = true }, EVENT_SILENCE },
		{ { .end = END_BY_KILL, .node_failed = true }, EVENT_NODE },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(event_kind_of(&cases[i].facts), cases[i].kind);
}

TEST(comment_keeps_the_users_words_and_one_note)
{
	static const struct { const char *before, *after; } cases[] = {
		{ NULL, "[ddp: failure v=1 kind=stall]" },
		{ "", "[ddp: failure v=1 kind=stall]" },
		{ "mine", "mine [ddp: failure v=1 kind=stall]" },
		{ "mine [ddp: failure v=1 kind=exit code=3 text=\"a\"]", "mine [ddp: failure v=1 kind=stall]" },
		{ "mine [ddp: failure v=1 kind=exit] [ddp: run 1 failed in step 12]",
		  "mine [ddp: failure v=1 kind=stall] [ddp: run 1 failed in step 12]" },
		{ "mine [ddp: run 0 failed at once]", "mine [ddp: failure v=1 kind=stall] [ddp: run 0 failed at once]" },
		{ "[ddp: failure is what I fear", "[ddp: failure is what I fear [ddp: failure v=1 kind=stall]" },
	};
	const struct event event = event_begin(EVENT_STALL);
	struct requeue_note note = { .step = 12 };
	char text[512], again[512];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_true(event_comment(&event, cases[i].before, text, sizeof(text)));
		assert_string_equal(text, cases[i].after);
		assert_true(event_comment(&event, text, again, sizeof(again)));
	}
	assert_false(event_comment(&event, "mine", text, 20));
	/* Both notes of one failure. */
	assert_true(event_comment(&event, "mine", text, sizeof(text)));
	assert_true(requeue_write_note(text, 1, &note, again, sizeof(again)));
	assert_string_equal(again, "mine [ddp: failure v=1 kind=stall] [ddp: run 1 failed in step 12]");
	assert_true(requeue_read_note(again, 1, &note));
	assert_int_equal(note.step, 12);
}
