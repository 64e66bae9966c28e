/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "spank/identity/nodelist.h"
#include "spank/srun/succession.h"

bool plan_start(struct plan *plan, const struct plan_policy *policy, uint32_t nodes, uint32_t tasks)
{
	*plan = (struct plan){ .policy = *policy, .ended_ns = UINT64_MAX };
	history_start(&plan->history);
	plan->ended = calloc(tasks > 0 ? tasks : 1, sizeof(*plan->ended));
	if (plan->ended != NULL && roster_start(&plan->roster, nodes, tasks, policy->spares, policy->min_nodes))
		return true;
	plan_free(plan);
	return false;
}

void plan_free(struct plan *plan)
{
	roster_free(&plan->roster);
	free(plan->ended);
	*plan = (struct plan){ .phase = PLAN_OVER, .ended_ns = UINT64_MAX };
}

static struct roster_node *node_at(struct plan *plan, uint32_t node)
{
	return node < plan->roster.node_count ? &plan->roster.nodes[node] : NULL;
}

/* The node, if it is there as far as srun knows; otherwise NULL. */
static struct roster_node *present_node(struct plan *plan, uint32_t index)
{
	struct roster_node *node = node_at(plan, index);

	return node != NULL && node->joined && !node->lost ? node : NULL;
}

/* ---- the end ---------------------------------------------------------------- */

void plan_leave(struct plan *plan)
{
	if (plan->phase != PLAN_OVER)
		succession_finish(plan);
}

static void succeed(struct plan *plan)
{
	succession_finish(plan);
	plan->succeeds = true;
}

/* ---- failures ---------------------------------------------------------------- */

static struct cause cause_of(const struct plan *plan, const struct plan_failure *failure)
{
	struct cause cause = { .known = true, .hearsay = failure->hearsay, .wait_status = failure->wait_status,
		               .port_taken = failure->port_taken && !plan->joins && plan->ports_taken < PLAN_PORTS,
		               .rank = failure->rank, .node = roster_find(&plan->roster, failure->node) };
	struct sink sink = sink_on(cause.text, sizeof(cause.text));

	sink_add(&sink, "%s", failure->text);
	if (roster_find(&plan->roster, failure->damaged) != ROSTER_NONE)
		cause.node = roster_find(&plan->roster, failure->damaged);
	cause.lost = cause.node != ROSTER_NONE && !roster_is_usable(&plan->roster.nodes[cause.node]);
	return cause;
}

/* Whether the step can go on without one more node. Some slots may need a waiting node already. */
static bool can_spare(const struct roster *roster)
{
	uint32_t needed = 1, waiting = roster_waiting(roster);

	for (uint32_t i = 0; i < roster->slot_count; i++)
		needed += roster->slots[i].node != ROSTER_NONE && !roster_is_usable(&roster->nodes[roster->slots[i].node]);
	return waiting >= needed || roster->active + waiting >= roster->min_nodes + needed;
}

/* The step goes on without the damaged node, if it can. */
static void avoid_damaged(struct plan *plan, const char *damaged, struct cause *cause)
{
	struct roster_node *node = node_at(plan, roster_find(&plan->roster, damaged));
	struct sink sink = sink_behind(cause->text, sizeof(cause->text));

	if (node == NULL || !roster_is_usable(node))
		return;
	if (can_spare(&plan->roster)) {
		node->unfit = true;
		return;
	}
	node->suspect = true;
	sink_add(&sink, "; node %s stays, because no spare is left", node->name);
}

void plan_fail(struct plan *plan, const struct plan_failure *failure, uint64_t now_ns)
{
	struct cause cause = cause_of(plan, failure);

	if (plan->phase == PLAN_OVER)
		return;
	if (failure->stopping || plan->phase == PLAN_JOINING) {
		plan->cause = cause;
		succession_give_up(plan, "");
	}
	/* Other events in a generation that ends are consequences of its end. */
	if (plan->phase != PLAN_RUNNING)
		return;
	cause.survived = failure->survived && failure->damaged == NULL;
	avoid_damaged(plan, failure->damaged, &cause);
	succession_begin_ending(plan, &cause, now_ns);
	if (!cause.port_taken && history_same_node(&plan->history, &cause))
		plan->roster.nodes[cause.node].suspect = true;
	succession_go_on(plan, now_ns);
}

