/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/srun/step, spank/srun/requests: one sentence and one end, from what the nodes tell; no clock. */
#include <signal.h>

#include "spank/srun/requests.h"
#include "spank/srun/step.h"
#include "spank/wire/timeline.h"
#include "tests/support/test.h"

#define EXITED(code) ((code) << 8)
#define MS 1000000ull

enum { HOLD = 250, TIMEOUT_HOLD = 1500, DOUBT = 1000, GRACE = 30000, STOP = 90000, START = 1000000 };

static struct step begin(bool kill)
{
	return (struct step){ .policy = { .hold_ms = HOLD, .timeout_hold_ms = TIMEOUT_HOLD,
		                          .doubt_ms = DOUBT, .grace_ms = GRACE, .stop_ms = STOP,
		                          .kill_on_failure = kill } };
}

static struct relay_news news(const char *text, enum task_end end, enum slurm_sent sent, int status)
{
	return (struct relay_news){ .text = text, .wait_status = status,
		                    .facts = { .end = end, .sent = sent } };
}

/* Told `ms` after the start. */
static void take(struct step *step, uint64_t ms, struct relay_news what)
{
	step_take(step, &what, false, (START + ms) * MS);
}

/* The next that is due comes `ms` after the start, says so, and ends the step or not. */
static void expect(struct step *step, uint64_t ms, const char *text, bool kill)
{
	struct step_action action;
	uint64_t due = step_due(step);

	assert_int_not_equal(due, UINT64_MAX);
	assert_int_equal(due / MS - START, ms);
	assert_false(step_act(step, due - 1, &action));
	assert_true(step_act(step, due, &action));
	assert_string_equal(action.text, text);
	assert_int_equal(action.kill, kill);
}

/* Nothing is due, or only a request that was in vain is to be made again. */
static void expect_nothing(const struct step *step)
{
	assert_true(step_due(step) == (step->over ? step->again_ns : UINT64_MAX));
}

TEST(a_failure_is_said_and_ends_the_step_once)
{
	struct step step = begin(true);

	expect_nothing(&step);
	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	take(&step, 100, news("rank 2", END_CODE, SENT_NOTHING, EXITED(9)));
	expect(&step, HOLD, "rank 1", true);
	expect_nothing(&step);
	take(&step, 300, news("bystander", END_BY_KILL, SENT_NOTHING, SIGKILL));
	expect_nothing(&step);
	assert_int_equal(step.wait_status, EXITED(7));
}

/* For the job's comment. */
TEST(what_was_said_has_a_kind)
{
	struct step step = begin(true);
	struct relay_news crash = news("rank 1", END_CRASH, SENT_NOTHING, SIGSEGV), silent = news("node n2", END_CODE, SENT_NOTHING, EXITED(1));
	struct step_action action;

	crash.node = "n1";
	take(&step, 0, crash);
	assert_true(step_act(&step, step_due(&step), &action));
	assert_int_equal(action.kind, EVENT_CRASH);
	assert_int_equal(action.wait_status, SIGSEGV);
	assert_string_equal(action.node, "n1");
	assert_true(step_act(&step, step_due(&step), &action)); /* the request again: nothing is said */
	assert_int_equal(action.kind, EVENT_NOTHING);
	step = begin(true);
	silent.node = "n2";
	silent.facts.silent = true;
	take(&step, 0, silent);
	assert_true(step_act(&step, step_due(&step), &action));
	assert_int_equal(action.kind, EVENT_SILENCE);
	assert_int_equal(action.wait_status, 0);
	assert_string_equal(action.node, "n2");
}

/* Slurm may lose a request, such as for a component that it is just launching. */
TEST(a_request_in_vain_is_made_again)
{
	struct step step = begin(true);
	struct step_action action;

	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	expect(&step, HOLD, "rank 1", true);
	expect(&step, HOLD + AGAIN_MS, "", true);
	take(&step, HOLD + AGAIN_MS, news("rank 2", END_CODE, SENT_NOTHING, EXITED(9)));
	expect(&step, HOLD + 3 * AGAIN_MS, "", true);
	assert_false(step_finish(&step, &action));
	assert_true(step_due(&step) == UINT64_MAX);
}

