/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/srun/presence: which nodes have started tasks and not reported; no clock. */
#include <stdio.h>
#include <string.h>

#include "spank/srun/presence.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"
#include "tests/support/test.h"

#define MS 1000000ull

enum { START = 1000000, TEXT = 1024 };

/* Tasks 0 and 1 on n0, 2 on n1, 3 on n2, seen to start at START. */
static struct presence begin(struct presence_policy policy)
{
	static const char *const hosts[] = { "n0", "n0", "n1", "n2" };
	struct presence presence = { .policy = policy };

	assert_true(presence_begin(&presence, 4, START * MS));
	for (uint32_t i = 0; i < 4; i++)
		presence_start(&presence, i, hosts[i], START * MS);
	return presence;
}

static const char *say(struct presence *presence, enum presence_state state)
{
	static char text[TEXT];
	struct sink sink = sink_on(text, sizeof(text));

	presence_describe(presence, state, &sink);
	return text;
}

TEST(nodes_that_report_are_there)
{
	struct presence presence = begin((struct presence_policy){ .refuse = true });
	bool any;

	assert_int_equal(presence_silent(&presence, &any), 3);
	assert_false(any);
	/* Any task of a node speaks for it, and once is enough. */
	presence_report(&presence, 1, "");
	presence_report(&presence, 1, "");
	presence_report(&presence, 2, "");
	assert_int_equal(presence_silent(&presence, &any), 1);
	assert_true(any);
	assert_true(presence_due(&presence, (START + 1) * MS) < UINT64_MAX);
	presence_report(&presence, 4, "");
	presence_report(&presence, UINT32_MAX, "");
	assert_int_equal(presence_silent(&presence, &any), 1);
	presence_report(&presence, 3, "");
	assert_int_equal(presence_silent(&presence, &any), 0);
	assert_true(presence_due(&presence, (START + 1) * MS) == UINT64_MAX);
	assert_false(presence_is_late(&presence, (START + 10 * UNSURE_MS) * MS));
	presence_end(&presence);
}

TEST(a_task_that_slurm_has_not_started_is_waited_for)
{
	struct presence presence = { .policy = { .refuse = true } };
	bool any;

	assert_true(presence_due(&presence, START * MS) == UINT64_MAX);
	assert_false(presence_begin(&presence, 0, START * MS));
	assert_true(presence_begin(&presence, 2, START * MS));
	presence_report(&presence, 0, "");
	/* A report may come before srun hears that the task has started. */
	presence_start(&presence, 0, "n0", START * MS);
	presence_start(&presence, 1, "", START * MS);
	presence_start(&presence, 1, "n1\n", START * MS);
	presence_start(&presence, 2, "n2", START * MS);
	assert_int_equal(presence_silent(&presence, &any), 0);
	assert_true(presence_due(&presence, (START + 60000) * MS) < UINT64_MAX);
	assert_false(presence_is_late(&presence, (START + 100 * UNSURE_MS) * MS));
	presence_start(&presence, 1, "n1", (START + 60000) * MS);
	assert_false(presence_is_late(&presence, (START + 60000 + SILENT_MS - 1) * MS));
	assert_true(presence_is_late(&presence, (START + 60000 + SILENT_MS) * MS));
	/* Once. */
	assert_false(presence_is_late(&presence, (START + 60000 + SILENT_MS) * MS));
	assert_true(presence_due(&presence, (START + 60000 + SILENT_MS) * MS) == UINT64_MAX);
	presence_end(&presence);
}

TEST(another_plugin_that_prepares_tasks_is_waited_for)
{
	struct presence presence = begin((struct presence_policy){ .refuse = true, .unsure = true });

	presence_report(&presence, 0, "");
	assert_false(presence_is_late(&presence, (START + SILENT_MS) * MS));
	assert_true(presence_is_late(&presence, (START + UNSURE_MS) * MS));
	assert_non_null(strstr(say(&presence, PRESENCE_RUNS), "still prepares the tasks"));
	assert_non_null(strstr(say(&presence, PRESENCE_FAILED), "still prepares the tasks"));
	assert_null(strstr(say(&presence, PRESENCE_SUCCEEDED), "still prepares the tasks"));
	presence_end(&presence);
}

