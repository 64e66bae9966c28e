/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/release.h"
#include "spank/base/worker.h"
#include "spank/identity/nodelist.h"
#include "spank/node/flight.h"
#include "spank/wire/deal.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/timeline.h"
#include "spank/witness/agent.h"

enum {
	SOON_MS = 50,
	LOOK_MS = 250,          /* how often the pages are looked at for the first step, and the lease is */
	GIVE_UP_MS = 20000,     /* without srun for so long, or so many times the silence, the node gives up: */
	GIVE_UP_SILENCES = 4,
	ADOPTED_ROUNDS = 20,
	CHECK_MS = 1000,        /* how often agents are looked at that may be stopped */
	SLOW_MS = AGENTS_ASK_MS + 500, /* agents that take longer may have programs that have become root */
};

bool generation_start(struct generation *generation, struct node *node, const struct generation_facts *facts)
{
	*generation = (struct generation){ .node = node, .facts = *facts };
	generation->lost = calloc(node->supervise.local_tasks, sizeof(*generation->lost));
	generation->gone_ns = calloc(node->supervise.local_tasks, sizeof(*generation->gone_ns));
	/* Nothing runs yet. */
	supervise_leave(&node->supervise);
	if (generation->lost != NULL && generation->gone_ns != NULL)
		return true;
	generation_free(generation);
	return false;
}

void generation_free(struct generation *generation)
{
	free(generation->lost);
	free(generation->gone_ns);
	*generation = (struct generation){ .node = NULL };
}

static struct agents *agents_of(const struct generation *generation)
{
	return &generation->node->supervise.agents;
}

/* ---- what srun is told ------------------------------------------------------------------ */

static void join(struct generation *generation)
{
	const struct supervise *supervise = &generation->node->supervise;
	uint32_t count = supervise->local_tasks;
	struct deal_join order = { .version = DEAL_VERSION, .node_id = generation->facts.node_id,
		                   .generation = generation->number, .task_count = count };
	uint32_t *tasks = malloc(count * sizeof(*tasks));
	unsigned char *payload = malloc(deal_join_bytes(count));

	snprintf(order.release, sizeof(order.release), "%s", release_own());
	/* Before the first generation these are the tasks' numbers in the step. */
	for (uint32_t i = 0; tasks != NULL && i < count; i++)
		tasks[i] = supervise->shared->task[i].rank;
	if (tasks != NULL && payload != NULL)
		generation->joined = generation->facts.send(DEAL_JOIN, payload, deal_pack_join(&order, tasks, payload));
	free(tasks);
	free(payload);
}

static void tell_clear(struct generation *generation)
{
	const struct deal_clear clear = { .generation = generation->number, .fenced = generation->fenced,
		                          .step = generation->last_step, .first = generation->first_step,
		                          .rest = generation->rest };
	unsigned char payload[DEAL_SMALL_BYTES];

	generation->facts.send(DEAL_CLEAR, payload, deal_pack_clear(&clear, payload));
}

void generation_done(struct generation *generation, uint32_t local_task)
{
	const struct supervise *supervise = &generation->node->supervise;
	const struct deal_done done = { .generation = generation->number, .local_task = local_task,
		                        .rank = supervise->shared->task[local_task].rank,
		                        .wait_status = supervise->reaped[local_task].wait_status,
		                        .never_ran = agents_child_never_ran(&supervise->agents, local_task,
		                                                            generation->number) };
	unsigned char payload[DEAL_SMALL_BYTES];

	if (generation->state == GENERATION_RUNS)
		generation->facts.send(DEAL_DONE, payload, deal_pack_done(&done, payload));
}

static void tell_lost(struct generation *generation, uint32_t local_task)
{
	const struct deal_lost lost = { .generation = generation->number, .local_task = local_task };
	unsigned char payload[DEAL_SMALL_BYTES];

	generation->lost[local_task] = generation->facts.send(DEAL_LOST, payload, deal_pack_lost(&lost, payload));
}

/* ---- orders ----------------------------------------------------------------------------- */

