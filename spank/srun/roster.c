/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/roster.h"

#include <stdlib.h>
#include <string.h>

enum { TAKEN = 1 }; /* in rank_of, before ranks are counted */

bool roster_fits(uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes, struct error *error)
{
	if (spares >= nodes)
		return error_set(error, "spare=%u needs more nodes than the step has (%u): at least one node must have "
		                 "ranks from the beginning", spares, nodes);
	if (min_nodes > nodes - spares)
		return error_set(error, "min-nodes=%u is more than the %u nodes that have ranks from the beginning (the "
		                 "step has %u nodes, and %u of them are spares)", min_nodes, nodes - spares, nodes, spares);
	if ((spares > 0 || min_nodes > 0) && tasks % nodes != 0)
		return error_set(error, "spare= and min-nodes= need the same number of tasks on each node, but the step "
		                 "has %u tasks on %u nodes", tasks, nodes);
	return true;
}

bool roster_start(struct roster *roster, uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes)
{
	*roster = (struct roster){ .node_count = nodes, .task_count = tasks, .spares = spares };
	if (nodes == 0 || tasks < nodes || spares >= nodes || min_nodes > nodes - spares)
		return false;
	roster->slot_count = roster->active = nodes - spares;
	roster->min_nodes = min_nodes > 0 ? min_nodes : roster->slot_count;
	roster->nodes = calloc(nodes, sizeof(*roster->nodes));
	roster->slots = calloc(roster->slot_count, sizeof(*roster->slots));
	roster->rank_of = calloc(tasks, sizeof(*roster->rank_of));
	if (roster->nodes == NULL || roster->slots == NULL || roster->rank_of == NULL) {
		roster_free(roster);
		return false;
	}
	for (uint32_t i = 0; i < nodes; i++)
		roster->nodes[i].slot = i < roster->slot_count ? i : ROSTER_NONE;
	for (uint32_t i = 0; i < roster->slot_count; i++)
		roster->slots[i] = (struct roster_slot){ .home = i, .node = i };
	return true;
}

void roster_free(struct roster *roster)
{
	for (uint32_t i = 0; roster->nodes != NULL && i < roster->node_count; i++) {
		free(roster->nodes[i].name);
		free(roster->nodes[i].tasks);
	}
	free(roster->nodes);
	free(roster->slots);
	free(roster->rank_of);
	*roster = (struct roster){ .nodes = NULL };
}

/* ---- who is there --------------------------------------------------------------- */

/* Why the node cannot belong to this step; NULL: it can. */
static const char *contradiction(const struct roster *roster, const struct deal_join *join)
{
	bool equal = roster->spares > 0 || roster->min_nodes < roster->slot_count;

	if (join->version != DEAL_VERSION)
		return "its plugin spank_ddp is of another release than srun's";
	if (join->node_id >= roster->node_count || roster->nodes[join->node_id].joined)
		return "the step has no such node";
	for (uint32_t i = 0; i < join->task_count; i++)
		if (deal_task(join, i) >= roster->task_count || roster->rank_of[deal_task(join, i)] == TAKEN)
			return "it tells of tasks that are not its own";
	for (uint32_t i = 0; equal && i < roster->node_count; i++)
		if (roster->nodes[i].joined && roster->nodes[i].task_count != join->task_count)
			return "it has another number of tasks than other nodes, but spare= and min-nodes= need the same "
			       "number on all nodes";
	return NULL;
}

const char *roster_join(struct roster *roster, const struct deal_join *join, const char *name)
{
	const char *why = contradiction(roster, join);
	struct roster_node *node;

	if (why != NULL)
		return why;
	node = &roster->nodes[join->node_id];
	node->tasks = calloc(join->task_count, sizeof(*node->tasks));
	node->name = strdup(name);
	if (node->tasks == NULL || node->name == NULL)
		return "srun has no memory for it";
	node->task_count = join->task_count;
	node->joined = node->clear = true;
	for (uint32_t i = 0; i < join->task_count; i++) {
		node->tasks[i] = deal_task(join, i);
		roster->rank_of[node->tasks[i]] = TAKEN;
	}
	return NULL;
}

bool roster_all_joined(const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (!roster->nodes[i].joined)
			return false;
	return true;
}

bool roster_all_clear(const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (!roster->nodes[i].lost && !roster->nodes[i].clear)
			return false;
	return true;
}

bool roster_is_clear(const struct roster *roster)
{
	uint32_t wanted = 0, waiting = 0, unclear = 0;

	for (uint32_t i = 0; i < roster->node_count; i++) {
		const struct roster_node *node = &roster->nodes[i];
		bool waits = node->slot == ROSTER_NONE;
		wanted += !waits && (!roster_is_usable(node) || node->suspect);
		if (node->lost)
			continue;
		if (!waits && !node->clear)
			return false;
		waiting += waits && node->clear && roster_is_usable(node);
		unclear += waits && !node->clear;
	}
	return unclear == 0 || waiting >= wanted;
}

