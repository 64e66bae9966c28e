/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/dealer.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "spank/base/text.h"
#include "spank/identity/master.h"
#include "spank/identity/nodelist.h"
#include "spank/srun/relay_srun.h"
#include "watch/progress.h"

enum {
	CLOSED_MS = 1500, /* a node that is there has opened another connection by then */
};

/* A link, by its number, and its node. */
struct dealt_link {
	uint32_t node;      /* of Slurm, in the step; ROSTER_NONE: it has not joined */
	uint64_t closed_ns; /* 0: it is open */
	bool lost;          /* the node's, and srun's own connections with it have ended */
};

static struct {
	bool open;
	struct plan_policy policy;
	atomic_bool begun;     /* the plan is there; from then on it is the thread's */
	atomic_bool succeeded;
	struct plan plan;
	struct dealt_link *links;
	uint32_t link_count;
	char key[DEAL_KEY_DIGITS + 1]; /* of the generation */
	char nodes[DEAL_NODES_MAX + 1]; /* its list */
	char *odd_nodes;
	uint32_t told_generation, told_spares; /* rank 0's node was told how many nodes wait in which generation */
} dealer;

void dealer_open(const struct plan_policy *policy)
{
	dealer.policy = *policy;
	dealer.open = true;
}

void dealer_avoid(char *odd_nodes)
{
	free(dealer.odd_nodes);
	dealer.odd_nodes = odd_nodes;
	dealer.policy.odd_nodes = odd_nodes;
}

bool dealer_is_open(void)
{
	return dealer.open;
}

bool dealer_begin(uint32_t nodes, uint32_t tasks, uint32_t spares, uint32_t min_nodes, struct error *error)
{
	if (!dealer.open || atomic_load(&dealer.begun))
		return true;
	dealer.policy.spares = spares;
	dealer.policy.min_nodes = min_nodes;
	if (!plan_start(&dealer.plan, &dealer.policy, nodes, tasks))
		return error_set(error, "srun has no memory to plan restarts");
	atomic_store(&dealer.begun, true);
	return true;
}

void dealer_close(void)
{
	if (atomic_load(&dealer.begun))
		plan_free(&dealer.plan);
	free(dealer.links);
	dealer.links = NULL;
	free(dealer.odd_nodes);
	dealer.odd_nodes = NULL;
	dealer.link_count = dealer.told_generation = 0;
	dealer.open = false;
	atomic_store(&dealer.begun, false);
}

bool dealer_has_succeeded(void)
{
	return atomic_load(&dealer.succeeded);
}

/* ---- links ----------------------------------------------------------------------- */

/* Returns NULL without memory. */
static struct dealt_link *link_at(uint32_t link)
{
	struct dealt_link *larger;
	uint32_t count = 2 * link + 16;

	if (link < dealer.link_count)
		return &dealer.links[link];
	larger = realloc(dealer.links, count * sizeof(*larger));
	if (larger == NULL)
		return NULL;
	for (uint32_t i = dealer.link_count; i < count; i++)
		larger[i] = (struct dealt_link){ .node = ROSTER_NONE };
	dealer.links = larger;
	dealer.link_count = count;
	return &dealer.links[link];
}

/* Returns ROSTER_NONE if the node of the link has not joined. */
static uint32_t node_of(uint32_t link)
{
	return link < dealer.link_count ? dealer.links[link].node : ROSTER_NONE;
}

static void send_to(uint32_t node, enum deal_type type, const void *payload, size_t bytes)
{
	/* A node that slurmstepd of another release or a second start has made anew has two; the last one counts. */
	for (uint32_t i = dealer.link_count; i-- > 0;) {
		if (dealer.links[i].node != node)
			continue;
		links_send(relay_links(), i, type, payload, bytes);
		return;
	}
}

static void take_join(uint32_t link, const struct frame *frame, uint64_t now_ns)
{
	const struct links_node *from = links_node(relay_links(), link);
	struct dealt_link *dealt = link_at(link);
	struct deal_join join;

	if (dealt == NULL || from == NULL || !deal_unpack_join(frame->payload, frame->bytes, &join))
		return;
	dealt->node = join.node_id;
	dealt->closed_ns = 0;
	if (from->own)
		plan_note_own(&dealer.plan, join.node_id);
	plan_join(&dealer.plan, &join, from->opening.node, now_ns);
}