/* The steps that the pages show. The program writes them, so they may say anything. */
static void note_training_step(struct generation *generation)
{
	const struct supervise *supervise = &generation->node->supervise;
	struct ddp_progress page;

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		supervise_read(supervise, i, &page);
		if (page.magic != DDP_PROGRESS_MAGIC || page.step <= 0)
			continue;
		if (generation->first_step == 0 || (uint64_t)page.step < generation->first_step)
			generation->first_step = (uint64_t)page.step;
		if ((uint64_t)page.step > generation->last_step)
			generation->last_step = (uint64_t)page.step;
	}
	generation->looked_ns = ddp_now_ns();
}

/* Whether programs stay: all that run have to say that they survive. Sets what becomes of the programs, and tells the
   agents who stays. A program that only pretends to survive costs its own step the time of a restart. */
static bool choose_rest(struct generation *generation, bool keep)
{
	const struct supervise *supervise = &generation->node->supervise;
	struct agents *agents = agents_of(generation);
	struct ddp_progress page;
	uint32_t running = 0, surviving = 0;

	for (uint32_t i = 0; i < agents->count; i++) {
		bool runs = agents_child_runs(agents, i);
		supervise_read(supervise, i, &page);
		running += runs;
		surviving += runs && slots_survive(&page);
	}
	keep = keep && running > 0 && surviving == running;
	for (uint32_t i = 0; i < agents->count; i++)
		atomic_store(&agents->shared->agent[i].stays, keep && agents_child_runs(agents, i));
	generation->rest = running == 0 ? DEAL_NONE : !keep ? DEAL_ENDED
	                   : running == agents->count ? DEAL_KEPT : DEAL_SOME;
	return keep;
}

/* Nothing that ends from now on is judged. */
static void end_programs(struct generation *generation, uint32_t number, bool keep)
{
	if (generation->state == GENERATION_RUNS) {
		note_training_step(generation);
		flight_note_failure(&generation->node->flight, &generation->node->supervise);
	}
	generation->state = GENERATION_ENDS;
	generation->run_owed = false;
	generation->ended_ns = ddp_now_ns();
	generation->number = number;
	generation->keeps = choose_rest(generation, keep);
	supervise_leave(&generation->node->supervise);
	agents_order(agents_of(generation), generation->keeps ? AGENTS_KEEP : AGENTS_END, number);
}

static void quit(struct generation *generation, int wait_status)
{
	struct agents *agents = agents_of(generation);

	generation->state = GENERATION_QUITS;
	generation->run_owed = false;
	generation->ended_ns = ddp_now_ns();
	atomic_store(&agents->shared->quit_status, wait_status == DEAL_OWN_STATUS ? AGENTS_OWN_STATUS : wait_status);
	agents_order(agents, AGENTS_QUIT, generation->number);
}

/* SLURM stops all processes of a step that it suspends. Nobody else stops both of these. */
static bool is_suspended(const struct generation *generation)
{
	const struct witness *witness = &generation->node->supervise.shared->witness;
	pid_t pid = atomic_load(&witness->pid), keeper = atomic_load(&witness->keeper);

	return pid > 0 && supervise_is_stopped(pid) && (keeper == 0 || supervise_is_stopped(keeper));
}

/* An order continues the agents, so programs would run in a step that is suspended. */
static void run_unless_suspended(struct generation *generation)
{
	if (!generation->run_owed || is_suspended(generation))
		return;
	generation->run_owed = false;
	agents_order(agents_of(generation), AGENTS_RUN, generation->number);
}

/* slurmstepd asks for the address here: a task, which was forked from a process with threads, may not ask. */
static void note_master(struct generation *generation, const struct deal_go *go)
{
	char node[HOST_NAME_MAX_BYTES], *address = agents_of(generation)->shared->master;
	struct error ignored;

	if (generation->facts.find_address == NULL || !nodelist_at(go->nodes, go->master, node, &ignored) ||
	    !generation->facts.find_address(node, address, AGENTS_HOST_MAX))
		address[0] = '\0';
}