bool roster_is_away(const struct roster_node *node)
{
	return node->joined && node->lost && !node->bye;
}

bool roster_any_away(const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (roster_is_away(&roster->nodes[i]))
			return true;
	return false;
}

bool roster_all_gone(const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (!roster->nodes[i].bye && !roster_is_away(&roster->nodes[i]))
			return false;
	return true;
}

bool roster_is_usable(const struct roster_node *node)
{
	return node->joined && !node->lost && !node->unfit;
}

uint32_t roster_find(const struct roster *roster, const char *name)
{
	for (uint32_t i = 0; name != NULL && name[0] != '\0' && i < roster->node_count; i++)
		if (roster->nodes[i].name != NULL && strcmp(roster->nodes[i].name, name) == 0)
			return i;
	return ROSTER_NONE;
}

/* ---- who has which slot ------------------------------------------------------------ */

static bool waits(const struct roster_node *node, bool suspect)
{
	return roster_is_usable(node) && node->slot == ROSTER_NONE && node->suspect == suspect;
}

static uint32_t find_spare(const struct roster *roster, bool suspect)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (roster->nodes[i].clear && waits(&roster->nodes[i], suspect))
			return i;
	return ROSTER_NONE;
}

static bool has_kept(const struct roster_node *node)
{
	return !node->lost && node->slot != ROSTER_NONE && (node->rest == DEAL_KEPT || node->rest == DEAL_SOME);
}

bool roster_any_kept(const struct roster *roster)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (has_kept(&roster->nodes[i]))
			return true;
	return false;
}

bool roster_can_join(const struct roster *roster)
{
	bool any_spare = find_spare(roster, false) != ROSTER_NONE;
	uint32_t wanted = 0, waiting = 0, kept = 0, dead = 0;
	bool any_old = false;

	for (uint32_t i = 0; i < roster->node_count; i++) {
		const struct roster_node *node = &roster->nodes[i];
		bool stays = node->slot != ROSTER_NONE && roster_is_usable(node) && !(node->suspect && any_spare);
		wanted += node->slot != ROSTER_NONE && !stays;
		const bool comes = node->clear && waits(node, node->suspect);
		waiting += comes;
		/* A spare of an older release does not say that nothing ran there. Its program would not join. */
		any_old |= comes && node->rest == DEAL_ENDED;
		kept += has_kept(node);
		dead += stays && node->rest != DEAL_KEPT;
		/* A node that loses its slot would have to end what it has kept. */
		if (stays ? node->rest == DEAL_ENDED : has_kept(node))
			return false;
	}
	return kept > 0 && dead + wanted > 0 && waiting >= wanted && !(wanted > 0 && any_old);
}

/* Returns how many good nodes wait. */
static uint32_t spares_left(const struct roster *roster)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < roster->node_count; i++)
		left += waits(&roster->nodes[i], false);
	return left;
}

uint32_t roster_waiting_at(const struct roster *roster, uint32_t index)
{
	for (uint32_t i = 0; i < roster->node_count; i++)
		if (waits(&roster->nodes[i], roster->nodes[i].suspect) && index-- == 0)
			return i;
	return ROSTER_NONE;
}

uint32_t roster_waiting(const struct roster *roster)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < roster->node_count; i++)
		count += waits(&roster->nodes[i], roster->nodes[i].suspect);
	return count;
}

void roster_add_spares(const struct roster *roster, struct sink *sink)
{
	uint32_t left = spares_left(roster);

	if (roster->spares > 0)
		sink_add(sink, " (%u spare%s left)", left, left == 1 ? "" : "s");
}

static void move(struct roster *roster, struct roster_slot *slot, uint32_t node)
{
	roster->nodes[slot->node].slot = ROSTER_NONE;
	slot->node = node;
	if (node == ROSTER_NONE)
		roster->active--;
	else
		roster->nodes[node].slot = (uint32_t)(slot - roster->slots);
}

/* A node on which ranks failed twice in a row keeps its slot, or takes one, only if there is no other node. True if
   another node has taken the slot. */
static bool fill_slot(struct roster *roster, struct roster_slot *slot, const char *before, struct sink *sink)
{
	const struct roster_node *node = &roster->nodes[slot->node];
	uint32_t spare = find_spare(roster, false);

	if (roster_is_usable(node) && (!node->suspect || spare == ROSTER_NONE))
		return false;
	if (spare == ROSTER_NONE)
		spare = find_spare(roster, true);
	if (spare != ROSTER_NONE)
		sink_add(sink, "%s%s takes the place of %s", before, roster->nodes[spare].name, node->name);
	move(roster, slot, spare);
	return spare != ROSTER_NONE;
}