/* ---- nodes ----------------------------------------------------------------------- */

static void refuse(struct plan *plan, const char *name, const char *why)
{
	struct sink sink = sink_on(plan->cause.text, sizeof(plan->cause.text));

	plan->cause.wait_status = 0;
	sink_add(&sink, "node ");
	sink_add_untrusted(&sink, name, 255);
	sink_add(&sink, " cannot take part in restarts: %s", why);
	succession_give_up(plan, "");
}

/* Takes a node back that has been away. */
static void come_back(struct plan *plan, struct roster_node *node)
{
	if (node->lost || plan->phase == PLAN_OVER)
		node->quit_owed = true;
	plan->cursor = 0;
}

void plan_join(struct plan *plan, const struct deal_join *join, const char *name, uint64_t now_ns)
{
	struct roster_node *node = node_at(plan, join->node_id);
	const char *why;

	if (node != NULL && node->joined) {
		come_back(plan, node);
		plan_heard(plan, join->node_id, now_ns);
		return;
	}
	why = plan->phase == PLAN_JOINING ? roster_join(&plan->roster, join, name) : NULL;
	if (why != NULL)
		refuse(plan, name, why);
	else if (plan->phase == PLAN_JOINING)
		plan->roster.nodes[join->node_id].suspect |= names_have(plan->policy.odd_nodes, name);
	if (plan->phase != PLAN_JOINING)
		return;
	plan_heard(plan, join->node_id, now_ns);
	succession_go_on(plan, now_ns);
}

void plan_note_own(struct plan *plan, uint32_t index)
{
	struct roster_node *node = node_at(plan, index);

	if (node != NULL)
		node->own = true;
}

/* The node has ended its ranks by itself. */
static void take_fence(struct plan *plan, uint32_t index, uint64_t now_ns)
{
	char text[512];
	struct sink sink = sink_on(text, sizeof(text));
	struct cause cause;

	sink_add(&sink, "node %s did not reach srun for too long, and has ended its ranks",
	         plan->roster.nodes[index].name);
	cause = cause_of_loss(index, text);
	succession_begin_ending(plan, &cause, now_ns);
}

void plan_clear(struct plan *plan, uint32_t index, const struct deal_clear *clear, uint64_t now_ns)
{
	struct roster_node *node = present_node(plan, index);

	if (node == NULL || clear->generation != plan->generation)
		return;
	if (clear->step > plan->step)
		plan->step = clear->step;
	if (clear->first > 0 && (plan->first == 0 || clear->first < plan->first))
		plan->first = clear->first;
	if (plan->phase == PLAN_RUNNING && clear->fenced && node->slot != ROSTER_NONE)
		take_fence(plan, index, now_ns);
	if (plan->phase != PLAN_ENDING)
		return;
	node->clear = true;
	node->rest = clear->rest;
	succession_go_on(plan, now_ns);
}

void plan_done(struct plan *plan, uint32_t node, const struct deal_done *done, uint64_t now_ns)
{
	uint32_t rank;

	if (plan->phase != PLAN_RUNNING || done->generation != plan->generation)
		return;
	rank = roster_rank(&plan->roster, node, done->local_task);
	if (rank >= plan->roster.world_size || plan->ended[rank])
		return;
	plan->ended[rank] = true;
	plan->never_ran |= done->never_ran;
	plan->ended_count++;
	if (done->wait_status == 0 && plan->fine_count++ == 0)
		plan->fine_rank = rank;
	if (plan->ended_count < plan->roster.world_size)
		return;
	if (plan->fine_count == plan->roster.world_size)
		succeed(plan);
	else
		plan->ended_ns = now_ns;
}

/* The node cannot have ranks any more. Says so of a spare. */
static void drop_spare(struct plan *plan, const char *text)
{
	struct sink sink = succession_say(plan);

	sink_add(&sink, "%s; it was a spare", text);
	roster_add_spares(&plan->roster, &sink);
}