/* A failure waits for them, but only as long as they are likely to report at all. */
TEST(nodes_that_may_tell_of_an_earlier_failure_are_waited_for)
{
	struct presence presence = { .tasks = 0 };

	assert_int_equal(presence_untold_until(&presence, (START + 10) * MS, 1500 * MS), 0);
	assert_true(presence_begin(&presence, 2, START * MS));
	presence_start(&presence, 0, "n0", START * MS);
	presence_report(&presence, 0, "n0");
	/* The other one may have started, and srun has not seen it. */
	assert_int_equal(presence_untold_until(&presence, (START + 9000) * MS, 1500 * MS), (START + 10500) * MS);
	presence_start(&presence, 1, "n1", (START + 20) * MS);
	assert_int_equal(presence_untold_until(&presence, (START + 10) * MS, 1500 * MS), (START + 1510) * MS);
	assert_int_equal(presence_untold_until(&presence, (START + 9000) * MS, 1500 * MS), (START + 1520) * MS);
	presence_report(&presence, 1, "n1");
	assert_int_equal(presence_untold_until(&presence, (START + 10) * MS, 1500 * MS), 0);
	presence_end(&presence);
	/* It was said that they do not report. */
	presence = begin((struct presence_policy){ .refuse = true });
	assert_true(presence_untold_until(&presence, (START + 10) * MS, 1500 * MS) > 0);
	assert_true(presence_is_late(&presence, (START + SILENT_MS) * MS));
	assert_int_equal(presence_untold_until(&presence, (START + SILENT_MS) * MS, 1500 * MS), 0);
	presence_end(&presence);
}

/* A failure's message has the node's name and no rank; a stall's note has a rank and no name. */
TEST(any_message_of_a_node_is_its_report)
{
	struct presence presence = begin((struct presence_policy){ .refuse = true });
	bool any;

	presence_report(&presence, UINT32_MAX, "n2");
	presence_report(&presence, UINT32_MAX, "n2");
	presence_report(&presence, UINT32_MAX, "");
	presence_report(&presence, UINT32_MAX, "another");
	assert_int_equal(presence_silent(&presence, &any), 2);
	assert_true(any);
	presence_report(&presence, UINT32_MAX, "n0");
	presence_report(&presence, 2, "");
	assert_int_equal(presence_silent(&presence, &any), 0);
	assert_true(presence_due(&presence, START * MS) == UINT64_MAX);
	presence_end(&presence);
}

/* srun notes a node's tasks one after the other, and may not be done with that when the step ends. */
TEST(a_node_of_which_srun_has_noted_some_tasks_is_not_silent)
{
	struct presence presence = { .policy = { .refuse = true } };
	bool any;

	assert_true(presence_begin(&presence, 3, START * MS));
	presence_start(&presence, 0, "n0", START * MS);
	presence_report(&presence, 1, "n0");
	assert_int_equal(presence_silent(&presence, &any), 0);
	/* Where srun's table holds addresses, the name does not tell. */
	presence_start(&presence, 2, "10.0.0.7", START * MS);
	assert_int_equal(presence_silent(&presence, &any), 0);
	presence_start(&presence, 1, "n0", START * MS);
	assert_int_equal(presence_silent(&presence, &any), 1);
	assert_true(any);
	presence_end(&presence);
}

/* A launch may take long, and the step be short. */
TEST(tasks_that_start_late_are_seen_soon)
{
	struct presence presence = { .policy = { .refuse = true } };

	assert_true(presence_begin(&presence, 2, START * MS));
	assert_true(presence_due(&presence, (START + 12000) * MS) <= (START + 12020) * MS);
	presence_start(&presence, 0, "n0", (START + 12000) * MS);
	presence_start(&presence, 1, "n1", (START + 12000) * MS);
	presence_report(&presence, 0, "n0");
	/* There is nothing to look at until the node is late. */
	assert_true(presence_due(&presence, (START + 12001) * MS) == (START + 12000 + SILENT_MS) * MS);
	assert_true(presence_due(&presence, (START + 13000 + SILENT_MS) * MS) > (START + 13000 + SILENT_MS) * MS);
	presence_end(&presence);
}

TEST(long_names_leave_room_for_the_rest)
{
	struct presence presence = { .policy = { .refuse = true, .unsure = true, .port = 65535 } };
	char host[220];
	const char *text;

	assert_true(presence_begin(&presence, 17, START * MS));
	memset(host, 'x', sizeof(host));
	for (uint32_t i = 0; i < 17; i++) {
		snprintf(host + 200, sizeof(host) - 200, "%u", i);
		presence_start(&presence, i, host, START * MS);
	}
	presence_report(&presence, 0, "");
	text = say(&presence, PRESENCE_RUNS);
	assert_non_null(strstr(text, " and 15 more (16 of 17 nodes)"));
	assert_non_null(strstr(text, "allows such steps)"));
	presence_end(&presence);
}