void dealer_take_frame(uint32_t link, const struct frame *frame)
{
	uint64_t now_ns = ddp_now_ns();
	uint32_t node = node_of(link);
	struct deal_clear clear;
	struct deal_done done;
	struct deal_lost lost;

	if (!atomic_load(&dealer.begun))
		return;
	switch (frame->type) {
	case DEAL_JOIN:
		take_join(link, frame, now_ns);
		break;
	case DEAL_CLEAR:
		if (deal_unpack_clear(frame->payload, frame->bytes, &clear))
			plan_clear(&dealer.plan, node, &clear, now_ns);
		break;
	case DEAL_DONE:
		if (deal_unpack_done(frame->payload, frame->bytes, &done))
			plan_done(&dealer.plan, node, &done, now_ns);
		break;
	case DEAL_LOST:
		if (deal_unpack_lost(frame->payload, frame->bytes, &lost))
			plan_lose_agent(&dealer.plan, node, &lost, now_ns);
		break;
	}
}

/* The plan asks which nodes have spoken lately. */
static void note_last_signs(void)
{
	const struct links_node *from;

	for (uint32_t i = 0; dealer.plan.phase != PLAN_ALONE && (from = links_node(relay_links(), i)) != NULL; i++)
		plan_heard(&dealer.plan, node_of(i), from->heard_ns);
}

/* The node has not joined, so the first generation cannot begin. */
static void end_unjoined(const struct links_node *from, bool silent, uint64_t now_ns)
{
	char text[512];
	struct sink sink = sink_on(text, sizeof(text));
	const struct plan_failure failure = { .text = text, .node = from->opening.node, .rank = ROSTER_NONE,
		                              .wait_status = W_EXITCODE(1, 0) };

	if (dealer.plan.phase != PLAN_JOINING)
		return;
	if (silent)
		sink_add(&sink, "node %s has been silent for %.1f s before all of its tasks had started (is its power or "
		         "network lost?)", from->opening.node, (double)(now_ns - from->heard_ns) * 1e-9);
	else
		sink_add(&sink, "slurmstepd on node %s has ended before all of its tasks had started",
		         from->opening.node);
	plan_fail(&dealer.plan, &failure, now_ns);
}

static void lose_silent(uint32_t link, uint64_t now_ns)
{
	const struct links_node *from = links_node(relay_links(), link);

	note_last_signs();
	if (node_of(link) == ROSTER_NONE)
		end_unjoined(from, true, now_ns);
	else
		plan_silent(&dealer.plan, node_of(link), (now_ns - from->heard_ns) / NS_PER_MS, now_ns);
}

void dealer_take_link(uint32_t link, enum links_event event)
{
	const struct links_node *from = links_node(relay_links(), link);
	struct dealt_link *dealt = link_at(link);
	uint64_t now_ns = ddp_now_ns();

	if (!atomic_load(&dealer.begun) || dealt == NULL || from == NULL)
		return;
	switch (event) {
	case LINK_THERE:
		break;
	case LINK_SILENT:
		lose_silent(link, now_ns);
		break;
	case LINK_SPOKE:
		plan_heard(&dealer.plan, dealt->node, now_ns);
		break;
	case LINK_CLOSED:
		dealt->closed_ns = now_ns;
		break;
	case LINK_BYE:
		plan_bye(&dealer.plan, dealt->node, now_ns);
		break;
	case LINK_ALL_SILENT:
		plan_all_silent(&dealer.plan, (now_ns - from->heard_ns) / NS_PER_MS, now_ns);
		break;
	}
}

/* Returns when a closed link counts as ended. The kernel of a slurmstepd that has ended ends the connection. If the
   connection was cut, the node may live, and the fence ends its ranks only a little before srun takes the node for
   silent. */
static uint64_t gone_ns(uint32_t link)
{
	const struct links_node *from = links_node(relay_links(), link);
	uint64_t gone_ns = dealer.links[link].closed_ns + CLOSED_MS * NS_PER_MS, silent_ns;

	if (from == NULL || !from->cut)
		return gone_ns;
	silent_ns = from->heard_ns + dealer.policy.silence_ms * NS_PER_MS;
	return silent_ns > gone_ns ? silent_ns : gone_ns;
}

/* Returns when the first closed link counts as ended; UINT64_MAX: there is none. */
static uint64_t closed_due(void)
{
	uint64_t due = UINT64_MAX;

	for (uint32_t i = 0; i < dealer.link_count; i++)
		if (dealer.links[i].closed_ns != 0 && gone_ns(i) < due)
			due = gone_ns(i);
	return due;
}

