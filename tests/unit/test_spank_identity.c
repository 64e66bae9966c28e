/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/identity: steps are laid out here as Slurm lays them out, and what each
   task derives is held against the layout. */
#include <stdio.h>
#include <string.h>

#include "spank/identity/identity.h"
#include "spank/options/site.h"
#include "tests/support/test.h"

enum { NODES_MAX = 16, TASKS_MAX = 256, VARIABLES = 24 };

/* An environment that cases add to and take from. */
struct environment {
	char text[VARIABLES][256];
	char *list[VARIABLES + 1];
	int count;
};

/* What one task knows, and what it makes of it. */
struct trial {
	struct settings settings;
	struct environment environment;
	struct step_facts facts;
	struct identity id;
	struct error error;
};

static void set(struct trial *trial, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void set(struct trial *trial, const char *format, ...)
{
	struct environment *environment = &trial->environment;
	char *text = environment->text[environment->count];
	va_list arguments;

	assert_true(environment->count < VARIABLES);
	va_start(arguments, format);
	vsnprintf(text, sizeof(environment->text[0]), format, arguments);
	va_end(arguments);
	environment->list[environment->count] = text;
	environment->list[++environment->count] = NULL;
}

static void drop(struct trial *trial, const char *name)
{
	char **list = trial->environment.list;

	for (int i = 0; i < trial->environment.count; i++)
		if (strncmp(list[i], name, strlen(name)) == 0 && list[i][strlen(name)] == '=')
			list[i][0] = '#';
}

static bool derive(struct trial *trial)
{
	trial->error.text[0] = '\0';
	return identity_derive(&trial->facts, &trial->settings, &trial->id, &trial->error);
}

/* ---- layouts -------------------------------------------------------------------- */

struct layout {
	int nodes, tasks;
	int node_of[TASKS_MAX];
};

/* "0012": tasks 0 and 1 on node 0, task 2 on node 1, ... */
static struct layout layout_of(const char *nodes)
{
	struct layout layout = { .tasks = (int)strlen(nodes) };

	for (int t = 0; t < layout.tasks; t++) {
		layout.node_of[t] = nodes[t] - '0';
		if (layout.node_of[t] >= layout.nodes)
			layout.nodes = layout.node_of[t] + 1;
	}
	return layout;
}

enum distribution { BLOCK, CYCLIC, PLANE2, PLANE3, DISTRIBUTIONS };

/* As Slurm does it where each node has room for all. */
static struct layout lay_out(int nodes, int tasks, enum distribution distribution)
{
	struct layout layout = { .nodes = nodes, .tasks = tasks };
	int plane = distribution == CYCLIC ? 1 : distribution == PLANE2 ? 2 : 3;
	/* In blocks, the first tasks % nodes nodes take one more. */
	int base = tasks / nodes, big = tasks % nodes * (base + 1);

	for (int t = 0; t < tasks; t++)
		layout.node_of[t] = distribution != BLOCK ? t / plane % nodes
			: t < big ? t / (base + 1) : tasks % nodes + (t - big) / base;
	return layout;
}

/* How a site names its nodes, and Slurm a list of them. */
enum naming { PLAIN, PADDED, ONE_BY_ONE, DOMAIN, GRID, NAMINGS };

static void name_node(enum naming naming, int node, char name[32])
{
	switch (naming) {
	case PLAIN: snprintf(name, 32, "n%d", node); break;
	case PADDED: snprintf(name, 32, "node%04d", node + 98); break;
	case ONE_BY_ONE: snprintf(name, 32, "%c-host", 'a' + node); break;
	case DOMAIN: snprintf(name, 32, "gpu%d.site.example", node + 8); break;
	default: snprintf(name, 32, "r%dc%d", node / 2, node % 2);
	}
}

static void name_list(enum naming naming, int nodes, char list[256])
{
	size_t used = 0;

	switch (naming) {
	case PLAIN: snprintf(list, 256, nodes > 1 ? "n[0-%d]" : "n0", nodes - 1); return;
	case PADDED: snprintf(list, 256, "node[0098-%04d]", nodes + 97); return;
	case DOMAIN: snprintf(list, 256, "gpu[8-%d].site.example", nodes + 7); return;
	case ONE_BY_ONE:
		for (int i = 0; i < nodes; i++)
			used += (size_t)snprintf(list + used, 256 - used, "%s%c-host", i > 0 ? "," : "", 'a' + i);
		return;
	default:
		if (nodes > 1)
			used = (size_t)snprintf(list, 256, "r[0-%d]c[0-1]%s", nodes / 2 - 1,
			                        nodes % 2 != 0 ? "," : "");
		if (nodes % 2 != 0)
			snprintf(list + used, 256 - used, "r%dc0", nodes / 2);
	}
}

/* What slurmstepd would know of task `t`. */
static void begin(struct trial *trial, const struct layout *layout, enum naming naming, int t)
{
	int node = layout->node_of[t];
	char name[32], list[256];

	memset(trial, 0, sizeof(*trial));
	settings_init(&trial->settings);
	trial->facts = (struct step_facts){ .job_id = 4711, .step_id = 3, .node_id = (uint32_t)node,
		                            .node_count = (uint32_t)layout->nodes,
		                            .total_tasks = (uint32_t)layout->tasks,
		                            .global_id = (uint32_t)t,
		                            .holds_task_zero = layout->node_of[0] == node,
		                            .environment = trial->environment.list };
	for (int other = 0; other < layout->tasks; other++) {
		if (layout->node_of[other] != node)
			continue;
		trial->facts.local_id += other < t;
		trial->facts.local_tasks++;
	}
	name_node(naming, node, name);
	name_list(naming, layout->nodes, list);
	set(trial, "PATH=/bin");
	set(trial, "SLURM_PROCID=%d", t);
	set(trial, "SLURM_STEP_NUM_TASKS=%d", layout->tasks);
	set(trial, "SLURM_STEP_NUM_NODES=%d", layout->nodes);
	set(trial, "SLURM_JOB_ID=4711");
	set(trial, "SLURM_NODEID=%d", node);
	set(trial, "SLURMD_NODENAME=%s", name);
	set(trial, "SLURM_STEP_NODELIST=%s", list);
}

/* What else a step may have, and the port that it makes; 0: one of the range. */
struct variation {
	const char *list, *variables[3];
	uint32_t restarts;
	uint16_t port;
	const char *source;
};

static const char hashed[] = "hash of job, step and restart", reserved[] = "reserved by Slurm";

static const struct variation variations[] = {
	{ "", { NULL }, 0, 0, hashed },
	{ "", { "SLURM_STEP_RESV_PORTS=12000-12003" }, 0, 12000, reserved },
	{ "", { "SLURM_STEP_RESV_PORTS=12005", "SLURM_RESTART_COUNT=2" }, 2, 12005, reserved },
	{ "", { "SLURM_STEP_RESV_PORTS=", "SLURM_RESTART_COUNT=1" }, 1, 0, hashed },
	{ "port=29500", { "SLURM_STEP_RESV_PORTS=12000" }, 0, 29500, "port=" },
	{ "port=30000-30000", { NULL }, 0, 30000, "port=" },
	{ "port=24000-24009", { "SLURM_STEP_RESV_PORTS=12000" }, 0, 0, hashed },
	/* What a caller had is of no weight. */
	{ "", { "RANK=9", "SLURM_NTASKS=7", "SLURM_TASKS_PER_NODE=1(x2)" }, 0, 0, hashed },
	{ "", { "SLURM_JOB_NODELIST=z[1-9]", "SLURM_LOCALID=8", "MASTER_ADDR=z1" }, 0, 0, hashed },
	{ "", { "SLURM_DDP_FIRST_HOST=n2", "SLURM_DISTRIBUTION=block" }, 0, 0, hashed },
};

static int cases;

static void same(const struct trial *trial, const char *what, uint64_t got, uint64_t wanted)
{
	if (got != wanted)
		fail_msg("task %u of %u on %u nodes: %s is %llu, not %llu", trial->facts.global_id,
		         trial->facts.total_tasks, trial->facts.node_count, what, (unsigned long long)got,
		         (unsigned long long)wanted);
}

/* Each task in turn: its place is the layout's, and all agree on the rest. */
static void check_layout(const struct layout *layout, enum naming naming,
                         const struct variation *variation)
{
	int locals[NODES_MAX] = { 0 }, totals[NODES_MAX] = { 0 };
	char master[32];
	uint16_t port = variation->port;

	cases++;
	name_node(naming, layout->node_of[0], master);
	for (int t = 0; t < layout->tasks; t++)
		totals[layout->node_of[t]]++;
	for (int t = 0; t < layout->tasks; t++) {
		int node = layout->node_of[t];
		struct trial trial;
		begin(&trial, layout, naming, t);
		for (int v = 0; v < 3 && variation->variables[v] != NULL; v++)
			set(&trial, "%s", variation->variables[v]);
		if (layout->node_of[0] != 0) {
			drop(&trial, "SLURM_DISTRIBUTION");
			drop(&trial, "SLURM_DDP_FIRST_HOST");
			set(&trial, "SLURM_DISTRIBUTION=arbitrary");
			set(&trial, "SLURM_DDP_FIRST_HOST=%s", master);
		}
		assert_true(user_list_read(&trial.settings, variation->list, 0, &trial.error));
		if (!derive(&trial))
			fail_msg("task %d of %d on %d nodes: %s", t, layout->tasks, layout->nodes, trial.error.text);
		same(&trial, "rank", trial.id.rank, (uint64_t)t);
		same(&trial, "world_size", trial.id.world_size, (uint64_t)layout->tasks);
		same(&trial, "local_rank", trial.id.local_rank, (uint64_t)locals[node]++);
		same(&trial, "local_world_size", trial.id.local_world_size, (uint64_t)totals[node]);
		same(&trial, "node_rank", trial.id.node_rank, (uint64_t)node);
		same(&trial, "node_count", trial.id.node_count, (uint64_t)layout->nodes);
		same(&trial, "holds_rank_zero", trial.id.holds_rank_zero, node == layout->node_of[0]);
		same(&trial, "restart_count", trial.id.restart_count, variation->restarts);
		same(&trial, "port_hashed", trial.id.port_hashed, variation->port == 0);
		assert_string_equal(trial.id.port_source, variation->source);
		assert_string_equal(trial.id.master_node, master);
		assert_true(trial.id.master_port >= (variation->port != 0 ? variation->port : trial.settings.port_low));
		assert_true(trial.id.master_port <= (variation->port != 0 ? variation->port : trial.settings.port_high));
		if (port == 0)
			port = trial.id.master_port;
		same(&trial, "master_port", trial.id.master_port, port);
	}
}

static void check_every_way(const struct layout *layout)
{
	for (size_t v = 0; v < COUNT(variations); v++)
		check_layout(layout, PLAIN, &variations[v]);
	for (enum naming naming = PADDED; naming < NAMINGS; naming++)
		check_layout(layout, naming, &variations[(size_t)naming % COUNT(variations)]);
}

TEST(every_distribution_gives_dense_ranks)
{
	cases = 0;
	for (int nodes = 1; nodes <= 6; nodes++)
		for (int tasks = nodes; tasks <= 3 * nodes + 3; tasks++)
			for (enum distribution d = BLOCK; d < DISTRIBUTIONS; d++) {
				struct layout layout = lay_out(nodes, tasks, d);
				/* Planes may leave nodes empty: Slurm then takes fewer. */
				if (d < PLANE2 || tasks >= nodes * (d == PLANE2 ? 2 : 3))
					check_every_way(&layout);
			}
	print_message("# %d steps\n", cases);
	assert_true(cases > 1500);
}

/* The nodes of srun's tasks, as Slurm 22.05 was seen to place them: in an
   allocation of 8-CPU nodes with as many CPUs as tasks, or with whole nodes. */
static const struct { const char *srun, *own, *whole_nodes; } placements[] = {
	{ "-N1 -n3", "000", "000" },
	{ "-N2 -n5", "00001", "00011" },
	{ "-N3 -n7", "0000012", "0001122" },
	{ "-N3 -n8", "00000012", "00011122" },
	{ "-N3 -n20", "00000000111111112222", "00000001111111222222" },
	{ "-N3 --ntasks-per-node=2", "001122", "001122" },
	{ "-N2 -n5 -m cyclic", "01000", "01010" },
	{ "-N3 -n7 -m cyclic", "0120000", "0120120" },
	{ "-N3 -n8 -m cyclic", "01200000", "01201201" },
	{ "-N3 -n8 -m plane=2", "00120000", "00112200" },
	{ "-N3 -n7 -m plane=2", "0012000", "0011220" },
	{ "-N2 -n7 -m plane=3", "0001000", "0001110" },
	{ "-N3 -n9 -m plane=2", "001200000", "001122001" },
	{ "-N3 -n11 -m plane=3", "00011200000", "00011122200" },
	{ "-N3 -n10 -m plane=4", "0000120000", "0000111122" },
	{ "-N3 -n4 -m plane=4", "0012", "0012" },
	/* SLURM_HOSTFILE */
	{ "-m arbitrary", "20210", "1022" }, { "-m arbitrary", "2210", "0210" },
	{ "-m arbitrary", "9876543210", "010203040506070809" },
};

TEST(placements_of_a_real_slurm_are_right)
{
	for (size_t i = 0; i < COUNT(placements); i++) {
		struct layout own = layout_of(placements[i].own), whole = layout_of(placements[i].whole_nodes);
		check_every_way(&own);
		check_every_way(&whole);
	}
}

TEST(arbitrary_layout_without_a_hostfile_is_refused_where_it_shows)
{
	struct layout layout = layout_of("2021");

	for (int t = 0; t < 4; t++) {
		struct trial trial;
		begin(&trial, &layout, PLAIN, t);
		set(&trial, "SLURM_DISTRIBUTION=arbitrary");
		/* n1 (task 3) can tell neither that it holds rank 0 nor that it should. */
		assert_int_equal(derive(&trial), t == 3);
		if (t != 3)
			assert_non_null(strstr(trial.error.text, "SLURM_HOSTFILE"));
	}
}

/* ---- heterogeneous steps -------------------------------------------------------------- */

enum { COMPONENTS = 3 };

/* Components of a step in order: the nodes of each, and how their job names
   them; "": a step within a plain job, of which nothing else is told. */
struct het {
	const char *nodes[COMPONENTS + 1]; /* a digit per task, as above */
	const char *step_list, *groups, *group_lists[COMPONENTS + 1];
	int master; /* -1: rank 0's node and its neighbours refuse */
};

static const struct het hets[] = {
	{ { "0", "12" }, "n[0-2]", "", { NULL }, 0 },
	{ { "0", "12" }, "n[0-2]", "HET", { "n0", "n[1-2]" }, 0 },
	{ { "0", "12" }, "n[0-2]", "PACK", { "n0", "n[1-2]" }, 0 },
	{ { "00", "1122" }, "n[0-2]", "HET", { "n0", "n[1-2]" }, 0 },
	{ { "0011", "2" }, "n[0-2]", "HET", { "n[0-1]", "n2" }, 0 },
	{ { "0", "1", "2" }, "n[0-2]", "HET", { "n0", "n1", "n2" }, 0 },
	/* The lowest component holds rank 0 wherever its nodes are in the list. */
	{ { "2", "01" }, "n[0-2]", "HET", { "n2", "n[0-1]" }, 2 },
	{ { "22", "1", "00" }, "n[0-2]", "PACK", { "n2", "n1", "n0" }, 2 },
	{ { "1212", "0" }, "n[0-2]", "HET", { "n[1-2]", "n0" }, 1 },
	/* A component of the job that is not in the step. */
	{ { "2", "01" }, "n[0-2]", "HET", { "n[7-9]", "n2", "n[0-1]" }, 2 },
	/* srun -w n2 a : -w n[0-1] b, in one allocation: nothing tells n2 is meant. */
	{ { "2", "01" }, "n[0-2]", "", { NULL }, -1 },
};

/* What slurmstepd knows of the t-th task of component c: its ids start at 0 there. */
static void begin_component(struct trial *trial, const struct het *het, int c, int t, int first,
                            int all_tasks, uint32_t node_rank)
{
	struct layout layout = layout_of(het->nodes[c]);

	begin(trial, &layout, PLAIN, t);
	trial->environment.count = 0;
	trial->facts.job_id = 100 + (uint32_t)c;
	trial->facts.node_id = 0;
	trial->facts.node_count = 1;
	set(trial, "SLURM_JOB_ID=100");
	set(trial, "SLURM_PROCID=%d", first + t);
	set(trial, "SLURM_NODEID=%u", node_rank);
	set(trial, "SLURM_STEP_NUM_TASKS=%d", all_tasks);
	set(trial, "SLURM_STEP_NUM_NODES=3");
	set(trial, "SLURM_STEP_NODELIST=%s", het->step_list);
	set(trial, "SLURMD_NODENAME=n%d", layout.node_of[t]);
	/* The reservation is of one component only. */
	set(trial, "SLURM_STEP_RESV_PORTS=2000%d-20011", c);
	for (int i = 0; het->group_lists[i] != NULL; i++)
		set(trial, "SLURM_JOB_NODELIST_%s_GROUP_%d=%s", het->groups, i, het->group_lists[i]);
}

static void check_het(const struct het *het)
{
	int all_tasks = 0, rank = 0, seen[NODES_MAX], nodes = 0;
	uint16_t port = 0;
	char master[8];

	snprintf(master, sizeof(master), "n%d", het->master);
	for (int c = 0; het->nodes[c] != NULL; c++)
		all_tasks += (int)strlen(het->nodes[c]);
	for (int c = 0; het->nodes[c] != NULL; c++) {
		int tasks = (int)strlen(het->nodes[c]), first = rank;
		for (int t = 0; t < tasks; t++, rank++) {
			struct trial trial;
			int node = het->nodes[c][t] - '0', place = 0;
			while (place < nodes && seen[place] != node)
				place++;
			if (place == nodes)
				seen[nodes++] = node;
			begin_component(&trial, het, c, t, first, all_tasks, (uint32_t)place);
			if (het->master < 0) {
				/* A node that neither holds rank 0 nor is taken for it cannot tell. */
				assert_int_equal(derive(&trial), node == 1);
				assert_true(node == 1 || strstr(trial.error.text, "rank 0") != NULL);
				continue;
			}
			if (!derive(&trial))
				fail_msg("rank %d: %s", rank, trial.error.text);
			assert_true(trial.id.heterogeneous && trial.id.port_hashed);
			same(&trial, "rank", trial.id.rank, (uint64_t)rank);
			same(&trial, "world_size", trial.id.world_size, (uint64_t)all_tasks);
			same(&trial, "node_rank", trial.id.node_rank, (uint64_t)place);
			same(&trial, "node_count", trial.id.node_count, 3);
			same(&trial, "job_id", trial.id.job_id, 100);
			same(&trial, "holds_rank_zero", trial.id.holds_rank_zero, node == het->master);
			assert_string_equal(trial.id.master_node, master);
			port = rank == 0 ? trial.id.master_port : port;
			same(&trial, "master_port", trial.id.master_port, port);
		}
	}
}

TEST(heterogeneous_steps_have_one_world)
{
	for (size_t i = 0; i < COUNT(hets); i++)
		check_het(&hets[i]);
}

/* ---- what cannot be ------------------------------------------------------------------ */

/* Each case changes one thing of a good step; the message names it, in printable bytes. */
TEST(contradictions_are_errors)
{
	static const struct { const char *drop, *set, *more, *named; } wrong[] = {
		{ "SLURM_PROCID", NULL, NULL, "SLURM_PROCID is not in" },
		{ "SLURM_PROCID", "SLURM_PROCID=", NULL, "SLURM_PROCID='' is not a number" },
		{ "SLURM_PROCID", "SLURM_PROCID=x", NULL, "SLURM_PROCID='x'" },
		{ "SLURM_PROCID", "SLURM_PROCID=-1", NULL, "SLURM_PROCID='-1'" },
		{ "SLURM_PROCID", "SLURM_PROCID=1x", NULL, "SLURM_PROCID='1x'" },
		{ "SLURM_PROCID", "SLURM_PROCID=4294967296", NULL, "SLURM_PROCID='4294967296'" },
		{ "SLURM_PROCID", "SLURM_PROCID=0", NULL, "SLURM_PROCID=0" },
		{ "SLURM_PROCID", "SLURM_PROCID=5", NULL, "SLURM_PROCID=5" },
		{ "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS=2", NULL, "SLURM_STEP_NUM_TASKS=2" },
		{ "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS=2(x3)", NULL, "SLURM_STEP_NUM_TASKS='2(x3)'" },
		{ "SLURM_STEP_NODELIST", NULL, NULL, "SLURM_STEP_NODELIST is not in" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=", NULL, "empty" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=n[0-", NULL, "malformed" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=n[0-7]", NULL, "8 hosts" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=m[0-2]", NULL, "without 'n1'" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=n[1-3]", NULL, "rank 0 does not run on n1" },
		{ "SLURMD_NODENAME", NULL, NULL, "SLURMD_NODENAME" },
		{ "SLURMD_NODENAME", "SLURMD_NODENAME=", NULL, "SLURMD_NODENAME" },
		{ "SLURMD_NODENAME", "SLURMD_NODENAME=n0", NULL, "rank 0 does not run on n0" },
		{ "X", "SLURM_STEP_RESV_PORTS=none", NULL, "SLURM_STEP_RESV_PORTS='none'" },
		{ "X", "SLURM_STEP_RESV_PORTS=0", NULL, "SLURM_STEP_RESV_PORTS='0'" },
		{ "X", "SLURM_RESTART_COUNT=many", NULL, "SLURM_RESTART_COUNT='many'" },
		{ "X", "SLURM_DISTRIBUTION=arbitrary", "SLURM_DDP_FIRST_HOST=n7", "begins with 'n7'" },
		{ "X", "SLURM_DISTRIBUTION=arbitrary", "SLURM_DDP_FIRST_HOST=", "begins with ''" },
		/* Forged to write lines of their own into slurmd's log. */
		{ "X", "SLURM_RESTART_COUNT=\nslurmd: lies", NULL, "='?slurmd: lies' is not a number" },
		{ "X", "SLURM_STEP_RESV_PORTS=\033[2J", NULL, "='?[2J' is not" },
		{ "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST=n0\nslurmd: lies", NULL, "'n0?slurmd: lies'" },
		{ "X", "SLURM_DISTRIBUTION=arbitrary", "SLURM_DDP_FIRST_HOST=n0\r", "begins with 'n0?'" },
	};
	struct layout layout = layout_of("012");

	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct trial trial;
		begin(&trial, &layout, PLAIN, 1);
		drop(&trial, wrong[i].drop);
		if (wrong[i].set != NULL)
			set(&trial, "%s", wrong[i].set);
		if (wrong[i].more != NULL)
			set(&trial, "%s", wrong[i].more);
		if (derive(&trial))
			fail_msg("case %zu (%s) was accepted", i, wrong[i].named);
		if (strstr(trial.error.text, wrong[i].named) == NULL)
			fail_msg("'%s' does not say \"%s\"", trial.error.text, wrong[i].named);
	}
}

TEST(impossible_items_are_errors)
{
	static const struct { uint32_t node, nodes, local, locals, tasks, task; } wrong[] = {
		{ 0, 0, 0, 1, 1, 0 }, { 3, 3, 0, 1, 3, 1 }, { 1, 3, 1, 1, 3, 1 }, { 1, 3, 0, 0, 3, 1 },
		{ 1, 3, 0, 4, 3, 1 }, { 1, 3, 0, 1, 0, 0 }, { 1, 3, 0, 1, 1, 1 },
	};
	struct layout layout = layout_of("012");

	for (size_t i = 0; i < COUNT(wrong); i++) {
		struct trial trial;
		begin(&trial, &layout, PLAIN, 1);
		drop(&trial, "SLURM_STEP_NUM_TASKS");
		drop(&trial, "SLURM_PROCID");
		set(&trial, "SLURM_PROCID=%u", wrong[i].task);
		trial.facts.node_id = wrong[i].node;
		trial.facts.node_count = wrong[i].nodes;
		trial.facts.local_id = wrong[i].local;
		trial.facts.local_tasks = wrong[i].locals;
		trial.facts.total_tasks = wrong[i].tasks;
		trial.facts.global_id = wrong[i].task;
		if (derive(&trial))
			fail_msg("case %zu was accepted", i);
		assert_true(trial.error.text[0] != '\0');
	}
}

/* ---- ports, and small parts ------------------------------------------------------------ */

TEST(restart_count_moves_the_hashed_port)
{
	struct layout layout = lay_out(2, 4, BLOCK);
	uint16_t ports[3];

	/* The item, as Slurm gives it in newer releases; the variable in older. */
	for (uint32_t restart = 0; restart < 3; restart++) {
		struct trial trial;
		begin(&trial, &layout, PLAIN, 3);
		trial.facts.restart_count = restart == 1 ? 1 : 0;
		if (restart == 2)
			set(&trial, "SLURM_RESTART_COUNT=2");
		assert_true(derive(&trial));
		assert_int_equal(trial.id.restart_count, restart);
		ports[restart] = trial.id.master_port;
	}
	assert_true(ports[0] != ports[1] && ports[1] != ports[2]);
}

TEST(steps_of_several_components_are_told)
{
	static const struct { const char *variable; uint32_t tasks; bool spans; } steps[] = {
		{ "SLURM_STEP_NUM_TASKS=4", 4, false }, { "SLURM_STEP_NUM_TASKS=4", 3, true },
		{ "SLURM_STEP_NUM_TASKS=4", 5, false }, { "SLURM_STEP_NUM_TASKS=x", 0, false }, { "A=1", 0, false },
	};

	for (size_t i = 0; i < COUNT(steps); i++) {
		char *environment[] = { (char *)(uintptr_t)steps[i].variable, NULL };
		assert_int_equal(step_spans_components(environment, steps[i].tasks), steps[i].spans);
	}
}

TEST(variable_lookup_matches_whole_names)
{
	char *environment[] = { (char[]){ "AB=1" }, (char[]){ "A=2" }, (char[]){ "A=3" },
		                (char[]){ "EMPTY=" }, (char[]){ "broken" }, NULL };

	assert_string_equal(environment_get(environment, "A"), "2");
	assert_string_equal(environment_get(environment, "AB"), "1");
	assert_string_equal(environment_get(environment, "EMPTY"), "");
	assert_null(environment_get(environment, "broken"));
	assert_null(environment_get(environment, "B"));
	assert_null(environment_get(NULL, "A"));
}

TEST(devices_are_found_as_slurm_binds_them)
{
	static const struct {
		const char *variables[4];
		uint32_t local_rank, local_world_size, visible;
		enum gpu_binding binding;
		int device;
		enum gpu_verdict verdict;
	} bindings[] = {
		{ { NULL }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=NoDevFiles" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=-1" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 2, 4, 4, GPU_COMMON, 2, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=GPU-aa,GPU-bb" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0" }, 0, 1, 1, GPU_COMMON, 0, GPU_FINE },
		/* The only task of the node may be a torchrun, with a rank on each. */
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 0, 1, 4, GPU_COMMON, -1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 1, 2, 4, GPU_COMMON, 1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0,1" }, 3, 4, 2, GPU_COMMON, 1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPUS_PER_TASK=1" }, 3, 4, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURMD_TRES_BIND=gpu:single:1" }, 1, 2, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURMD_TRES_BIND=gpu:none" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_TRES_BIND=nic:closest" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPU_BIND=closest" }, 1, 2, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPUS_PER_TASK=1" }, 0, 1, 1, GPU_COMMON, 0, GPU_FINE },
		/* A job's variables are inherited by steps that are bound otherwise. */
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_GPUS_PER_TASK=1", "SLURMD_TRES_BIND=gpu:none" }, 1, 2, 2,
		  GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_GPU_BIND=none", "SLURMD_TRES_BIND=gres/gpu:per_task:2" },
		  1, 2, 2, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPU_BIND=map_gpu:0,1" }, 1, 2, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_GPU_BIND=verbose,none" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURMD_TRES_BIND=shard:closest" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		/* All see all, or some that overlap: nobody's own is device 0. */
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3", "SLURMD_TRES_BIND=gpu:closest", "SLURM_GPUS_ON_NODE=4" }, 3, 4, 4,
		  GPU_COMMON, 3, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=2,3", "SLURMD_TRES_BIND=gpu:closest", "SLURM_GPUS_ON_NODE=4" }, 3, 4, 2,
		  GPU_OVERLAP, -1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURMD_TRES_BIND=gpu:mask_gpu:0x3,0xc" }, 2, 4, 2, GPU_OVERLAP, -1,
		  GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURMD_TRES_BIND=gpu:single:2" }, 1, 2, 1, GPU_OVERLAP, 0, GPU_MISMATCH },
		{ { "ROCR_VISIBLE_DEVICES=0,1" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "HIP_VISIBLE_DEVICES=0,1" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "ZE_AFFINITY_MASK=0,1,2" }, 1, 3, 3, GPU_COMMON, 1, GPU_FINE },
	};

	for (size_t i = 0; i < COUNT(bindings); i++) {
		char *environment[5] = { NULL };
		struct error sentence = { "" };
		for (int v = 0; v < 4 && bindings[i].variables[v] != NULL; v++)
			environment[v] = (char *)(uintptr_t)bindings[i].variables[v];
		struct gpu_view view = gpu_view_of(environment, bindings[i].local_rank, bindings[i].local_world_size);
		if (view.visible != bindings[i].visible || view.binding != bindings[i].binding ||
		    view.device != bindings[i].device ||
		    gpu_judge(&view, bindings[i].local_world_size, GPU_COMMON, &sentence) != bindings[i].verdict)
			fail_msg("case %zu: %u visible, binding %d, device %d, '%s'", i, view.visible, view.binding,
			         view.device, sentence.text);
		assert_int_equal(sentence.text[0] == '\0', bindings[i].verdict == GPU_FINE);
		assert_int_equal(gpu_judge(&view, bindings[i].local_world_size, GPU_OWN, &sentence), GPU_FINE);
	}
}
