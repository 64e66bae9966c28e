/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/judge: what follows from the end of a task, one line per case. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <stdlib.h>

#include "spank/wire/judge.h"
#include "tests/support/test.h"

#define EXITED(code) ((code) << 8)

TEST(ends_are_told_apart)
{
	static const struct { int status; enum task_end end; } cases[] = {
		{ EXITED(0), END_FINE }, { EXITED(1), END_CODE }, { EXITED(255), END_CODE },
		{ EXITED(127), END_CODE }, { EXITED(128), END_CODE }, { EXITED(193), END_CODE },
		{ SIGSEGV, END_CRASH }, { SIGABRT | 0x80, END_CRASH }, { EXITED(139), END_CRASH },
		{ SIGKILL, END_BY_KILL }, { EXITED(137), END_BY_KILL },
		{ SIGTERM, END_BY_REQUEST }, { SIGINT, END_BY_REQUEST },
		{ EXITED(143), END_BY_REQUEST }, { EXITED(130), END_BY_REQUEST },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(judge_task_end(cases[i].status), cases[i].end);
	assert_true(judge_is_stop(SIGTERM) && judge_is_stop(SIGINT));
	assert_false(judge_is_stop(SIGUSR1) || judge_is_stop(SIGCONT) || judge_is_stop(SIGKILL));
	assert_true(judge_is_farewell(W_EXITCODE(75, 0)) && judge_is_farewell(SIGUSR1));
	assert_true(judge_is_farewell(W_EXITCODE(128 + SIGHUP, 0)) && judge_is_farewell(SIGTERM));
	assert_false(judge_is_farewell(W_EXITCODE(1, 0)) || judge_is_farewell(SIGKILL) || judge_is_farewell(SIGSEGV));
	assert_false(judge_is_farewell(W_EXITCODE(128 + SIGABRT, 0)) || judge_is_farewell(W_EXITCODE(255, 0)));
	assert_true(judge_is_word(SIGUSR1) && judge_is_word(SIGHUP) && judge_is_word(SIGRTMIN + 3));
	assert_false(judge_is_word(SIGTERM) || judge_is_word(SIGINT) || judge_is_word(SIGKILL));
	assert_false(judge_is_word(SIGCONT) || judge_is_word(SIGTSTP) || judge_is_word(SIGWINCH) || judge_is_word(0));
}

/* Which of the facts are true, and what is wanted, as letters: lone, all_killed,
   other_failed, blames_peer (p), out_of_memory (m), ending, continue, node_failed (N), outlives_nodes (s). */
static const struct {
	const char *name;
	enum task_end end;
	enum slurm_sent sent;
	const char *facts;
	enum end_words words;
	enum end_delay say, kill;
} cases[] = {
	/* Nothing was asked of the step. */
	{ "a task is done", END_FINE, SENT_NOTHING, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a rank exits with 7", END_CODE, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "so does a node's only one", END_CODE, SENT_NOTHING, "l", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank crashes", END_CRASH, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank follows another", END_CODE, SENT_NOTHING, "p", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank is killed", END_BY_KILL, SENT_NOTHING, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a node's only rank is killed", END_BY_KILL, SENT_NOTHING, "la", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "all tasks of a node are killed", END_BY_KILL, SENT_NOTHING, "a", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "for want of memory", END_BY_KILL, SENT_NOTHING, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "a killed rank takes another along", END_BY_KILL, SENT_NOTHING, "o", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a person ends a rank by SIGTERM", END_BY_REQUEST, SENT_NOTHING, "", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "or a node's only rank", END_BY_REQUEST, SENT_NOTHING, "l", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "beside it another fails", END_CODE, SENT_NOTHING, "o", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* Slurm has asked the step to stop. */
	{ "rank 1 ends at once, rank 0 saves", END_BY_REQUEST, SENT_STOP, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a launcher of a node ends", END_BY_REQUEST, SENT_STOP, "l", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank has saved, and exits with 0", END_FINE, SENT_STOP, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "with a code of its own", END_CODE, SENT_STOP, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank follows one that stopped", END_CODE, SENT_STOP, "p", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "or is aborted for it", END_CRASH, SENT_STOP, "p", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "a rank crashes while it saves", END_CRASH, SENT_STOP, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "Slurm's KillWait is over", END_BY_KILL, SENT_STOP, "a", WORDS_NODE, DELAY_STOP, DELAY_STOP },
	{ "the memory is over", END_BY_KILL, SENT_STOP, "m", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "one stops under continue", END_BY_REQUEST, SENT_STOP, "c", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "one crashes under continue", END_CRASH, SENT_STOP, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* Slurm has sent another signal, such as SIGUSR1. */
	{ "a rank has saved, and exits with 75", END_CODE, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "so does a node's only one", END_CODE, SENT_SIGNAL, "l", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank has saved, and exits with 0", END_FINE, SENT_SIGNAL, "", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a rank ends by the signal itself", END_CRASH, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank crashes while it saves", END_CRASH, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank follows one that has saved", END_CODE, SENT_SIGNAL, "p", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "or is aborted for it", END_CRASH, SENT_SIGNAL, "p", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "it ends itself by SIGTERM", END_BY_REQUEST, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "a rank is killed while others save", END_BY_KILL, SENT_SIGNAL, "", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "all of a node are", END_BY_KILL, SENT_SIGNAL, "a", WORDS_NODE, DELAY_NONE, DELAY_STOP },
	{ "the memory is over while they save", END_BY_KILL, SENT_SIGNAL, "m", WORDS_RANK, DELAY_NONE, DELAY_STOP },
	{ "the plugin ends the step", END_CODE, SENT_SIGNAL, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "one saves under continue", END_CODE, SENT_SIGNAL, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* Slurm has killed the step, or somebody the tasks and the witness. */
	{ "a task is killed with the step", END_BY_KILL, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "all of a node are", END_BY_KILL, SENT_KILL, "a", WORDS_NODE, DELAY_DOUBT, DELAY_DOUBT },
	{ "a task notes that others are", END_CODE, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "a rank fails after the witness was killed", END_CRASH, SENT_KILL, "", WORDS_RANK, DELAY_DOUBT, DELAY_DOUBT },
	{ "the kernel killed the whole cgroup", END_BY_KILL, SENT_KILL, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	/* Nobody knows what Slurm has sent. */
	{ "a rank ends by SIGTERM", END_BY_REQUEST, SENT_UNKNOWN, "", WORDS_RANK, DELAY_STOP, DELAY_STOP },
	{ "beside one that failed", END_BY_REQUEST, SENT_UNKNOWN, "o", WORDS_RANK, DELAY_GRACE, DELAY_GRACE },
	{ "a rank fails", END_CODE, SENT_UNKNOWN, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "a rank is killed alone", END_BY_KILL, SENT_UNKNOWN, "", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "all of a node are killed", END_BY_KILL, SENT_UNKNOWN, "a", WORDS_NONE, DELAY_NEVER, DELAY_NONE },
	{ "and one of them failed", END_BY_KILL, SENT_UNKNOWN, "ao", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "the kernel tells why", END_BY_KILL, SENT_UNKNOWN, "am", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "a lone task is killed", END_BY_KILL, SENT_UNKNOWN, "la", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* Slurm takes the node for down. */
	{ "a node fails", END_BY_KILL, SENT_KILL, "aN", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "so does one of one task", END_BY_KILL, SENT_KILL, "alN", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	{ "or one without a witness", END_BY_KILL, SENT_UNKNOWN, "aN", WORDS_NODE, DELAY_NONE, DELAY_NONE },
	{ "the step outlives it", END_BY_KILL, SENT_KILL, "aNs", WORDS_NODE, DELAY_NONE, DELAY_NEVER },
	{ "without a witness, too", END_BY_KILL, SENT_UNKNOWN, "aNs", WORDS_NODE, DELAY_NONE, DELAY_NEVER },
	{ "but no failure of a rank", END_CODE, SENT_NOTHING, "s", WORDS_RANK, DELAY_NONE, DELAY_NONE },
	/* The plugin ends the step. */
	{ "a bystander is killed", END_BY_KILL, SENT_KILL, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	{ "a bystander fails meanwhile", END_CODE, SENT_NOTHING, "e", WORDS_NONE, DELAY_NEVER, DELAY_NEVER },
	/* The program says that its other ranks go on. */
	{ "a rank of a program that survives is killed", END_BY_KILL, SENT_NOTHING, "g", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "and all of a node are", END_BY_KILL, SENT_NOTHING, "ga", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "or one crashes", END_CRASH, SENT_UNKNOWN, "g", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	/* on-failure=continue, or -K0. */
	{ "a rank fails under continue", END_CODE, SENT_NOTHING, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "a rank is killed under continue", END_BY_KILL, SENT_NOTHING, "c", WORDS_RANK, DELAY_NONE, DELAY_NEVER },
	{ "a person's SIGTERM under continue", END_BY_REQUEST, SENT_NOTHING, "c", WORDS_RANK, DELAY_GRACE, DELAY_NEVER },
};

static bool has(const char *facts, char letter)
{
	for (; *facts != '\0'; facts++)
		if (*facts == letter)
			return true;
	return false;
}

TEST(each_end_has_its_verdict)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct end_facts facts = {
			.end = cases[i].end,
			.sent = cases[i].sent,
			.lone = has(cases[i].facts, 'l'),
			.all_killed = has(cases[i].facts, 'a'),
			.other_failed = has(cases[i].facts, 'o'),
			.blames_peer = has(cases[i].facts, 'p'),
			.out_of_memory = has(cases[i].facts, 'm'),
			.node_failed = has(cases[i].facts, 'N'),
			.outlives_nodes = has(cases[i].facts, 's'),
			.ending = has(cases[i].facts, 'e'),
			.survived = has(cases[i].facts, 'g'),
			.kill_on_failure = !has(cases[i].facts, 'c'),
		};
		struct end_verdict got = judge_end(&facts);
		if (got.words != cases[i].words || got.say != cases[i].say || got.kill != cases[i].kill)
			fail_msg("%s: words %d, say %d, kill %d, not %d, %d, %d", cases[i].name, got.words,
			         got.say, got.kill, cases[i].words, cases[i].say, cases[i].kill);
	}
}

TEST(who_is_asked_to_end_does_not_survive)
{
	const struct end_facts killed = { .end = END_BY_KILL, .sent = SENT_NOTHING }, all = { .end = END_BY_KILL, .all_killed = true };
	const struct end_facts stopped = { .end = END_BY_KILL, .sent = SENT_STOP }, with_step = { .end = END_BY_KILL, .sent = SENT_KILL };
	const struct end_facts asked = { .end = END_BY_REQUEST, .sent = SENT_NOTHING }, fine = { .end = END_FINE };

	assert_true(judge_survived(&killed, true));
	assert_false(judge_survived(&killed, false));
	assert_false(judge_survived(&all, true));
	assert_false(judge_survived(&stopped, true) || judge_survived(&with_step, true));
	assert_false(judge_survived(&asked, true) || judge_survived(&fine, true));
}

/* A verdict that waits, and one that is due: which facts, as letters: blames_peer (p), names_peer (n),
   cause_late (t). */
TEST(waiting_verdict_outweighs_hearsay)
{
	static const struct { const char *name; enum task_end end; enum slurm_sent sent;
		              const char *waiting, *due; bool earlier, explains; } pairs[] = {
		{ "kill -TERM, and a rank that lost that one", END_BY_REQUEST, SENT_NOTHING, "", "p", true, true },
		{ "told a little later, by a busy node", END_BY_REQUEST, SENT_NOTHING, "", "p", false, true },
		{ "in ddp_init(), where nobody is lost", END_BY_REQUEST, SENT_NOTHING, "", "pt", true, true },
		{ "one that is ended when others have given up", END_BY_REQUEST, SENT_NOTHING, "", "pt", false, false },
		{ "without a witness", END_BY_REQUEST, SENT_UNKNOWN, "", "p", true, true },
		{ "tasks killed with their witness", END_BY_KILL, SENT_KILL, "", "p", true, true },
		{ "beside it a rank fails on its own account", END_BY_REQUEST, SENT_NOTHING, "", "", true, false },
		{ "or its node knows of one that hangs", END_BY_REQUEST, SENT_NOTHING, "", "ptn", true, false },
		{ "who ends as it lost another", END_CODE, SENT_KILL, "p", "p", true, false },
	};

	for (size_t i = 0; i < COUNT(pairs); i++) {
		const struct end_facts waiting = { .end = pairs[i].end, .sent = pairs[i].sent,
			                           .blames_peer = has(pairs[i].waiting, 'p') };
		const struct end_facts due = { .end = END_CODE, .sent = SENT_NOTHING,
			                       .blames_peer = has(pairs[i].due, 'p'),
			                       .cause_late = has(pairs[i].due, 't'),
			                       .names_peer = has(pairs[i].due, 'n') };
		if (judge_explains(&waiting, &due, pairs[i].earlier) != pairs[i].explains)
			fail_msg("%s", pairs[i].name);
	}
}