static void end_closed_links(uint64_t now_ns)
{
	for (uint32_t i = 0; i < dealer.link_count; i++) {
		struct dealt_link *dealt = &dealer.links[i];
		const struct links_node *from = links_node(relay_links(), i);
		if (dealt->closed_ns == 0 || now_ns < gone_ns(i))
			continue;
		dealt->closed_ns = 0;
		if (from == NULL || from->open || from->bye)
			continue;
		if (from->cut)
			lose_silent(i, now_ns);
		else if (dealt->node == ROSTER_NONE)
			end_unjoined(from, false, now_ns);
		else
			plan_gone(&dealer.plan, dealt->node, now_ns);
	}
}

/* ---- what the step ends for ---------------------------------------------------------- */

/* The rank and the node with which a sentence begins, as report.h and stall_step.h write it. */
static uint32_t rank_in(const char *text, char node[HOST_NAME_MAX_BYTES])
{
	const char *at = strstr(text, "rank ");
	unsigned int rank, world_size;
	char name[HOST_NAME_MAX_BYTES];

	node[0] = '\0';
	if (at == NULL || sscanf(at, "rank %u of %u", &rank, &world_size) != 2)
		return ROSTER_NONE;
	if (sscanf(at, "rank %u of %u on %255[^ ,;:()]", &rank, &world_size, name) == 3)
		memcpy(node, name, sizeof(name));
	return rank;
}

/* The node that ranks have found to be damaged: see watch/progress.h. NULL: none, or the text is cut. */
static const char *damaged_in(const char *text, char node[HOST_NAME_MAX_BYTES])
{
	const char *at = strstr(text, DDP_PROGRESS_WITHOUT);
	int length = 0;

	if (at == NULL)
		return NULL;
	at += strlen(DDP_PROGRESS_WITHOUT);
	if (sscanf(at, "%255[^ ,;:()]%n", node, &length) != 1 ||
	    strncmp(at + length, DDP_PROGRESS_FROM, strlen(DDP_PROGRESS_FROM)) != 0)
		return NULL;
	return node;
}

static void fail(const struct step_action *action)
{
	char node[HOST_NAME_MAX_BYTES], damaged[HOST_NAME_MAX_BYTES];
	struct plan_failure failure = { .text = action->text, .wait_status = action->end.wait_status,
		                        .rank = rank_in(action->text, node), .hearsay = action->end.hearsay,
		                        .port_taken = strstr(action->text, MASTER_OTHER_PORT) != NULL,
		                        .damaged = damaged_in(action->text, damaged),
		                        .survived = action->end.survived,
		                        .stopping = action->end.stopping };

	failure.node = action->end.node[0] != '\0' ? action->end.node : node;
	plan_fail(&dealer.plan, &failure, ddp_now_ns());
}

static uint64_t due(void)
{
	uint64_t closed, plan;

	if (!atomic_load(&dealer.begun))
		return UINT64_MAX;
	closed = closed_due();
	plan = plan_due(&dealer.plan);
	return closed < plan ? closed : plan;
}

static const char *host(uint32_t rank)
{
	uint32_t node = atomic_load(&dealer.begun) ? roster_node_of(&dealer.plan.roster, rank) : ROSTER_NONE;

	return node != ROSTER_NONE ? dealer.plan.roster.nodes[node].name : NULL;
}

/* ---- what the plan wants ---------------------------------------------------------------- */

static const char *name_at(const void *roster, uint32_t node_rank)
{
	uint32_t node = roster_node_at(roster, node_rank);

	return node != ROSTER_NONE ? ((const struct roster *)roster)->nodes[node].name : "";
}

/* Each generation has a key of its own, so a rank of an older one cannot take part in it. */
static void begin_generation(void)
{
	struct plan_failure failure = { .rank = ROSTER_NONE, .stopping = true };

	relay_begin_generation(dealer.plan.generation);
	if (!deal_make_key(dealer.key))
		failure.text = "srun cannot make a new key";
	else if (!nodelist_write(dealer.nodes, sizeof(dealer.nodes), dealer.plan.roster.active, name_at,
	                         &dealer.plan.roster))
		failure.text = "the names of the step's nodes are too long for restarts";
	if (failure.text != NULL)
		plan_fail(&dealer.plan, &failure, ddp_now_ns());
}

static void send_go(uint32_t node)
{
	static uint32_t ranks[DEAL_TASKS_MAX];
	struct deal_go go;
	unsigned char *payload;

	plan_go(&dealer.plan, node, &go, ranks);
	memcpy(go.key, dealer.key, sizeof(go.key));
	go.nodes = dealer.nodes;
	payload = malloc(deal_go_bytes(go.local_count, go.nodes));
	if (payload == NULL)
		return;
	send_to(node, DEAL_GO, payload, deal_pack_go(&go, ranks, payload));
	explicit_bzero(payload, deal_go_bytes(go.local_count, go.nodes));
	free(payload);
}

