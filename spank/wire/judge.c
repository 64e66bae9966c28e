/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/judge.h"

#include <signal.h>
#include <sysexits.h>
#include <sys/wait.h>

enum { SIGNAL_MAX = 64 };

/* A shell tells of its program's signal by its code. */
static int signal_of(int wait_status)
{
	return WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status) - 128;
}

enum task_end judge_task_end(int wait_status)
{
	bool signaled = WIFSIGNALED(wait_status);
	int number = signal_of(wait_status);

	if (!signaled && WEXITSTATUS(wait_status) == 0)
		return END_FINE;
	if (number == SIGTERM || number == SIGINT)
		return END_BY_REQUEST;
	if (number == SIGKILL)
		return END_BY_KILL;
	return number > 0 && number <= SIGNAL_MAX ? END_CRASH : END_CODE;
}

int judge_status(int wait_status, bool library_failed)
{
	return wait_status == 0 && library_failed ? W_EXITCODE(1, 0) : wait_status;
}

bool judge_is_stop(int signal_number)
{
	return signal_number == SIGTERM || signal_number == SIGINT;
}

bool judge_is_user_signal(int signal_number)
{
	switch (signal_number) {
	case SIGKILL: case SIGSTOP: case SIGTSTP: case SIGTTIN: case SIGTTOU: case SIGCONT:
	case SIGCHLD: case SIGURG: case SIGWINCH:
		return false;
	}
	return signal_number > 0 && !judge_is_stop(signal_number);
}

bool judge_is_farewell(int wait_status)
{
	int number = signal_of(wait_status);

	switch (number) {
	case SIGABRT: case SIGBUS: case SIGFPE: case SIGILL: case SIGKILL: case SIGPIPE: case SIGSEGV: case SIGSYS:
	case SIGTRAP: case SIGXFSZ:
		return false;
	}
	return number > 0 ? number <= SIGNAL_MAX : WEXITSTATUS(wait_status) == EX_TEMPFAIL;
}

static struct end_verdict verdict(enum end_words words, enum end_delay say, enum end_delay kill,
                                  const struct end_facts *facts)
{
	return (struct end_verdict){ words, words == WORDS_NONE ? DELAY_NEVER : say,
		                     facts->kill_on_failure ? kill : DELAY_NEVER };
}

bool judge_is_hearsay(const struct end_facts *facts)
{
	return facts->blames_peer && !facts->names_peer;
}

/* Who loses a rank tells so at once. Who waits in vain for one that has ended tells so much later, so
   that an end after that is no cause. */
bool judge_explains(const struct end_facts *waiting, const struct end_facts *due, bool earlier)
{
	return judge_is_hearsay(due) && !judge_is_hearsay(waiting) && (earlier || !due->cause_late);
}

/* Who was asked to stop may end as he likes, and when he is ready. What is no
   such end is said at once, but the others may still be saving. */
static struct end_verdict judge_stopping(const struct end_facts *facts, enum end_words words)
{
	if ((facts->end == END_CRASH && !facts->blames_peer) ||
	    (facts->end == END_BY_KILL && facts->out_of_memory))
		return verdict(words, DELAY_NONE, DELAY_STOP, facts);
	/* Without a policy to end the step there is nothing to explain. */
	return verdict(facts->kill_on_failure ? words : WORDS_NONE, DELAY_STOP, DELAY_STOP, facts);
}

/* A rank that ends badly may have saved, as it was told to, or may have failed: that is
   said at once, but the others may still be saving. */
static struct end_verdict judge_signalled(const struct end_facts *facts, enum end_words words)
{
	return verdict(words, DELAY_NONE, DELAY_STOP, facts);
}

/* Without a witness: tasks that Slurm kills end together, and one that the
   kernel or a person killed ends alone, or takes others with it that fail. */
static bool looks_cancelled(const struct end_facts *facts)
{
	return facts->sent == SENT_UNKNOWN && facts->all_killed && !facts->lone && !facts->other_failed;
}

bool judge_may_be_node(const struct end_facts *facts)
{
	return facts->end == END_BY_KILL && !facts->out_of_memory &&
	       (facts->sent == SENT_KILL || facts->sent == SENT_UNKNOWN);
}

bool judge_survived(const struct end_facts *facts, bool says)
{
	return says && facts->end != END_FINE && facts->end != END_BY_REQUEST && facts->sent != SENT_STOP &&
	       facts->sent != SENT_KILL && !looks_cancelled(facts);
}

struct end_verdict judge_end(const struct end_facts *facts)
{
	enum end_words words = facts->all_killed && !facts->lone ? WORDS_NODE : WORDS_RANK;
	bool out_of_memory = facts->end == END_BY_KILL && facts->out_of_memory;
	const struct end_verdict nothing = { WORDS_NONE, DELAY_NEVER, DELAY_NEVER };

	if (facts->end == END_FINE || facts->ending)
		return nothing;
	if (facts->survived)
		return (struct end_verdict){ WORDS_RANK, DELAY_NONE, DELAY_NEVER };
	/* A step that is stopping may end with a silent node or without it. */
	if (facts->node_failed || (facts->silent && facts->sent != SENT_STOP))
		return verdict(words, DELAY_NONE, facts->outlives_nodes ? DELAY_NEVER : DELAY_NONE, facts);
	if (facts->sent == SENT_STOP ||
	    (facts->sent == SENT_UNKNOWN && facts->end == END_BY_REQUEST && !facts->other_failed))
		return judge_stopping(facts, words);
	if (facts->sent == SENT_SIGNAL)
		return judge_signalled(facts, words);
	if (facts->sent == SENT_KILL && !out_of_memory)
		return verdict(words, DELAY_DOUBT, DELAY_DOUBT, facts);
	if (looks_cancelled(facts) && !out_of_memory)
		return verdict(WORDS_NONE, DELAY_NEVER, DELAY_NONE, facts);
	if (facts->end == END_BY_REQUEST)
		return verdict(words, DELAY_GRACE, DELAY_GRACE, facts);
	return verdict(words, DELAY_NONE, DELAY_NONE, facts);
}