TEST(the_sentence_names_the_nodes)
{
	struct presence presence = begin((struct presence_policy){ .refuse = true });

	presence_report(&presence, 0, "");
	assert_string_equal(say(&presence, PRESENCE_RUNS),
	                    "no report from n1, n2 (2 of 3 nodes): the plugin spank_ddp is absent on these nodes, or "
	                    "older than srun's; install srun's version of it there, and enable it (absent=warn in "
	                    "the plugin's line allows such steps)");
	presence.policy.refuse = false;
	presence_report(&presence, 2, "");
	assert_string_equal(say(&presence, PRESENCE_FAILED),
	                    "no report from n2 (1 of 3 nodes): the plugin spank_ddp is absent on this node, or older "
	                    "than srun's; install srun's version of it there, and enable it");
	/* A warning while the step runs says what it is in for. */
	presence.policy.port = 20001;
	assert_string_equal(say(&presence, PRESENCE_RUNS),
	                    "no report from n2 (1 of 3 nodes): the plugin spank_ddp is absent on this node, or older "
	                    "than srun's, or cannot reach port 20001 on srun's host (SrunPortRange); install srun's "
	                    "version of it there, and enable it. If a task fails there, nothing ends the step: "
	                    "--ddp overrides KillOnBadExit and WaitTime");
	presence.policy.port = 0;
	presence.policy.check = true;
	assert_string_equal(say(&presence, PRESENCE_SUCCEEDED),
	                    "no report from n2 (1 of 3 nodes): the plugin spank_ddp on this node is older than "
	                    "srun's; install srun's version of it there, and enable it");
	presence_end(&presence);
}

TEST(a_thousand_nodes_are_counted_in_no_time)
{
	enum { NODES = 1000, EACH = 8 };
	struct presence presence = { .policy = { .refuse = true } };
	char host[16];

	assert_true(presence_begin(&presence, NODES * EACH, START * MS));
	for (uint32_t i = 0; i < NODES * EACH; i++) {
		snprintf(host, sizeof(host), "n%u", i / EACH);
		presence_start(&presence, i, host, START * MS);
	}
	/* As srun's thread does for each report: were all counted each time, this took seconds. */
	for (uint32_t i = 0; i < NODES; i++) {
		assert_true(presence_due(&presence, START * MS) < UINT64_MAX);
		assert_false(presence_is_late(&presence, START * MS));
		if (i != 700)
			presence_report(&presence, i * EACH, "");
	}
	assert_non_null(strstr(say(&presence, PRESENCE_RUNS), "no report from n700 (1 of 1000 nodes)"));
	presence_report(&presence, 700 * EACH + 3, "");
	assert_true(presence_due(&presence, START * MS) == UINT64_MAX);
	presence_end(&presence);
}

TEST(an_older_srun_does_nothing_about_a_report)
{
	const struct relay_news news = { .text = "0.2", .here = true, .rank = 70000, .node = "n1" };
	struct relay_message message = { .end = 0 };
	struct relay_news read;
	struct end_facts facts = { .kill_on_failure = true };
	struct end_verdict verdict;

	relay_write(&message, &news);
	read = relay_read(&message);
	assert_true(read.here);
	assert_int_equal(read.rank, 70000);
	assert_string_equal(read.text, "0.2");
	assert_string_equal(read.node, "n1");
	/* One that does not know `here` sees a task that has ended well. */
	facts.end = (enum task_end)message.end;
	facts.sent = (enum slurm_sent)message.sent;
	verdict = judge_end(&facts);
	assert_int_equal(verdict.words, WORDS_NONE);
	assert_int_equal(verdict.kill, DELAY_NEVER);
}

static const char *ranks_beside(const struct presence *presence, uint32_t rank)
{
	static char text[256];
	struct sink sink = sink_on(text, sizeof(text));

	return presence_add_ranks(presence, rank, &sink) ? text : NULL;
}

TEST(the_ranks_of_a_node_are_told_by_any_of_them)
{
	enum { TASKS = 60 };
	struct presence presence = { .task = NULL };

	assert_true(presence_begin(&presence, TASKS, START * MS));
	for (uint32_t i = 0; i < 4; i++)
		presence_start(&presence, i, i < 3 ? "n0" : "n1", START * MS);
	presence_start(&presence, 5, "n0", START * MS);
	assert_string_equal(ranks_beside(&presence, 0), "ranks 0-2, 5");
	assert_string_equal(ranks_beside(&presence, 5), "ranks 0-2, 5");
	assert_string_equal(ranks_beside(&presence, 3), "rank 3");
	assert_null(ranks_beside(&presence, 4));
	assert_null(ranks_beside(&presence, UINT32_MAX));
	for (uint32_t i = 6; i < TASKS; i++)
		presence_start(&presence, i, i % 2 == 0 ? "n2" : "n3", START * MS);
	assert_string_equal(ranks_beside(&presence, 7), "ranks 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37 "
	                                                "and others");
	presence_end(&presence);
}

