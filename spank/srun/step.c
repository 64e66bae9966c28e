/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/step.h"

#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "spank/base/text.h"
#include "spank/wire/timeline.h"

void step_start(struct step *step, const struct step_policy *policy)
{
	*step = (struct step){ .policy = *policy,
		               .stall = { .seconds = policy->stall_seconds, .asked = policy->asked } };
}

static struct end_verdict judge_case(const struct step *step, const struct step_case *what)
{
	struct end_facts facts = what->facts;

	/* Slurm reaches one node before the other, and the word of one counts for all. */
	if (step->stopping)
		facts.sent = SENT_STOP;
	else if (step->signalled && facts.sent != SENT_KILL)
		facts.sent = SENT_SIGNAL;
	else if (!step->signalled && facts.sent == SENT_SIGNAL)
		facts.sent = SENT_NOTHING;
	facts.ending = step->over;
	facts.kill_on_failure = step->policy.kill_on_failure;
	/* With restarts, srun restarts the step, and decides then which ranks keep their processes. */
	facts.survived = facts.survived && !step->policy.restarts && !step->stopping;
	facts.outlives_nodes = step->policy.outlives_nodes;
	return judge_end(&facts);
}

/* The node of a rank that did not come, or that leaves, may know more, a little later. */
static bool waits_for_more(const struct step_case *what)
{
	return judge_is_hearsay(&what->facts) && what->facts.cause_late;
}

static uint64_t delay_ns(const struct step *step, const struct step_case *what,
                         enum end_delay delay)
{
	switch (delay) {
	case DELAY_NONE:
		/* A silence has lasted for so long that all its consequences are later. */
		if (what->facts.silent)
			return 0;
		/* The others wait for those that are to join them, and have no failures of their own. */
		if (what->facts.survived && step->policy.restarts && !judge_is_hearsay(&what->facts))
			return HOLD_SURVIVED_MS * NS_PER_MS;
		return (waits_for_more(what) && step->policy.timeout_hold_ms > step->policy.hold_ms
		        ? step->policy.timeout_hold_ms : step->policy.hold_ms) * NS_PER_MS;
	case DELAY_DOUBT:
		return step->policy.doubt_ms * NS_PER_MS;
	case DELAY_GRACE:
		return step->policy.grace_ms * NS_PER_MS;
	case DELAY_STOP:
		return step->policy.stop_ms == STOP_BY_SLURM ? UINT64_MAX : step->policy.stop_ms * NS_PER_MS;
	case DELAY_NEVER:
		break;
	}
	return UINT64_MAX;
}

/* When the case is to be said or to end the step, whichever comes first. */
static uint64_t case_due(const struct step *step, const struct step_case *what)
{
	struct end_verdict verdict = judge_case(step, what);
	uint64_t say = what->said || step->said ? UINT64_MAX : delay_ns(step, what, verdict.say);
	uint64_t kill = delay_ns(step, what, verdict.kill), first = say < kill ? say : kill, due_ns;

	if (!what->held || first == UINT64_MAX)
		return UINT64_MAX;
	due_ns = what->taken_ns + first;
	return !what->facts.silent && due_ns < step->doubt_ns ? step->doubt_ns : due_ns;
}

static int case_of(const struct end_verdict *verdict, bool hearsay)
{
	if (verdict->say != DELAY_NONE && verdict->say != DELAY_NEVER)
		return CASE_LATER;
	return hearsay ? CASE_HEARSAY : CASE_CAUSE;
}

/* Keeps the earlier one of two of a kind. */
static void hold_case(struct step *step, int index, const struct step_case *what)
{
	struct step_case *kept = &step->cases[index];
	uint64_t taken_ns = kept->held ? kept->taken_ns : what->taken_ns;
	bool cause_late = what->facts.cause_late && (!kept->held || kept->facts.cause_late);

	if (kept->held && (kept->said || what->happened_ns >= kept->happened_ns))
		return;
	*kept = *what;
	kept->taken_ns = taken_ns;
	/* None waits longer than the first one would have. */
	kept->facts.cause_late = cause_late;
}

/* No node tells of an end later than it waits for srun: what claims to be older
   takes nobody's place by it. A silence is srun's own news. */