TEST(what_led_to_it_goes_first)
{
	struct step step = begin(true);
	struct relay_news follower = news("follower", END_CODE, SENT_NOTHING, EXITED(1));

	follower.facts.blames_peer = true;
	take(&step, 0, follower);
	take(&step, 200, news("cause", END_CRASH, SENT_NOTHING, SIGSEGV));
	expect(&step, HOLD, "cause", true);
	assert_int_equal(step.wait_status, SIGSEGV);
}

/* Rank 3 hangs: those that wait on another node than its own have given up first. */
TEST(who_did_not_come_is_waited_for)
{
	struct step step = begin(true);
	struct relay_news far = news("far", END_CODE, SENT_NOTHING, EXITED(3)), near = far, lost = far;

	far.facts.blames_peer = near.facts.blames_peer = lost.facts.blames_peer = true;
	far.facts.cause_late = near.facts.cause_late = near.facts.names_peer = true;
	near.text = "near";
	take(&step, 0, far);
	take(&step, 1000, near);
	expect(&step, 1000 + HOLD, "near", true);

	step = begin(true);
	take(&step, 0, far);
	expect(&step, TIMEOUT_HOLD, "far", true);

	/* A rank that lost another one does not make the first wait, nor wait itself. */
	step = begin(true);
	far.age_ms = 100;
	take(&step, 0, lost);
	take(&step, 10, far);
	expect(&step, HOLD, "far", true);
}

static struct relay_news lost(const char *text)
{
	struct relay_news what = news(text, END_BY_KILL, SENT_NOTHING, SIGKILL);

	what.facts.survived = true;
	return what;
}

/* Ranks that are lost are named, and are no failure once a rank that has gone on without them has ended well. */
TEST(survivors_end_well)
{
	const struct relay_news fine = { .text = "", .facts = { .end = END_FINE, .survived = true } };
	struct step step = begin(true);

	take(&step, 0, lost("rank 1"));
	expect(&step, HOLD, "rank 1; the other ranks go on", false);
	assert_false(step_has_survived(&step));
	take(&step, 1000, lost("rank 2"));
	expect(&step, 1000 + HOLD, "rank 2; the other ranks go on", false);
	take(&step, 2000, fine);
	expect_nothing(&step);
	assert_true(step_has_survived(&step));
	assert_int_equal(step.wait_status, 0);

	/* What fails afterwards is a failure. */
	take(&step, 3000, news("rank 0", END_CODE, SENT_NOTHING, EXITED(3)));
	expect(&step, 3000 + HOLD, "rank 0", true);
	assert_false(step_has_survived(&step));
	assert_int_equal(step.wait_status, EXITED(3));
}

/* With restart= others begin in place of those that are lost, or all again. Survivors wait for them. */
TEST(restarts_do_not_wait_for_survivors)
{
	struct step step = begin(true);

	step.policy.restarts = true;
	take(&step, 0, lost("rank 1"));
	expect(&step, HOLD_SURVIVED_MS, "rank 1", true);
}

TEST(under_continue_nothing_is_ended)
{
	struct step step = begin(false);

	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	expect(&step, HOLD, "rank 1", false);
	expect_nothing(&step);
	take(&step, 400, news("rank 2", END_CODE, SENT_NOTHING, EXITED(9)));
	expect_nothing(&step);
	assert_int_equal(step.wait_status, EXITED(7));
}