bool roster_fill(struct roster *roster, struct sink *sink)
{
	uint32_t had = roster->active, filled = 0;

	for (uint32_t i = 0; i < roster->slot_count; i++)
		if (roster->slots[i].node != ROSTER_NONE)
			filled += fill_slot(roster, &roster->slots[i], filled > 0 ? ", " : "", sink);
	if (roster->active < had)
		sink_add(sink, "%sthe step goes on with %u of %u nodes", filled > 0 ? ", and " : "", roster->active,
		         roster->slot_count);
	return roster->active >= roster->min_nodes;
}

/* ---- who has which ranks ------------------------------------------------------------ */

static const struct roster_node *home_of(const struct roster *roster, uint32_t slot)
{
	return &roster->nodes[roster->slots[slot].home];
}

void roster_count(struct roster *roster)
{
	uint32_t node_rank = 0;

	for (uint32_t i = 0; i < roster->task_count; i++)
		roster->rank_of[i] = ROSTER_NONE;
	for (uint32_t i = 0; i < roster->slot_count; i++) {
		const struct roster_node *home = home_of(roster, i);
		if (roster->slots[i].node == ROSTER_NONE)
			continue;
		roster->slots[i].node_rank = node_rank++;
		for (uint32_t j = 0; j < home->task_count; j++)
			roster->rank_of[home->tasks[j]] = i;
	}
	roster->world_size = 0;
	for (uint32_t i = 0; i < roster->task_count; i++) {
		if (roster->rank_of[i] == ROSTER_NONE)
			continue;
		if (roster->world_size == 0)
			roster->master = roster->slots[roster->rank_of[i]].node_rank;
		roster->rank_of[i] = roster->world_size++;
	}
}

uint32_t roster_rank(const struct roster *roster, uint32_t node, uint32_t local_task)
{
	uint32_t slot = node < roster->node_count ? roster->nodes[node].slot : ROSTER_NONE;

	if (slot == ROSTER_NONE || roster->world_size == 0 || local_task >= home_of(roster, slot)->task_count)
		return ROSTER_NONE;
	return roster->rank_of[home_of(roster, slot)->tasks[local_task]];
}

uint32_t roster_node_of(const struct roster *roster, uint32_t rank)
{
	for (uint32_t i = 0; rank != ROSTER_NONE && i < roster->node_count; i++)
		for (uint32_t j = 0; j < roster->nodes[i].task_count; j++)
			if (roster_rank(roster, i, j) == rank)
				return i;
	return ROSTER_NONE;
}

uint32_t roster_node_at(const struct roster *roster, uint32_t node_rank)
{
	for (uint32_t i = 0; i < roster->slot_count; i++)
		if (roster->slots[i].node != ROSTER_NONE && roster->slots[i].node_rank == node_rank)
			return roster->slots[i].node;
	return ROSTER_NONE;
}

void roster_add_ranks(const struct roster *roster, uint32_t node, struct sink *sink)
{
	uint32_t count = roster->nodes[node].task_count;
	const char *before = "";

	if (roster_rank(roster, node, 0) == ROSTER_NONE)
		return;
	sink_add(sink, ", with rank%s ", count > 1 ? "s" : "");
	for (uint32_t i = 0; i < count; i++) {
		uint32_t first = roster_rank(roster, node, i), last = first;
		for (; i + 1 < count && roster_rank(roster, node, i + 1) == last + 1; i++)
			last++;
		sink_add(sink, "%s%u", before, first);
		if (last > first)
			sink_add(sink, "-%u", last);
		before = ", ";
	}
}

void roster_deal(const struct roster *roster, uint32_t node, struct deal_go *go, uint32_t ranks[DEAL_TASKS_MAX])
{
	uint32_t slot = roster->nodes[node].slot;

	go->world_size = roster->world_size;
	go->node_count = roster->active;
	go->master = roster->master;
	go->node_rank = slot != ROSTER_NONE ? roster->slots[slot].node_rank : DEAL_SPARE;
	go->local_count = slot != ROSTER_NONE ? home_of(roster, slot)->task_count : 0;
	for (uint32_t i = 0; i < go->local_count; i++)
		ranks[i] = roster_rank(roster, node, i);
}

/* The order to end the tasks goes before all others. */
static enum roster_order owed(const struct roster_node *node)
{
	if (node->quit_owed)
		return ORDER_QUIT;
	if (node->end_owed)
		return ORDER_END;
	return node->go_owed ? ORDER_GO : ORDER_NONE;
}

bool roster_owes(const struct roster *roster, uint32_t from)
{
	for (; from < roster->node_count; from++)
		if (owed(&roster->nodes[from]) != ORDER_NONE)
			return true;
	return false;
}

enum roster_order roster_take_order(struct roster *roster, uint32_t *from)
{
	for (; *from < roster->node_count; ++*from) {
		struct roster_node *node = &roster->nodes[*from];
		enum roster_order order = owed(node);
		node->quit |= node->quit_owed;
		node->quit_owed = node->end_owed = node->go_owed = false;
		if (order != ORDER_NONE)
			return order;
	}
	return ORDER_NONE;
}