static uint64_t happened_ns(const struct relay_news *news, uint64_t now_ns)
{
	uint32_t longest_ms = news->facts.silent ? UINT32_MAX : LOSS_MS + CONNECT_MS + REPLY_MS;
	uint64_t age_ns = (uint64_t)(news->age_ms < longest_ms ? news->age_ms : longest_ms) * 1000000;

	return age_ns < now_ns ? now_ns - age_ns : 0;
}

/* The end is asked for now, or by others; srun is there as long as it was in vain. */
static void expect_end(struct step *step, uint64_t now_ns, uint32_t others_ms)
{
	step->over = true;
	step->pause_ns = AGAIN_MS * 1000000ull;
	step->again_ns = now_ns + step->pause_ns + others_ms * 1000000ull;
	/* The dealer decides whether the step ends, so nothing is asked for again. */
	if (step->policy.restarts)
		step->again_ns = UINT64_MAX;
}

void step_end(struct step *step, int wait_status, uint64_t now_ns)
{
	step->policy.restarts = false;
	step->said = true;
	step->wait_status = wait_status;
	expect_end(step, now_ns, 0);
}

void step_begin_again(struct step *step)
{
	bool stopping = step->stopping, unseen_said = step->stall.unseen_said;
	struct step_policy policy = step->policy;

	stall_step_end(&step->stall);
	step_start(step, &policy);
	step->stopping = stopping;
	step->stall.unseen_said = unseen_said;
}

void step_take(struct step *step, const struct relay_news *news, bool alone, uint64_t now_ns)
{
	struct step_case what = { .held = true, .facts = news->facts, .taken_ns = now_ns,
		                  .happened_ns = happened_ns(news, now_ns),
		                  .wait_status = news->wait_status };
	struct sink sink = sink_on(what.text, sizeof(what.text)), node = sink_on(what.node, sizeof(what.node));
	struct end_verdict verdict;

	if (step->over)
		return;
	if (news->facts.survived && news->facts.end == END_FINE) {
		step->survived = true;
		return;
	}
	step->failed |= !news->facts.survived &&
	                !(step->policy.outlives_nodes && (news->facts.silent || news->facts.node_failed));
	step->stopping |= news->facts.sent == SENT_STOP;
	/* With restarts, a failure after a signal is a failure, as the signal may have asked for a stack. */
	step->signalled |= news->facts.sent == SENT_SIGNAL &&
	                   (!step->policy.restarts || judge_is_farewell(news->wait_status));
	verdict = judge_case(step, &what);
	if (alone) {
		if (verdict.kill == DELAY_NONE)
			expect_end(step, now_ns, ALONE_MS + ALONE_SPREAD_MS);
		if (verdict.say != DELAY_NONE || judge_is_hearsay(&news->facts) || step->said)
			return;
		step->said = true;
		step->wait_status = news->wait_status;
		return;
	}
	if (verdict.say == DELAY_NEVER && verdict.kill == DELAY_NEVER)
		return;
	if (news->facts.node_failed) {
		sink_add(&sink, "node ");
		sink_add_untrusted(&sink, news->node, HOST_NAME_MAX_BYTES);
		sink_add(&sink, " has failed, says SLURM: ");
	}
	sink_add_untrusted(&sink, news->text, RELAY_TEXT_MAX);
	if (news->facts.survived && !step->policy.restarts)
		sink_add(&sink, "; the other ranks go on");
	if ((news->facts.node_failed || news->facts.silent) && step->policy.outlives_nodes)
		sink_add(&sink, "; the step goes on (--no-kill)");
	if (news->node != NULL)
		sink_add_untrusted(&node, news->node, HOST_NAME_MAX_BYTES);
	hold_case(step, case_of(&verdict, judge_is_hearsay(&news->facts)), &what);
}

void step_take_stall(struct step *step, const unsigned char note[STALL_NOTE_BYTES], uint64_t now_ns)
{
	stall_step_take(&step->stall, note, now_ns);
}

/* When the first of the cases is due. */
static uint64_t cases_due(const struct step *step)
{
	uint64_t first = UINT64_MAX;

	for (int i = 0; i < CASE_COUNT; i++) {
		uint64_t due = case_due(step, &step->cases[i]);
		if (due < first)
			first = due;
	}
	return first;
}

bool step_holds(const struct step *step)
{
	for (int i = 0; i < CASE_COUNT && !step->over && !step->said; i++) {
		const struct step_case *what = &step->cases[i];
		if (what->held && !what->facts.silent && judge_case(step, what).say == DELAY_NONE)
			return true;
	}
	return false;
}