/* The same of one of which only a task was asked, by a person. */
TEST(a_task_that_was_asked_to_stop_ends_the_step)
{
	struct step step = begin(true);

	step.policy.slurm_may_grant_more = true;
	take(&step, 0, news("rank 1", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	expect(&step, GRACE, "rank 1; 30.0 s later the step was still running, and is ended "
	                     "(see grace= in srun-ddp(7))", true);
	expect_nothing(&step);
}

/* srun asks when the time is over. */
static void expect_question(struct step *step, bool slurm_ends_it)
{
	struct step_action action;
	uint64_t due = step_due(step);

	assert_int_equal(due / MS - START, STOP);
	assert_false(step_act(step, due - 1, &action));
	assert_true(step_act(step, due, &action));
	assert_true(action.ask && !action.kill && action.text[0] == '\0');
	step_answer(step, slurm_ends_it);
}

/* Slurm may grant a step more than KillWait: by GraceTime, by --signal=TERM@300. */
TEST(what_slurm_grants_is_left_to_the_step)
{
	static const struct { enum task_end end; enum slurm_sent sent; int status; } ends[] = {
		{ END_BY_REQUEST, SENT_STOP, SIGTERM }, { END_CODE, SENT_STOP, EXITED(3) },
		{ END_BY_REQUEST, SENT_UNKNOWN, SIGTERM },
	};
	struct step_action action;
	struct step step;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		step = begin(true);
		step.policy.slurm_may_grant_more = true;
		take(&step, 0, news("rank 1", ends[i].end, ends[i].sent, ends[i].status));
		expect_question(&step, false);
		expect(&step, STOP, "rank 1; 90.0 s later the step was still running, and is ended "
		                    "(see grace= in srun-ddp(7))", true);
		step = begin(true);
		step.policy.slurm_may_grant_more = true;
		take(&step, 0, news("rank 1", ends[i].end, ends[i].sent, ends[i].status));
		expect_question(&step, true);
		expect_nothing(&step);
		assert_false(step_act(&step, UINT64_MAX - 1, &action));
		assert_false(step_finish(&step, &action));
	}
	step = begin(true);
	step.policy.slurm_may_grant_more = true;
	take(&step, 0, news("rank 1", END_CRASH, SENT_STOP, SIGSEGV));
	expect(&step, HOLD, "rank 1", false);
	expect_question(&step, true);
	expect_nothing(&step);
	assert_false(step_act(&step, UINT64_MAX - 1, &action));
}

/* One node has failed for want of another that Slurm reached first. */
TEST(the_word_of_one_node_counts_for_all)
{
	struct step step = begin(true);
	struct step_action action;

	take(&step, 0, news("rank 3", END_CODE, SENT_NOTHING, EXITED(1)));
	take(&step, 100, news("rank 0", END_BY_REQUEST, SENT_STOP, SIGTERM));
	assert_int_equal(step_due(&step) / MS - START, STOP);
	assert_false(step_finish(&step, &action));
	assert_int_equal(step.wait_status, 0);
}

TEST(a_crash_is_said_while_others_save)
{
	struct step step = begin(true);

	take(&step, 0, news("rank 1", END_CRASH, SENT_STOP, SIGSEGV));
	expect(&step, HOLD, "rank 1", false);
	expect(&step, STOP, "rank 1; 90.0 s later the step was still running, and is ended "
	                    "(see grace= in srun-ddp(7))", true);
	expect_nothing(&step);
}

#define MAY_SAVE "; the step was sent a signal before, so the others may save (see grace= in srun-ddp(7))"

/* SIGUSR1 of Slurm's: ranks end as they like, and nobody is ended who saves. */
TEST(a_signalled_step_has_its_grace)
{
	struct step step = begin(true);
	struct step_action action;

	take(&step, 0, news("rank 1", END_CODE, SENT_SIGNAL, EXITED(75)));
	take(&step, 20, news("rank 2", END_CODE, SENT_SIGNAL, EXITED(75)));
	expect(&step, HOLD, "rank 1" MAY_SAVE, false);
	expect(&step, STOP, "rank 1; 90.0 s later the step was still running, and is ended "
	                    "(see grace= in srun-ddp(7))", true);
	assert_int_equal(step.wait_status, EXITED(75));

	/* A node that the signal has not reached yet. */
	step = begin(true);
	take(&step, 0, news("rank 3", END_CODE, SENT_NOTHING, EXITED(1)));
	take(&step, 100, news("rank 0", END_CODE, SENT_SIGNAL, EXITED(75)));
	expect(&step, HOLD, "rank 3" MAY_SAVE, false);
	/* Then Slurm asks it to stop. */
	take(&step, 900, news("rank 2", END_BY_REQUEST, SENT_STOP, SIGTERM));
	expect(&step, STOP, "rank 3; 90.0 s later the step was still running, and is ended "
	                    "(see grace= in srun-ddp(7))", true);

	/* Slurm is about to end it. */
	step = begin(true);
	step.policy.slurm_may_grant_more = true;
	take(&step, 0, news("rank 1", END_CODE, SENT_SIGNAL, EXITED(75)));
	expect(&step, HOLD, "rank 1" MAY_SAVE, false);
	expect_question(&step, true);
	expect_nothing(&step);

	step = begin(false);
	take(&step, 0, news("rank 1", END_CODE, SENT_SIGNAL, EXITED(75)));
	expect(&step, HOLD, "rank 1", false);
	expect_nothing(&step);

	/* step_finish() says the news that are still held at the end, and does nothing else. */
	step = begin(true);
	take(&step, 0, news("rank 1", END_CODE, SENT_SIGNAL, EXITED(75)));
	assert_true(step_finish(&step, &action));
	assert_string_equal(action.text, "rank 1");
}

/* kill -TERM by a person, and beside it a real failure. */
TEST(a_failure_does_not_wait_for_a_request)
{
	struct step step = begin(true);

	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	take(&step, 80, news("rank 1", END_CODE, SENT_NOTHING, EXITED(1)));
	expect(&step, 80 + HOLD, "rank 1", true);
	assert_int_equal(step.wait_status, EXITED(1));
}

/* kill -TERM by a person, and ranks that lost the one that was killed. */
TEST(who_was_asked_to_stop_goes_before_those_that_lost_it)
{
	struct step step = begin(true);
	struct relay_news lost = news("lost", END_CODE, SENT_NOTHING, EXITED(1));
	struct step_action action;

	lost.facts.blames_peer = true;
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	take(&step, 80, lost);
	expect(&step, 80 + HOLD, "rank 0", true);
	assert_int_equal(step.wait_status, SIGTERM);

	/* A busy node tells of it later. */
	step = begin(true);
	take(&step, 0, lost);
	take(&step, 80, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	expect(&step, HOLD, "rank 0", true);

	step = begin(false);
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGINT));
	take(&step, 80, lost);
	expect(&step, 80 + HOLD, "rank 0", false);
	expect_nothing(&step);
	assert_int_equal(step.wait_status, SIGINT);

	/* All ranks end before it is said. */
	step = begin(true);
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	take(&step, 80, lost);
	assert_true(step_finish(&step, &action));
	assert_string_equal(action.text, "rank 0");

	/* It was the last one, and all others have ended well. */
	step = begin(true);
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	assert_true(step_finish(&step, &action));
	assert_string_equal(action.text, "rank 0");
	assert_int_equal(step.wait_status, SIGTERM);

	/* Slurm has asked for it. */
	step = begin(true);
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_STOP, SIGTERM));
	assert_false(step_finish(&step, &action));
	step = begin(true);
	take(&step, 0, news("rank 0", END_BY_REQUEST, SENT_STOP, SIGTERM));
	take(&step, 80, lost);
	assert_false(step_finish(&step, &action));
	assert_int_equal(step.wait_status, 0);
}