void plan_lose_agent(struct plan *plan, uint32_t node, const struct deal_lost *lost, uint64_t now_ns)
{
	struct roster_node *from = node_at(plan, node);
	char text[512];
	struct sink sink = sink_on(text, sizeof(text));

	(void)lost;
	(void)now_ns;
	if (from == NULL || !roster_is_usable(from) || plan->phase == PLAN_OVER)
		return;
	from->unfit = true;
	if (from->slot != ROSTER_NONE)
		return;
	sink_add(&sink, "node %s has lost an agent", from->name);
	drop_spare(plan, text);
	from->quit_owed = true;
	from->go_owed = false;
	plan->cursor = 0;
}

static void lose(struct plan *plan, uint32_t index, const char *text, uint64_t now_ns)
{
	struct roster_node *node = &plan->roster.nodes[index];
	const struct cause cause = cause_of_loss(index, text);
	bool waited = node->slot == ROSTER_NONE && !node->unfit;

	node->lost = true;
	node->go_owed = node->end_owed = false;
	if (waited)
		drop_spare(plan, text);
	else if (node->slot != ROSTER_NONE && plan->phase == PLAN_RUNNING)
		succession_begin_ending(plan, &cause, now_ns);
	else if (node->slot != ROSTER_NONE)
		cause_add(&plan->cause, &cause);
	succession_go_on(plan, now_ns);
}

/* If no other node has spoken either, srun itself is cut off. srun hears a node that is its own host all the same, so
   that node counts only if there is no further one. */
static bool is_alone(const struct plan *plan, uint32_t silent, uint64_t now_ns)
{
	uint64_t lately_ns = plan->policy.silence_ms * NS_PER_MS / 2;
	bool hears_own = false, any_other = false;

	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		const struct roster_node *node = &plan->roster.nodes[i];
		bool spoke = now_ns - node->heard_ns < lately_ns;
		if (i == silent || !node->joined || node->lost)
			continue;
		if (spoke && !node->own)
			return false;
		hears_own |= spoke;
		any_other |= !node->own;
	}
	return any_other || !hears_own;
}

/* Whether srun hears the node over a network, or has no other node to hear. */
static bool shows_network(const struct plan *plan, const struct roster_node *own)
{
	for (uint32_t i = 0; own->own && i < plan->roster.node_count; i++) {
		const struct roster_node *node = &plan->roster.nodes[i];
		if (node->joined && !node->lost && !node->own)
			return false;
	}
	return true;
}

static uint64_t alone_ns(const struct plan *plan)
{
	uint64_t ms = 4 * (uint64_t)plan->policy.silence_ms;

	return (ms > PLAN_ALONE_MS ? ms : PLAN_ALONE_MS) * NS_PER_MS;
}

void plan_all_silent(struct plan *plan, uint64_t silent_ms, uint64_t now_ns)
{
	uint64_t past_ns = silent_ms * NS_PER_MS, all_ns = alone_ns(plan);

	if (plan->phase != PLAN_RUNNING && plan->phase != PLAN_ENDING)
		return;
	plan->phase = PLAN_ALONE;
	plan->ended_ns = UINT64_MAX;
	plan->phase_ns = now_ns;
	plan->alone_until_ns = now_ns + (past_ns < all_ns ? all_ns - past_ns : 0);
	plan->silent_ns = past_ns;
}

void plan_silent(struct plan *plan, uint32_t index, uint64_t silent_ms, uint64_t now_ns)
{
	struct roster_node *node = present_node(plan, index);
	char text[1024];
	struct sink sink = sink_on(text, sizeof(text));

	if (node == NULL || plan->phase == PLAN_ALONE)
		return;
	if (plan->phase == PLAN_OVER) {
		node->lost = true;
		return;
	}
	if (plan->phase != PLAN_JOINING && is_alone(plan, index, now_ns)) {
		plan_all_silent(plan, silent_ms, now_ns);
		return;
	}
	sink_add(&sink, "node %s has been silent for %.1f s", node->name, (double)silent_ms / 1000);
	roster_add_ranks(&plan->roster, index, &sink);
	sink_add(&sink, " (is its power or network lost?)");
	lose(plan, index, text, now_ns);
}