static uint64_t stall_due(const struct step *step)
{
	uint64_t stall = stall_step_due(&step->stall), unseen = stall_step_unseen_due(&step->stall);

	if (step->over || step->stopping || step->policy.stop_ms == STOP_BY_SLURM || cases_due(step) != UINT64_MAX)
		return UINT64_MAX;
	return stall < unseen ? stall : unseen;
}

uint64_t step_due(const struct step *step)
{
	uint64_t cases = cases_due(step), stall = stall_due(step);

	if (step->over)
		return step->again_ns;
	return cases < stall ? cases : stall;
}

static void act_on_stall(struct step *step, uint64_t now_ns, struct step_action *action)
{
	bool blocked = stall_step_is_blocked(&step->stall);
	struct sink sink;

	if (stall_step_unseen_due(&step->stall) <= now_ns) {
		*action = (struct step_action){ .kill = false };
		sink = sink_on(action->text, sizeof(action->text));
		stall_step_say_unseen(&step->stall, &sink);
		return;
	}
	*action = (struct step_action){ .kill = step->policy.kill_on_stall ||
		                                (blocked && step->policy.kill_on_failure) };
	/* A stall that is only reported may end, and the step succeed. */
	action->kind = action->kill ? EVENT_STALL : EVENT_NOTHING;
	sink = sink_on(action->text, sizeof(action->text));
	stall_step_say(&step->stall, now_ns, &sink);
	/* No task has failed, and yet the step has. */
	if (blocked && step->wait_status == 0)
		step->wait_status = W_EXITCODE(1, 0);
	step->said |= blocked;
	step->failed |= blocked || action->kill;
	if (!action->kill)
		return;
	action->end.wait_status = W_EXITCODE(1, 0);
	if (!blocked && !step->policy.restarts)
		sink_add(&sink, "; the step is ended (stall-action=kill)");
	expect_end(step, now_ns, 0);
}

/* The one to speak of when one is due: what happened first goes before what it
   led to, and both before what may be no failure. */
static struct step_case *choose(struct step *step, uint64_t now_ns)
{
	struct step_case *later = &step->cases[CASE_LATER];

	for (int i = 0; i < CASE_LATER && !step->said; i++) {
		struct step_case *what = &step->cases[i];
		if (what->held && judge_case(step, what).say == DELAY_NONE)
			return what;
	}
	if (case_due(step, later) <= now_ns)
		return later;
	for (int i = 0; i < CASE_LATER; i++)
		if (case_due(step, &step->cases[i]) <= now_ns)
			return &step->cases[i];
	return NULL;
}

/* If a case is said for want of a better one, returns the verdict on the end that led to it, if there is one. */
static struct step_case *cause_of(struct step *step, struct step_case *what)
{
	struct step_case *later = &step->cases[CASE_LATER];
	bool earlier = later->happened_ns <= what->happened_ns;

	return later->held && judge_case(step, later).words != WORDS_NONE &&
	       judge_explains(&later->facts, &what->facts, earlier) ? later : what;
}

/* Whether it waits until grace= is over. */
static bool has_grace(enum end_delay delay)
{
	return delay == DELAY_GRACE || delay == DELAY_STOP;
}

/* If SLURM itself seems to have ended the step, there is no sentence. */
static struct step_end end_of(const struct step *step, const struct step_case *what, const struct end_verdict *verdict)
{
	struct step_end end = { .hearsay = judge_is_hearsay(&what->facts), .wait_status = what->wait_status,
		                .survived = what->facts.survived,
		                .stopping = step->stopping || step->signalled || verdict->words == WORDS_NONE };

	memcpy(end.node, what->node, sizeof(end.node));
	return end;
}