/* n1 has told that rank 3 is stopped; rank 1 has given up for it. */
TEST(who_did_not_come_goes_first_with_its_state)
{
	const struct stall_note note = { .ranks = 2, .lowest = 2, .world_size = 4, .rank = 3, .kind = STALL_STOPPED,
		                         .who = "rank 3 of 4 on n1", .doing = "in forward" };
	struct relay_news far = news("rank 3 of 4 did not come; rank 1", END_CODE, SENT_NOTHING, EXITED(3));
	unsigned char bytes[STALL_NOTE_BYTES];
	struct step step = begin(true);

	stall_pack(&note, bytes);
	step_take_stall(&step, bytes, START * MS);
	expect_nothing(&step);
	far.facts.blames_peer = far.facts.cause_late = true;
	take(&step, 0, far);
	expect(&step, TIMEOUT_HOLD,
	       "rank 3 of 4 on n1 did not come (stopped by a signal or a debugger, in forward); rank 1", true);
	stall_step_end(&step.stall);

	/* A failure of another rank's own has nothing to do with it. */
	step = begin(true);
	step_take_stall(&step, bytes, START * MS);
	take(&step, 0, news("rank 0", END_CODE, SENT_NOTHING, EXITED(7)));
	expect(&step, HOLD, "rank 0", true);
	stall_step_end(&step.stall);
}