void plan_gone(struct plan *plan, uint32_t index, uint64_t now_ns)
{
	struct roster_node *node = present_node(plan, index);
	char text[1024];
	struct sink sink = sink_on(text, sizeof(text));

	if (node == NULL || plan->phase == PLAN_OVER)
		return;
	sink_add(&sink, "slurmstepd on node %s has ended without a word", node->name);
	roster_add_ranks(&plan->roster, index, &sink);
	if (plan->phase == PLAN_ALONE) {
		node->lost = true;
		return;
	}
	plan->not_before_ns = now_ns + PLAN_GONE_MS * NS_PER_MS;
	lose(plan, index, text, now_ns);
	/* lose() may have ended a generation, and set another time. */
	plan->not_before_ns = now_ns + PLAN_GONE_MS * NS_PER_MS;
}

void plan_bye(struct plan *plan, uint32_t index, uint64_t now_ns)
{
	struct roster_node *node = present_node(plan, index);

	if (index < plan->roster.node_count)
		plan->roster.nodes[index].bye = true;
	if (node == NULL)
		return;
	/* Other reports tell why its tasks have ended. Mostly SLURM has ended the step, and other nodes follow. */
	node->lost = node->quit = true;
	node->end_owed = node->go_owed = node->quit_owed = false;
	if (plan->phase == PLAN_JOINING)
		plan_leave(plan);
	plan->not_before_ns = now_ns + PLAN_GONE_MS * NS_PER_MS;
}

/* ---- srun itself was cut off ------------------------------------------------------- */

static bool has_come_back(const struct plan *plan, const struct roster_node *node)
{
	return node->heard_ns > plan->phase_ns;
}

static void end_alone(struct plan *plan, uint64_t now_ns)
{
	struct cause cause = cause_of_loss(ROSTER_NONE, ""), before = plan->cause;
	struct sink sink = sink_on(cause.text, sizeof(cause.text));
	uint64_t away_ns = now_ns - plan->phase_ns + plan->silent_ns;
	uint32_t lost = 0, any_own = 0;

	for (uint32_t i = 0; i < plan->roster.node_count; i++)
		any_own += present_node(plan, i) != NULL && !shows_network(plan, &plan->roster.nodes[i]);
	sink_add(&sink, "srun did not reach any %snode for %.1f s", any_own > 0 ? "other " : "", (double)away_ns * 1e-9);
	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		struct roster_node *node = present_node(plan, i);
		if (node == NULL || has_come_back(plan, node))
			continue;
		node->lost = true;
		sink_add(&sink, "%s%s", lost++ > 0 ? ", " : ", and has lost ", node->name);
	}
	if (before.known)
		cause_add(&before, &cause);
	succession_begin_ending(plan, before.known ? &before : &cause, now_ns);
	succession_go_on(plan, now_ns);
}

void plan_heard(struct plan *plan, uint32_t index, uint64_t now_ns)
{
	struct roster_node *node = node_at(plan, index);
	uint64_t more_ns = now_ns + plan->policy.silence_ms * NS_PER_MS;

	if (node == NULL || !node->joined)
		return;
	node->heard_ns = now_ns;
	if (plan->phase != PLAN_ALONE || node->lost || !shows_network(plan, node))
		return;
	/* The others come back at about the same time, or not at all. */
	if (more_ns < plan->alone_until_ns)
		plan->alone_until_ns = more_ns;
	for (uint32_t i = 0; i < plan->roster.node_count; i++) {
		node = present_node(plan, i);
		if (node != NULL && !has_come_back(plan, node))
			return;
	}
	end_alone(plan, now_ns);
}

/* ---- actions ------------------------------------------------------------------------ */

static uint64_t time_due(const struct plan *plan)
{
	switch (plan->phase) {
	case PLAN_RUNNING:
		return plan->ended_ns == UINT64_MAX ? UINT64_MAX : plan->ended_ns + PLAN_SETTLE_MS * NS_PER_MS;
	case PLAN_ENDING:
		return succession_next_ns(plan) < UINT64_MAX ? succession_next_ns(plan) : plan->phase_ns + PLAN_CLEAR_MS * NS_PER_MS;
	case PLAN_ALONE:
		return plan->alone_until_ns;
	case PLAN_JOINING:
		return roster_all_joined(&plan->roster) ? plan->not_before_ns : UINT64_MAX;
	case PLAN_OVER:
		if (plan->abandoned || !roster_any_away(&plan->roster))
			break;
		return plan->over_ns == 0 || roster_all_gone(&plan->roster) ? 0 : plan->over_ns + PLAN_LEAVE_MS * NS_PER_MS;
	}
	return UINT64_MAX;
}

