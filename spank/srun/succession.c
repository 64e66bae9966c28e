/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/succession.h"

#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"

/* ---- why generations have ended, and whether they got further than those before ---- */

void history_start(struct history *history)
{
	*history = (struct history){ .last_rank = UINT32_MAX, .last_node = UINT32_MAX };
}

struct cause cause_of_loss(uint32_t node, const char *text)
{
	struct cause cause = { .known = true, .lost = true, .survived = true, .wait_status = W_EXITCODE(1, 0),
		               .rank = UINT32_MAX, .node = node };
	struct sink sink = sink_on(cause.text, sizeof(cause.text));

	sink_add(&sink, "%s", text);
	return cause;
}

void cause_add(struct cause *cause, const struct cause *further)
{
	struct sink sink;

	if (!cause->known || (cause->hearsay && !further->hearsay)) {
		*cause = *further;
		return;
	}
	if (further->hearsay)
		return;
	cause->lost |= further->lost;
	sink = sink_behind(cause->text, sizeof(cause->text));
	sink_add(&sink, "; %s", further->text);
}

/* Notes the end of a generation with its highest step and its first one, 0 if not known. */
static void history_note(struct history *history, const struct cause *cause, uint64_t step, uint64_t first)
{
	bool shown = step > 0 || history->best_step > 0;

	if (step > history->best_step || first > history->best_first)
		history->fruitless = 0;
	else if (shown && !cause->lost)
		history->fruitless++;
	if (step > history->best_step)
		history->best_step = step;
	if (first > history->best_first)
		history->best_first = first;
	history->last_rank = cause->hearsay ? UINT32_MAX : cause->rank;
	history->last_step = step;
}

/* Adds "; it is the same rank as last time", if it is. To be called before history_note(). */
static void history_add_repetition(const struct history *history, const struct cause *cause, uint64_t step,
                                   struct sink *sink)
{
	if (cause->hearsay || cause->rank == UINT32_MAX || cause->rank != history->last_rank)
		return;
	if (step > 0 && step == history->last_step)
		sink_add(sink, "; it is the same rank in the same step %llu as last time", (unsigned long long)step);
	else
		sink_add(sink, "; it is the same rank as last time");
}

bool history_same_node(struct history *history, const struct cause *cause)
{
	uint32_t node = cause->hearsay || cause->lost ? UINT32_MAX : cause->node;
	bool same = node != UINT32_MAX && node == history->last_node;

	history->last_node = same ? UINT32_MAX : node;
	return same;
}

/* ---- what is said ------------------------------------------------------------------ */

struct sink succession_say(struct plan *plan)
{
	struct sink sink = plan->says ? sink_behind(plan->text, sizeof(plan->text))
	                              : sink_on(plan->text, sizeof(plan->text));

	if (plan->says)
		sink_add(&sink, "; ");
	plan->says = true;
	return sink;
}

/* ---- the end ---------------------------------------------------------------- */

void succession_finish(struct plan *plan)
{
	plan->phase = PLAN_OVER;
	plan->ended_ns = UINT64_MAX;
	plan->begins = plan->says = false;
	plan->cursor = 0;
	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		struct roster_node *node = &plan->roster.nodes[i];
		node->end_owed = node->go_owed = false;
		node->quit_owed = node->joined && !node->quit;
	}
}

void succession_give_up(struct plan *plan, const char *why)
{
	struct sink sink = sink_on(plan->text, sizeof(plan->text));

	succession_finish(plan);
	sink_add(&sink, "%s%s%s", plan->cause.text, plan->cause.text[0] != '\0' && why[0] != '\0' ? "; " : "", why);
	plan->wait_status = plan->cause.wait_status != 0 ? plan->cause.wait_status : W_EXITCODE(1, 0);
	plan->ends = true;
}

/* ---- a generation begins ------------------------------------------------------- */

static void begin_generation(struct plan *plan)
{
	roster_count(&plan->roster);
	plan->generation++;
	plan->phase = PLAN_RUNNING;
	plan->ended_count = plan->fine_count = 0;
	plan->never_ran = false;
	plan->fine_rank = ROSTER_NONE;
	plan->ended_ns = UINT64_MAX;
	plan->step = plan->first = 0;
	plan->cursor = 0;
	plan->begins = true;
	memset(plan->ended, 0, plan->roster.task_count * sizeof(*plan->ended));
	plan->cause = (struct cause){ .known = false };
	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		struct roster_node *node = &plan->roster.nodes[i];
		/* A spare that has not answered takes no part, until it answers that a later generation has ended. */
		node->go_owed = roster_is_usable(node) && node->clear;
		/* A node that is away gets this order, too, because it may come back. */
		node->quit_owed |= !roster_is_usable(node) && !node->quit;
		node->clear = node->end_owed = false;
	}
}

static void give_up_without_nodes(struct plan *plan)
{
	char why[256];
	struct sink sink = sink_on(why, sizeof(why));

	if (plan->roster.min_nodes < plan->roster.slot_count)
		sink_add(&sink, "no spare is left, and min-nodes=%u needs more nodes than the %u that %s left",
		         plan->roster.min_nodes, plan->roster.active, plan->roster.active == 1 ? "is" : "are");
	else
		sink_add(&sink, "no spare is left to take its place (see spare= and min-nodes= in srun-ddp(7))");
	succession_give_up(plan, why);
}

/* ---- a generation ends --------------------------------------------------------- */

/* Whether ranks stay, where some could; otherwise NULL. */
static const char *say_who_stays(const struct plan *plan)
{
	if (plan->keeps)
		return "the other ranks keep their processes";
	return plan->joins || plan->refused ? "all ranks start again" : NULL;
}