static void start_programs(struct generation *generation, const struct deal_go *go, const void *payload, size_t bytes)
{
	struct node *node = generation->node;
	struct agents *agents = agents_of(generation);
	uint32_t *ranks = malloc(node->supervise.local_tasks * sizeof(*ranks));
	char text[128];

	if (ranks == NULL) {
		snprintf(text, sizeof(text), "%.63s has no memory for a restart", node->supervise.shared->node);
		node->say(text);
		return;
	}
	for (uint32_t i = 0; i < agents->count; i++) {
		ranks[i] = go->node_rank == DEAL_SPARE ? UINT32_MAX : deal_rank(go, i);
		atomic_store(&agents->shared->agent[i].spare, ranks[i] == UINT32_MAX);
	}
	note_master(generation, go);
	memcpy(agents->shared->deal, payload, bytes);
	agents->shared->deal_bytes = (uint32_t)bytes;
	supervise_begin_again(&node->supervise, go->generation, go->world_size, ranks);
	free(ranks);
	node_begin_again(node);
	generation->number = go->generation;
	generation->state = GENERATION_RUNS;
	generation->first_step = generation->last_step = 0;
	generation->fenced = generation->keeps = false;
	generation->run_owed = true;
	run_unless_suspended(generation);
}

static bool fits(const struct generation *generation, const struct deal_go *go, size_t bytes)
{
	return generation->joined && generation->state == GENERATION_WAITS && go->generation > generation->number &&
	       bytes <= AGENTS_DEAL_MAX && generation->keeps <= go->joins &&
	       (go->node_rank == DEAL_SPARE || go->local_count == agents_of(generation)->count);
}

static void take_end(struct generation *generation, uint32_t number, bool keep)
{
	bool again = generation->keeps && !keep; /* what was kept is to end, too */

	if (number < generation->number || generation->state == GENERATION_QUITS)
		return;
	if (number == generation->number && generation->state == GENERATION_WAITS && number > 0 && !again)
		tell_clear(generation); /* the node has ended it by itself */
	else if (generation->state != GENERATION_ENDS || number > generation->number || again)
		end_programs(generation, number, keep);
}

void generation_take(struct generation *generation, uint32_t type, const void *payload, size_t bytes)
{
	char spares[DEAL_SPARES_MAX + 1];
	struct deal_go go;
	uint32_t number;
	int wait_status;
	bool keep;

	if (generation->node == NULL)
		return;
	if (type == DEAL_GO && deal_unpack_go(payload, bytes, &go) && fits(generation, &go, bytes))
		start_programs(generation, &go, payload, bytes);
	else if (type == DEAL_END && deal_unpack_end(payload, bytes, &number, &keep))
		take_end(generation, number, keep);
	else if (type == DEAL_QUIT && deal_unpack_quit(payload, bytes, &wait_status))
		quit(generation, wait_status);
	else if (type == DEAL_SPARES && deal_unpack_spares(payload, bytes, spares))
		supervise_note_spares(&generation->node->supervise, spares);
}

/* ---- what is due ------------------------------------------------------------------------ */

static void check_lease(struct generation *generation)
{
	const struct generation_facts *facts = &generation->facts;
	uint32_t age_ms = facts->lease_ms(), give_up_ms = GIVE_UP_MS;
	bool live = generation->keeps || (generation->state == GENERATION_RUNS &&
	                                  supervise_left(&generation->node->supervise) > 0);
	char text[256];

	if (facts->silence_ms > give_up_ms / GIVE_UP_SILENCES)
		give_up_ms = GIVE_UP_SILENCES * facts->silence_ms;
	if (facts->fence_ms > 0 && age_ms >= facts->fence_ms && live) {
		generation->fenced = true;
		end_programs(generation, generation->number, false);
	}
	if (age_ms < give_up_ms)
		return;
	snprintf(text, sizeof(text), "%.63s has not reached srun for %.0f s, so it ends its part of the step",
	         generation->node->supervise.shared->node, age_ms / 1e3);
	generation->node->say(text);
	quit(generation, W_EXITCODE(1, 0));
}

/* The witness and its keeper are forked by each other. The kernel notes the number of either before it runs. */
static bool is_of_plugin(pid_t pid, const void *about)
{
	const struct supervise *supervise = about;
	const struct witness *witness = &supervise->shared->witness;
	bool is_own = pid == atomic_load(&witness->pid) || pid == atomic_load(&witness->keeper);

	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		is_own |= pid == supervise->agents.pids[i];
	return is_own;
}

/* The program dies with its agent. What the program has started does not: slurmstepd adopts it. The epilog of a task,
   which slurmstepd starts, has another process group. True: none of it is left. */