uint64_t plan_due(const struct plan *plan)
{
	if (plan->says || plan->begins || plan->ends || plan->succeeds || roster_owes(&plan->roster, plan->cursor))
		return 0;
	return time_due(plan);
}

/* Loses nodes whose ranks could not be ended. */
static void lose_unclear(struct plan *plan, uint64_t now_ns)
{
	plan->phase_ns = now_ns;
	for (uint32_t i = 0; i < plan->roster.node_count && plan->phase == PLAN_ENDING; i++) {
		const struct roster_node *node = present_node(plan, i);
		char text[512];
		struct sink sink = sink_on(text, sizeof(text));
		if (node == NULL || node->clear)
			continue;
		sink_add(&sink, "node %s could not end its ranks within %d s", node->name, PLAN_CLEAR_MS / 1000);
		lose(plan, i, text, now_ns);
	}
}

/* Notes what follows from the time alone. True: the caller is to act. */
static bool act_on_time(struct plan *plan, uint64_t now_ns, struct plan_action *action)
{
	if (plan->phase == PLAN_OVER && plan->over_ns == 0)
		plan->over_ns = now_ns;
	if (time_due(plan) > now_ns)
		return false;
	if (plan->phase == PLAN_OVER) {
		plan->abandoned = true;
		*action = (struct plan_action){ .kind = PLAN_ABANDON };
		return true;
	}
	if (plan->phase == PLAN_RUNNING) {
		plan->ended_ns = UINT64_MAX;
		*action = (struct plan_action){ .kind = PLAN_ALL_ENDED };
		return true;
	}
	if (plan->phase == PLAN_ENDING && succession_next_ns(plan) == UINT64_MAX)
		lose_unclear(plan, now_ns);
	else if (plan->phase == PLAN_ENDING || plan->phase == PLAN_JOINING)
		succession_go_on(plan, now_ns);
	else if (plan->phase == PLAN_ALONE)
		end_alone(plan, now_ns);
	return false;
}

static bool take_order(struct plan *plan, struct plan_action *action)
{
	static const enum plan_kind kinds[] = { [ORDER_NONE] = PLAN_SAY, [ORDER_END] = PLAN_SEND_END,
		                                [ORDER_GO] = PLAN_SEND_GO, [ORDER_QUIT] = PLAN_SEND_QUIT };
	enum roster_order order = roster_take_order(&plan->roster, &plan->cursor);

	/* While the step goes on without a node, the ends of that node's earlier programs are not the step's: srun's exit
	   code is the worst one of all tasks. */
	*action = (struct plan_action){ .kind = kinds[order], .node = plan->cursor,
		                        .wait_status = plan->phase == PLAN_OVER ? DEAL_OWN_STATUS : 0 };
	return order != ORDER_NONE;
}

/* Gives what was decided already and is still to be done. */
static bool take_decision(struct plan *plan, struct plan_action *action)
{
	*action = (struct plan_action){ .kind = PLAN_SAY, .text = plan->text };
	if (plan->says) {
		plan->says = false;
		return true;
	}
	if (plan->ends || plan->succeeds) {
		action->kind = plan->ends ? PLAN_END_STEP : PLAN_SUCCESS;
		action->wait_status = plan->wait_status;
		plan->abandoned |= plan->ends;
		plan->ends = plan->succeeds = false;
		return true;
	}
	if (plan->begins) {
		plan->begins = false;
		action->kind = PLAN_BEGIN;
		return true;
	}
	return take_order(plan, action);
}

bool plan_act(struct plan *plan, uint64_t now_ns, struct plan_action *action)
{
	return take_decision(plan, action) || act_on_time(plan, now_ns, action) || take_decision(plan, action);
}

void plan_go(const struct plan *plan, uint32_t node, struct deal_go *go, uint32_t ranks[DEAL_TASKS_MAX])
{
	*go = (struct deal_go){ .generation = plan->generation, .restart_count = plan->restarts,
		                .port_seed = plan->generation - 1, .joins = plan->joins };
	roster_deal(&plan->roster, node, go, ranks);
}