static void say_case(struct step *step, struct step_case *what, const struct end_verdict *verdict,
                     uint64_t now_ns, struct step_action *action)
{
	struct sink sink = sink_on(action->text, sizeof(action->text));
	enum end_delay delay = action->kill ? verdict->kill : verdict->say;

	if (verdict->words == WORDS_NONE || (step->said && !action->kill))
		return;
	if (judge_is_hearsay(&what->facts))
		stall_step_add_hearsay(&step->stall, what->text, now_ns, &sink);
	else
		sink_add(&sink, "%s", what->text);
	/* Why the step is not ended. */
	if (step->signalled && !step->stopping && verdict->kill == DELAY_STOP && !action->kill)
		sink_add(&sink, step->policy.restarts
		         ? "; no restart, as the step was sent a signal before; the others may save (see grace= in srun-ddp(7))"
		         : "; the step was sent a signal before, so the others may save (see grace= in srun-ddp(7))");
	if (has_grace(delay))
		sink_add(&sink, "; %.1f s later the step was still running%s (see grace= in srun-ddp(7))",
		         (double)delay_ns(step, what, delay) * 1e-9,
		         action->kill && !(step->policy.restarts && delay == DELAY_GRACE) ? ", and is ended" : "");
	if (!step->said) {
		if (!what->facts.survived || step->policy.restarts)
			step->wait_status = what->wait_status;
		action->kind = event_kind_of(&what->facts);
		action->wait_status = what->facts.silent ? 0 : what->wait_status;
		memcpy(action->node, what->node, sizeof(action->node));
	}
	what->said = true;
	step->said = !what->facts.survived || step->policy.restarts;
}

bool step_has_survived(const struct step *step)
{
	return step->survived && !step->failed && !step->stopping;
}

bool step_act(struct step *step, uint64_t now_ns, struct step_action *action)
{
	struct step_case *what = !step->over && step_due(step) <= now_ns ? choose(step, now_ns) : NULL;
	struct end_verdict verdict;

	if (step->over && step->again_ns <= now_ns) {
		*action = (struct step_action){ .kill = true };
		step->pause_ns *= 2;
		step->again_ns = now_ns + step->pause_ns;
		return true;
	}
	if (what == NULL && stall_due(step) <= now_ns) {
		act_on_stall(step, now_ns, action);
		return true;
	}
	if (what == NULL)
		return false;
	verdict = judge_case(step, what);
	*action = (struct step_action){ .kill = now_ns - what->taken_ns >= delay_ns(step, what, verdict.kill) };
	if (action->kill && verdict.kill == DELAY_STOP && step->policy.slurm_may_grant_more) {
		*action = (struct step_action){ .ask = true };
		return true;
	}
	/* The chosen case may have come after the one that is due: they are one event. */
	if (verdict.say == DELAY_NONE && verdict.kill == DELAY_NONE)
		action->kill = true;
	if (action->kill)
		action->end = end_of(step, cause_of(step, what), &verdict);
	say_case(step, cause_of(step, what), &verdict, now_ns, action);
	/* All is done with it: the next one may have consequences. */
	if (verdict.kill == DELAY_NEVER)
		what->held = false;
	if (action->kill)
		expect_end(step, now_ns, 0);
	return true;
}

bool step_act_before(struct step *step, const char *node, uint64_t heard_ns, uint64_t now_ns,
                     struct step_action *action)
{
	const struct step_case *what = &step->cases[CASE_CAUSE];

	if (!step_holds(step) || !what->held || (what->happened_ns > heard_ns && strcmp(what->node, node) != 0))
		return false;
	step->doubt_ns = 0;
	return case_due(step, what) <= now_ns && step_act(step, now_ns, action);
}

void step_answer(struct step *step, bool slurm_ends_it)
{
	step->policy.slurm_may_grant_more = false;
	if (slurm_ends_it)
		step->policy.stop_ms = STOP_BY_SLURM;
}

bool step_finish(struct step *step, struct step_action *action)
{
	*action = (struct step_action){ .kill = false };
	for (int i = 0; i < CASE_COUNT && !step->over && !step->said; i++) {
		struct step_case *what = &step->cases[i];
		struct end_verdict verdict = judge_case(step, what);
		/* A rank that a person has ended by SIGTERM waits for nobody any more. */
		if (!what->held || (verdict.say != DELAY_NONE && verdict.say != DELAY_GRACE))
			continue;
		/* Nothing is left of the step that could be ended. */
		verdict.say = DELAY_NONE;
		verdict.kill = DELAY_NEVER;
		action->end = end_of(step, cause_of(step, what), &verdict);
		say_case(step, cause_of(step, what), &verdict, what->taken_ns, action);
	}
	step->over = true;
	step->again_ns = UINT64_MAX;
	stall_step_end(&step->stall);
	return action->text[0] != '\0';
}