TEST(what_is_left_are_silent_nodes)
{
	struct links_node nodes[2] = { { .opening = { .node = "n0", .rank = 0 }, .bye = true },
		                       { .opening = { .node = "n1", .rank = 1 }, .silent = true, .open = true } };
	struct links_node *list[] = { &nodes[0], &nodes[1] };
	struct links links = { .nodes = list, .count = 2 };
	struct presence presence = { .task = NULL };
	char text[512];
	struct sink sink = sink_on(text, sizeof(text));

	assert_true(presence_begin(&presence, 2, START * MS));
	presence_start(&presence, 0, "n0", START * MS);
	assert_false(silence_is_all_that_is_left(&links, &presence));
	presence_start(&presence, 1, "n1", START * MS);
	presence_report(&presence, 0, "n0");
	presence_report(&presence, 1, "n1");
	assert_true(silence_is_all_that_is_left(&links, &presence));
	nodes[0].bye = false;
	assert_false(silence_is_all_that_is_left(&links, &presence));
	nodes[0].bye = true;
	nodes[1].silent = false;
	assert_false(silence_is_all_that_is_left(&links, &presence));
	silence_describe(&nodes[1], &presence, 5040 * MS, &sink);
	assert_string_equal(text, "node n1 (rank 1) has been silent for 5.0 s: is its power or network lost? (silence=)");
	presence_end(&presence);
}

static const char *of_releases(const struct releases *releases)
{
	static char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));

	return releases_describe(releases, "0.3.0", &sink) ? text : "";
}

TEST(nodes_of_other_releases_are_named)
{
	struct releases releases = { .count = 0 };
	char name[HOST_NAME_MAX_BYTES];

	releases_note(&releases, "0.3.0", "n0", "0.3.0", RELAY_TEXT_MAX);
	/* A report without a node or a release tells nothing. */
	releases_note(&releases, "0.3.0", "", "0.2.0", RELAY_TEXT_MAX);
	releases_note(&releases, "0.3.0", "n1", "", RELAY_TEXT_MAX);
	assert_string_equal(of_releases(&releases), "");
	releases_note(&releases, "0.3.0", "n1", "0.2.0", RELAY_TEXT_MAX);
	releases_note(&releases, "0.3.0", "n1", "0.2.0", RELAY_TEXT_MAX);
	/* The text has no end, and is not to be trusted. */
	releases_note(&releases, "0.3.0", "n2", "0.4\033", 4);
	assert_string_equal(of_releases(&releases), "the plugin spank_ddp is of release 0.3.0 on srun's host, of 0.2.0 on n1, "
	                    "of 0.4? on n2: a key of --ddp that one of them does not have is refused");
	for (int i = 3; i < 20; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		releases_note(&releases, "0.3.0", name, "0.2.0", RELAY_TEXT_MAX);
	}
	assert_non_null(strstr(of_releases(&releases), ", of 0.2.0 on n8, and of others on more nodes: "));
	assert_null(strstr(of_releases(&releases), "n9"));
}

TEST(nodes_on_which_nothing_has_started_are_named)
{
	struct presence presence = begin((struct presence_policy){ .refuse = true }), none = { .policy = { .refuse = true } };
	char text[64], long_text[1024];
	struct sink sink = sink_on(text, sizeof(text));

	/* Its start is not known yet. */
	presence_report(&presence, 4, "n3");
	assert_int_equal(presence_unstarted(&presence, 6, "n[0-5]", &sink), 2);
	assert_string_equal(text, "n4,n5");
	/* The step has some of the job's nodes. */
	sink = sink_on(text, sizeof(text));
	assert_int_equal(presence_unstarted(&presence, 4, "n[0-5]", &sink), 0);
	assert_int_equal(presence_unstarted(&presence, 5, "n[0-5]", &sink), 1);
	assert_string_equal(text, "");
	assert_int_equal(presence_unstarted(&presence, 6, "n[0-", &sink), 0);
	/* Nobody has looked. */
	assert_int_equal(presence_unstarted(&none, 4, "n[0-3]", &sink), 0);
	/* The rest of the sentence needs room. */
	sink = sink_on(long_text, sizeof(long_text));
	assert_int_equal(presence_unstarted(&presence, 300, "node[000-299]", &sink), 300);
	assert_non_null(strstr(long_text, ",node049 and 250 more"));
	presence_end(&presence);
}

TEST(a_launch_that_srun_has_given_up_is_told)
{
	struct presence presence = { .policy = { .refuse = true } };

	assert_false(presence_launch_timed_out(&presence, 700000 * MS));
	assert_true(presence_begin(&presence, 2, START * MS));
	presence_start(&presence, 0, "n0", START * MS);
	assert_false(presence_launch_timed_out(&presence, (START + 599999) * MS));
	assert_true(presence_launch_timed_out(&presence, (START + 600000) * MS));
	presence_start(&presence, 1, "n1", START * MS);
	assert_false(presence_launch_timed_out(&presence, (START + 600000) * MS));
	presence_end(&presence);
}