TEST(tasks_killed_with_the_witness_are_doubted)
{
	struct step step = begin(true);
	struct step_action action;

	take(&step, 0, news("all 2 tasks", END_BY_KILL, SENT_KILL, SIGKILL));
	assert_false(step_finish(&step, &action));
	step = begin(true);
	take(&step, 0, news("all 2 tasks", END_BY_KILL, SENT_KILL, SIGKILL));
	expect(&step, DOUBT, "all 2 tasks", true);
}

TEST(a_node_that_failed_is_named)
{
	struct relay_news what = news("all 2 tasks on n1 were killed", END_BY_KILL, SENT_KILL, SIGKILL);
	struct step step = begin(true);

	what.node = "n1";
	what.facts.node_failed = true;
	take(&step, 0, what);
	expect(&step, HOLD, "node n1 has failed, says SLURM: all 2 tasks on n1 were killed", true);

	step = begin(true);
	step.policy.outlives_nodes = true;
	take(&step, 0, what);
	expect(&step, HOLD, "node n1 has failed, says SLURM: all 2 tasks on n1 were killed; the step goes on "
	                    "(--no-kill)", false);
	expect_nothing(&step);
	/* A rank that fails later ends it none the less. */
	take(&step, 900, news("rank 0", END_CODE, SENT_NOTHING, EXITED(1)));
	expect(&step, 900 + HOLD, "rank 0", true);
}

static struct relay_news silence(uint32_t age_ms)
{
	struct relay_news what = news("node n2 has been silent", END_CODE, SENT_NOTHING, EXITED(1));

	what.node = "n2";
	what.age_ms = age_ms;
	what.facts.silent = true;
	return what;
}

TEST(a_silent_node_goes_before_what_follows_from_it)
{
	struct relay_news lost = news("rank 0 lost rank 4", END_CODE, SENT_NOTHING, EXITED(1));
	struct step step = begin(true);
	struct step_action action;

	/* Nothing is older, so nothing is waited for. */
	take(&step, 5000, silence(5000));
	expect(&step, 5000, "node n2 has been silent", true);
	assert_int_equal(step.wait_status, EXITED(1));
	/* What fails while a node is in doubt waits for the verdict on that node, whether it names another rank or not. */
	for (int hearsay = 0; hearsay < 2; hearsay++) {
		step = begin(true);
		lost.facts.blames_peer = hearsay == 1;
		step.doubt_ns = (START + 5000) * MS;
		take(&step, 2000, lost);
		assert_int_equal(step_due(&step), (START + 5000) * MS);
		take(&step, 4990, silence(5000));
		assert_true(step_act(&step, (START + 4990) * MS, &action));
		assert_string_equal(action.text, "node n2 has been silent");
		assert_true(action.kill);
		/* The node speaks again: it was not that. */
		step = begin(true);
		step.doubt_ns = (START + 5000) * MS;
		take(&step, 2000, lost);
		step.doubt_ns = 0;
		expect(&step, 2000 + HOLD, "rank 0 lost rank 4", true);
	}
}