static bool end_adopted(struct generation *generation)
{
	uint32_t left = 1;

	for (int round = 0; left > 0 && round < ADOPTED_ROUNDS; round++) {
		if (round > 0)
			pause_ms(1);
		left = kill_adopted(generation->group, is_of_plugin, &generation->node->supervise);
	}
	return left == 0;
}

/* SLURM kills all agents, one after the other, and then this thread ends. So if an agent ends and others live on for
   longer, somebody else has killed it. True: srun is to be told of the agent soon, or something of its program
   lives. */
static bool look_for_lost(struct generation *generation)
{
	const struct supervise *supervise = &generation->node->supervise;
	bool any = false, soon = false;
	uint64_t now_ns = ddp_now_ns();

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		uint64_t *gone_ns = &generation->gone_ns[i];
		if (*gone_ns == 0 && atomic_load(&supervise->agents.shared->agent[i].pid) != 0 &&
		    !agents_agent_runs(&supervise->agents, i))
			*gone_ns = now_ns;
		if (*gone_ns == 0)
			continue;
		any = true;
		if (!generation->lost[i] && generation->joined && now_ns - *gone_ns >= LOSS_MS * 1000000ull)
			tell_lost(generation, i);
		soon |= !generation->lost[i];
	}
	return (any && !end_adopted(generation)) || soon;
}

static bool program_stays(const struct agents *agents, uint32_t local_task)
{
	return atomic_load(&agents->shared->agent[local_task].stays) && agents_child_runs(agents, local_task);
}

/* An agent, which is the user's, may not end a program that has become root, as sudo does. */
static void help_agents(struct generation *generation)
{
	const struct agents *agents = agents_of(generation);

	if (ddp_now_ns() - generation->ended_ns < SLOW_MS * 1000000ull)
		return;
	for (uint32_t i = 0; i < agents->count; i++)
		if ((generation->state == GENERATION_QUITS ||
		     (!agents_agent_clear(agents, i, generation->number) && !program_stays(agents, i))) &&
		    agents_agent_runs(agents, i))
			kill_children_of(agents->pids[i]);
}

/* An agent that somebody has stopped does not tell of its program's end. */
static void look_for_stopped(struct generation *generation)
{
	const struct supervise *supervise = &generation->node->supervise;

	if (ddp_now_ns() - generation->checked_ns < CHECK_MS * 1000000ull)
		return;
	generation->checked_ns = ddp_now_ns();
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		if (supervise->pids[i] != 0 && supervise_process_of(supervise_pid(supervise, i)).ended)
			agents_wake(&supervise->agents, i);
}

static bool is_stopping(const struct generation *generation)
{
	return atomic_load(&generation->node->supervise.shared->witness.asked_to_stop);
}

/* Slurm has one process group for all tasks of the node. -1: no agent is left. */
static pid_t group_of(const struct agents *agents)
{
	for (uint32_t i = 0; i < agents->count; i++)
		if (agents->pids[i] > 0)
			return getpgid(agents->pids[i]);
	return -1;
}

int generation_advance(struct generation *generation)
{
	struct agents *agents;
	bool loses;

	if (generation->node == NULL)
		return -1;
	agents = agents_of(generation);
	if (generation->state == GENERATION_QUITS) {
		help_agents(generation);
		return LOOK_MS;
	}
	if (!generation->joined && agents_ready(agents) == agents->count) {
		generation->group = group_of(agents);
		join(generation);
	}
	run_unless_suspended(generation);
	loses = look_for_lost(generation);
	/* srun deals the next generation as soon as the node is clear. By then srun must know which agents can start
	   programs. */
	if (generation->state == GENERATION_ENDS && !loses && agents_clear(agents, generation->number)) {
		generation->state = GENERATION_WAITS;
		tell_clear(generation);
	}
	if (generation->state == GENERATION_ENDS)
		help_agents(generation);
	if (generation->state == GENERATION_RUNS && generation->first_step == 0 &&
	    ddp_now_ns() - generation->looked_ns >= LOOK_MS * 1000000ull)
		note_training_step(generation);
	look_for_stopped(generation);
	check_lease(generation);
	if (generation->state != GENERATION_QUITS && is_stopping(generation) &&
	    supervise_left(&generation->node->supervise) == 0)
		quit(generation, DEAL_OWN_STATUS);
	return loses ? SOON_MS : LOOK_MS;
}