static void say_restart(struct plan *plan, const struct history *before, const char *places)
{
	struct sink sink = succession_say(plan);
	const char *how = say_who_stays(plan);

	sink_add(&sink, "%s", plan->cause.text);
	if (plan->cause.port_taken) {
		sink_add(&sink, "; the next port is tried, which is no restart%s%s", places[0] != '\0' ? ": " : "", places);
	} else {
		history_add_repetition(before, &plan->cause, plan->step, &sink);
		sink_add(&sink, "; restart %u of %u%s%s", plan->restarts, plan->policy.restarts,
		         places[0] != '\0' ? ": " : "", places);
		if (how != NULL)
			sink_add(&sink, "%s %s", places[0] != '\0' ? ", and" : ":", how);
	}
	roster_add_spares(&plan->roster, &sink);
}

static void restart_step(struct plan *plan)
{
	char places[1024];
	struct sink sink = sink_on(places, sizeof(places));
	struct history before = plan->history;

	if (!plan->cause.port_taken)
		history_note(&plan->history, &plan->cause, plan->step, plan->first);
	if (plan->history.fruitless >= HISTORY_FRUITLESS) {
		succession_give_up(plan, "the step was restarted twice without a new step or checkpoint, and is ended");
		return;
	}
	if (!roster_fill(&plan->roster, &sink)) {
		give_up_without_nodes(plan);
		return;
	}
	if (plan->cause.port_taken)
		plan->ports_taken++;
	else
		plan->restarts++;
	say_restart(plan, &before, places);
	plan->joins = plan->keeps;
	plan->refused = false;
	begin_generation(plan);
}

/* Begins the first generation, before which nothing is restarted. */
static void begin_first(struct plan *plan)
{
	char places[1024];
	struct sink sink = sink_on(places, sizeof(places)), text;

	if (!roster_fill(&plan->roster, &sink)) {
		give_up_without_nodes(plan);
		return;
	}
	if (!plan->cause.known && places[0] != '\0') {
		text = succession_say(plan);
		sink_add(&text, "preflight=exclude: %s", places);
		roster_add_spares(&plan->roster, &text);
	}
	if (plan->cause.known) {
		text = succession_say(plan);
		sink_add(&text, "%s%s%s", plan->cause.text, places[0] != '\0' ? "; " : "", places);
		roster_add_spares(&plan->roster, &text);
	}
	begin_generation(plan);
}

/* All nodes are told to end their ranks. With `keeps`, ranks that survive others may stay. */
static void order_end(struct plan *plan, bool keeps, uint64_t now_ns)
{
	plan->keeps = keeps;
	plan->phase = PLAN_ENDING;
	plan->phase_ns = plan->not_before_ns = now_ns;
	plan->enough_ns = 0;
	plan->cursor = 0;
	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		struct roster_node *node = &plan->roster.nodes[i];
		node->end_owed = node->joined && !node->lost;
		node->go_owed = node->clear = false;
		node->rest = DEAL_NONE;
	}
}

uint64_t succession_next_ns(const struct plan *plan)
{
	uint64_t spares_ns = plan->enough_ns + PLAN_SPARE_MS * NS_PER_MS;

	if (roster_all_clear(&plan->roster))
		return plan->not_before_ns;
	if (plan->enough_ns == 0 || !roster_is_clear(&plan->roster))
		return UINT64_MAX;
	return spares_ns > plan->not_before_ns ? spares_ns : plan->not_before_ns;
}

static void end_kept_or_restart(struct plan *plan, uint64_t now_ns)
{
	bool joins = plan->keeps && roster_can_join(&plan->roster);

	if (plan->keeps && !joins && roster_any_kept(&plan->roster)) {
		plan->refused = true;
		order_end(plan, false, now_ns);
		return;
	}
	plan->keeps = joins;
	restart_step(plan);
}

void succession_go_on(struct plan *plan, uint64_t now_ns)
{
	if (plan->phase == PLAN_ENDING && plan->enough_ns == 0 && roster_is_clear(&plan->roster))
		plan->enough_ns = now_ns;
	if (now_ns < plan->not_before_ns)
		return;
	if (plan->phase == PLAN_ENDING && succession_next_ns(plan) <= now_ns)
		end_kept_or_restart(plan, now_ns);
	else if (plan->phase == PLAN_JOINING && roster_all_joined(&plan->roster))
		begin_first(plan);
}

/* ---- what ends it --------------------------------------------------------------- */

/* Adds why there is no restart; adds nothing if there may be one. */
static void add_refusal(const struct plan *plan, const struct cause *cause, struct sink *sink)
{
	if (cause->port_taken && plan->fine_count == 0)
		return;
	/* In a later generation the node has failed. */
	if (plan->never_ran && plan->restarts == 0)
		sink_add(sink, "no restart, as SLURM could not start the program");
	else if (plan->fine_count > 0)
		sink_add(sink, "no restart, as rank %u of %u had ended with code 0", plan->fine_rank,
		         plan->roster.world_size);
	else if (plan->restarts == plan->policy.restarts)
		sink_add(sink, plan->restarts == 1 ? "the one restart of restart=%u is used up"
		         : "all restarts of restart=%u are used up", plan->policy.restarts);
}

void succession_begin_ending(struct plan *plan, const struct cause *cause, uint64_t now_ns)
{
	char why[160];
	struct sink sink = sink_on(why, sizeof(why)), text;

	plan->cause = *cause;
	plan->ended_ns = UINT64_MAX;
	add_refusal(plan, cause, &sink);
	if (why[0] != '\0') {
		text = sink_behind(plan->cause.text, sizeof(plan->cause.text));
		history_add_repetition(&plan->history, cause, 0, &text);
		succession_give_up(plan, why);
		return;
	}
	order_end(plan, cause->survived, now_ns);
}