TEST(a_failure_is_held_until_it_is_said)
{
	struct step step = begin(true);
	struct step_action action;

	assert_false(step_holds(&step));
	/* Nobody waits for what is said only if the step still runs after a while, nor for what comes behind a silence. */
	take(&step, 0, news("rank 0 was asked", END_BY_REQUEST, SENT_NOTHING, SIGTERM));
	assert_false(step_holds(&step));
	take(&step, 0, silence(5000));
	assert_false(step_holds(&step));
	step = begin(true);
	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	assert_true(step_holds(&step));
	step.doubt_ns = (START + 900) * MS;
	assert_int_equal(step_due(&step), (START + 900) * MS);
	step.doubt_ns = 0;
	assert_true(step_act(&step, (START + HOLD) * MS, &action));
	assert_false(step_holds(&step));
}

/* Also if a generation's first failure comes in the same turn as the generation begins. */
TEST(each_generation_asks_about_its_first_failure)
{
	struct step step = begin(true);
	struct first_failure first = { .asked_ns = 0 };
	struct links links = { .ready = -1 };
	struct presence presence = { .task = NULL };
	const struct requests requests = { .holds = false };

	step.policy.ask_ms = 100;
	first_failure_update(&first, &step, &links, &presence, &requests, START * MS);
	assert_int_equal(links.question, 0);
	for (uint64_t generation = 1; generation <= 3; generation++) {
		take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
		for (int turns = 0; turns < 3; turns++) {
			first_failure_update(&first, &step, &links, &presence, &requests, START * MS);
			assert_int_equal(links.question, generation);
			assert_true(links.asks);
		}
		step_begin_again(&step);
		first_failure_begin_again(&first, &links);
		assert_false(links.asks);
	}
}

TEST(a_silent_node_ends_what_the_policy_says)
{
	struct step step = begin(true);

	step.policy.outlives_nodes = true;
	take(&step, 5000, silence(5000));
	expect(&step, 5000, "node n2 has been silent; the step goes on (--no-kill)", false);
	expect_nothing(&step);
	step = begin(false);
	take(&step, 5000, silence(5000));
	expect(&step, 5000, "node n2 has been silent", false);
	expect_nothing(&step);
	/* A step that was asked to stop ends as it likes. */
	step = begin(true);
	step.stopping = true;
	take(&step, 5000, silence(5000));
	assert_true(step_due(&step) > (START + 5000 + HOLD) * MS);
}

TEST(a_node_that_acts_alone_is_not_repeated)
{
	struct step step = begin(true);
	struct relay_news what = news("rank 1", END_CODE, SENT_NOTHING, EXITED(7));

	step_take(&step, &what, true, START * MS);
	expect_nothing(&step);
	take(&step, 10, news("rank 2", END_CODE, SENT_NOTHING, EXITED(8)));
	expect_nothing(&step);
	assert_int_equal(step.wait_status, EXITED(7));
}

/* No claim to be older than a node waits for srun wins by it. */
TEST(age_is_believed_within_reason)
{
	struct step step = begin(true);
	struct relay_news old = news("liar", END_CODE, SENT_NOTHING, EXITED(9));

	old.age_ms = UINT32_MAX;
	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	take(&step, 5000, old);
	expect(&step, HOLD, "rank 1", true);
}

TEST(what_is_held_is_said_at_the_end)
{
	struct step step = begin(true);
	struct step_action action;

	take(&step, 0, news("ra\033nk 1", END_CODE, SENT_NOTHING, EXITED(7)));
	assert_true(step_finish(&step, &action));
	assert_string_equal(action.text, "ra?nk 1");
	assert_false(action.kill);
	assert_false(step_finish(&step, &action));
}

static struct step begin_with_restarts(void)
{
	struct step step = begin(true);

	step.policy.restarts = true;
	return step;
}

TEST(why_a_step_would_end_is_told)
{
	static const struct { enum slurm_sent sent; bool hearsay, stopping; uint64_t due; } cases[] = {
		{ SENT_NOTHING, false, false, HOLD }, { SENT_NOTHING, true, false, HOLD },
		{ SENT_STOP, false, true, STOP }, { SENT_KILL, false, false, DOUBT },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct step step = begin_with_restarts();
		struct relay_news what = news("rank 1", END_CODE, cases[i].sent, EXITED(7));
		struct step_action action;
		what.node = "n1";
		what.facts.blames_peer = cases[i].hearsay;
		take(&step, 0, what);
		assert_true(step_act(&step, (START + cases[i].due) * MS, &action));
		assert_true(action.kill);
		assert_int_equal(action.end.hearsay, cases[i].hearsay);
		assert_int_equal(action.end.stopping, cases[i].stopping);
		assert_int_equal(action.end.wait_status, EXITED(7));
		assert_string_equal(action.end.node, "n1");
		/* It is for others to end the step. */
		assert_true(step_due(&step) == UINT64_MAX);
	}
}