/* If all ranks have ended and no failure is to be said, as after a signal, the step ends. */
static void end_all(void)
{
	struct step_action action;

	if (relay_take_rest(&action))
		fail(&action);
	else
		plan_leave(&dealer.plan);
}

static bool is_away(uint32_t node)
{
	return node < dealer.plan.roster.node_count && roster_is_away(&dealer.plan.roster.nodes[node]);
}

/* Nodes that are away are taken out of the job before the step ends. */
static void end_step(const char *text, int wait_status)
{
	for (uint32_t i = 0; i < dealer.link_count; i++)
		if (is_away(dealer.links[i].node))
			links_lose(relay_links(), i);
	relay_end_step(text, wait_status);
}

static void take_action(const struct plan_action *action)
{
	unsigned char payload[DEAL_SMALL_BYTES];

	switch (action->kind) {
	case PLAN_SAY:
		relay_say(action->text);
		break;
	case PLAN_BEGIN:
		begin_generation();
		break;
	case PLAN_SEND_END:
		send_to(action->node, DEAL_END, payload,
		        deal_pack_end(dealer.plan.generation, dealer.plan.keeps, payload));
		break;
	case PLAN_SEND_GO:
		send_go(action->node);
		break;
	case PLAN_SEND_QUIT:
		send_to(action->node, DEAL_QUIT, payload, deal_pack_quit(action->wait_status, payload));
		break;
	case PLAN_ALL_ENDED:
		end_all();
		break;
	case PLAN_SUCCESS:
		atomic_store(&dealer.succeeded, true);
		relay_begin_generation(dealer.plan.generation);
		break;
	case PLAN_END_STEP:
		end_step(action->text, action->wait_status);
		break;
	case PLAN_ABANDON:
		end_step("", 0);
		break;
	}
}

/* A node that the plan has lost does not come back into the step once others have its ranks. When the training is over
   instead, or srun is cut off, its last output may still come. */
static void end_lost(void)
{
	for (uint32_t i = 0; dealer.plan.phase == PLAN_RUNNING && i < dealer.link_count; i++)
		if (!dealer.links[i].lost && is_away(dealer.links[i].node))
			dealer.links[i].lost = links_end_srun(relay_links(), i, is_away);
}

/* A node that speaks again opens another connection, or sends something on its first one. */
static void look_who_is_back(void)
{
	const struct links_node *from;

	for (uint32_t i = 0; dealer.plan.phase == PLAN_ALONE && (from = links_node(relay_links(), i)) != NULL; i++)
		if (from->heard_ns > dealer.plan.phase_ns)
			plan_heard(&dealer.plan, node_of(i), from->heard_ns);
}

static const char *waiting_at(const void *roster, uint32_t index)
{
	return ((const struct roster *)roster)->nodes[roster_waiting_at(roster, index)].name;
}

/* Tells rank 0's node which nodes wait, for ddp-status. Within a generation they only become fewer. */
static void tell_spares(void)
{
	const struct roster *roster = &dealer.plan.roster;
	unsigned char payload[4 + DEAL_SPARES_MAX];
	char nodes[DEAL_SPARES_MAX + 1] = "";
	uint32_t waiting = roster_waiting(roster), named = waiting;

	if (dealer.plan.phase != PLAN_RUNNING || roster->spares == 0 ||
	    (dealer.told_generation == dealer.plan.generation && dealer.told_spares == waiting))
		return;
	/* Only so many names as there is room for. */
	while (named > 0 && !nodelist_write(nodes, sizeof(nodes), named, waiting_at, roster))
		named /= 2;
	if (named == 0)
		nodes[0] = '\0';
	dealer.told_generation = dealer.plan.generation;
	dealer.told_spares = waiting;
	send_to(roster_node_at(roster, roster->master), DEAL_SPARES, payload, deal_pack_spares(nodes, payload));
}

static void act(uint64_t now_ns)
{
	struct plan_action action;

	if (!atomic_load(&dealer.begun))
		return;
	end_closed_links(now_ns);
	look_who_is_back();
	while (plan_act(&dealer.plan, now_ns, &action))
		take_action(&action);
	end_lost();
	tell_spares();
}

const struct relay_restart dealer_restart = { .fail = fail, .due = due, .act = act, .host = host };