/* So that nobody waits for a restart. */
TEST(after_a_signal_the_line_says_that_there_is_no_restart)
{
	struct step step = begin_with_restarts();

	take(&step, 0, news("rank 1", END_CODE, SENT_SIGNAL, EXITED(75)));
	expect(&step, HOLD, "rank 1; no restart, as the step was sent a signal before; the others may save (see grace= in "
	                    "srun-ddp(7))", false);
	/* The signal ends a program, and others lose it. */
	step = begin_with_restarts();
	take(&step, 0, news("rank 1", END_CRASH, SENT_SIGNAL, SIGUSR1));
	take(&step, 0, news("rank 2", END_CODE, SENT_SIGNAL, EXITED(1)));
	expect(&step, HOLD, "rank 1; no restart, as the step was sent a signal before; the others may save (see grace= in "
	                    "srun-ddp(7))", false);
}

/* SIGUSR1 may have asked for a stack. */
TEST(a_failure_after_a_signal_is_restarted)
{
	static const struct { enum task_end end; int status; } cases[] = {
		{ END_CODE, EXITED(7) }, { END_CRASH, SIGSEGV }, { END_CRASH, EXITED(128 + SIGABRT) }, { END_BY_KILL, SIGKILL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct step step = begin_with_restarts();
		struct step_action action;
		take(&step, 0, news("rank 1", cases[i].end, SENT_SIGNAL, cases[i].status));
		assert_true(step_act(&step, (START + HOLD) * MS, &action));
		assert_true(action.kill);
		assert_false(action.end.stopping);
		assert_string_equal(action.text, "rank 1");
	}
}

TEST(a_step_without_a_witness_that_is_cancelled_stops)
{
	struct step step = begin_with_restarts();
	struct relay_news what = news("all", END_BY_KILL, SENT_UNKNOWN, SIGKILL);
	struct step_action action;

	what.facts.all_killed = true;
	take(&step, 0, what);
	assert_true(step_act(&step, (START + HOLD) * MS, &action));
	assert_true(action.kill);
	assert_true(action.end.stopping);
}

TEST(a_new_generation_begins_anew)
{
	struct step step = begin_with_restarts();
	struct step_action action;

	take(&step, 0, news("rank 1", END_CODE, SENT_NOTHING, EXITED(7)));
	expect(&step, HOLD, "rank 1", true);
	step_begin_again(&step);
	assert_int_equal(step.wait_status, 0);
	assert_true(step_due(&step) == UINT64_MAX);
	assert_false(step_finish(&step, &action));
	step_begin_again(&step);
	take(&step, 1000, news("rank 2", END_CODE, SENT_NOTHING, EXITED(8)));
	expect(&step, 1000 + HOLD, "rank 2", true);
	assert_int_equal(step.wait_status, EXITED(8));
	/* At last it ends, and as often as it takes. */
	step_end(&step, EXITED(9), (START + 2000) * MS);
	expect(&step, 2000 + AGAIN_MS, "", true);
	assert_int_equal(step.wait_status, EXITED(9));
}

TEST(a_step_that_was_asked_to_stop_stays_so)
{
	struct step step = begin_with_restarts();
	struct step_action action;

	take(&step, 0, news("rank 1", END_CODE, SENT_STOP, EXITED(75)));
	step_begin_again(&step);
	take(&step, 1000, news("rank 2", END_CODE, SENT_NOTHING, EXITED(1)));
	assert_true(step_act(&step, (START + 1000 + STOP) * MS, &action));
	assert_true(action.kill);
	assert_true(action.end.stopping);
}
