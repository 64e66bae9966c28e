/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/launch/renumber, and identity and variables of a generation. Each task of a generation is made here as the
   plugin makes it, and libddp reads it: it refuses variables that contradict each other. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"
#include "job/nodes.h"
#include "spank/identity/identity.h"
#include "spank/launch/variables.h"
#include "tests/support/test.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

enum { VARIABLES = 128, WORLD = 6 };

extern char **environ;

struct environment {
	char text[VARIABLES][512];
	char *list[VARIABLES + 1];
	int count;
};

static void put(struct environment *environment, const char *name, const char *value)
{
	size_t length = strlen(name);
	int place = 0;

	while (place < environment->count && (strncmp(environment->text[place], name, length) != 0 ||
	                                      environment->text[place][length] != '='))
		place++;
	assert_true(place < VARIABLES);
	/* A name without '=' is nobody's. */
	snprintf(environment->text[place], sizeof(environment->text[place]), value != NULL ? "%s=%s" : "-%s", name,
	         value != NULL ? value : "");
	environment->list[place] = environment->text[place];
	environment->count += place == environment->count;
	environment->list[environment->count] = NULL;
}

static void put_number(struct environment *environment, const char *name, uint32_t value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	put(environment, name, text);
}

/* The environment that Slurm makes for a task of the step: n0 to n3, two tasks each. */
static void make_step(struct environment *environment, uint32_t node, uint32_t local)
{
	char name[16], tasks[32];

	*environment = (struct environment){ .count = 0 };
	snprintf(name, sizeof(name), "n%u", node);
	snprintf(tasks, sizeof(tasks), "%u,%u", 2 * node, 2 * node + 1);
	put(environment, "SLURM_JOB_ID", "7");
	put(environment, "SLURM_STEP_ID", "2");
	put_number(environment, "SLURM_PROCID", 2 * node + local);
	put_number(environment, "SLURM_LOCALID", local);
	put(environment, "SLURM_NTASKS", "8");
	put(environment, "SLURM_NPROCS", "8");
	put(environment, "SLURM_STEP_NUM_TASKS", "8");
	put_number(environment, "SLURM_NODEID", node);
	put(environment, "SLURM_NNODES", "4");
	put(environment, "SLURM_JOB_NUM_NODES", "9");
	put(environment, "SLURM_STEP_NUM_NODES", "4");
	put(environment, "SLURM_NODELIST", "n[0-3]");
	put(environment, "SLURM_JOB_NODELIST", "n[0-8]");
	put(environment, "SLURM_STEP_NODELIST", "n[0-3]");
	put(environment, "SLURM_TASKS_PER_NODE", "2(x4)");
	put(environment, "SLURM_STEP_TASKS_PER_NODE", "2(x4)");
	put(environment, "SLURM_GTIDS", tasks);
	put(environment, "SLURM_TASK_PID", "99");
	put(environment, "SLURMD_NODENAME", name);
	put(environment, "SLURM_STEP_RESV_PORTS", "12000-12002");
}

/* A generation of three of these nodes. */
static const uint32_t node_of_rank[3] = { 0, 3, 2 };
static unsigned char dealt[1024];

static struct deal_go deal(uint32_t node_rank)
{
	struct deal_go go = { .generation = 3, .restart_count = 2, .world_size = WORLD, .node_count = 3, .node_rank = node_rank,
		              .master = 0, .local_count = 2, .port_seed = 2, .nodes = "n0,n3,n2" };
	const uint32_t ranks[] = { 2 * node_rank, 2 * node_rank + 1 };
	size_t bytes;

	memcpy(go.key, KEY, sizeof(KEY));
	bytes = deal_pack_go(&go, ranks, dealt);
	assert_true(deal_unpack_go(dealt, bytes, &go));
	return go;
}

static struct step_facts facts_of(const struct environment *environment, const struct deal_go *go, uint32_t local)
{
	return (struct step_facts){ .job_id = 7, .step_id = 2, .node_id = go->node_rank, .node_count = go->node_count,
		                    .local_tasks = go->local_count, .total_tasks = go->world_size, .local_id = local,
		                    .global_id = deal_rank(go, local), .holds_task_zero = go->node_rank == go->master,
		                    .restarts_in_step = go->restart_count, .port_seed = go->port_seed,
		                    .master_node = "n0", .environment = environment->list };
}

static void give(struct environment *environment, const struct identity *identity, const struct settings *settings,
                 const struct deal_go *go)
{
	static struct variables variables;
	const struct task_extras extras = { .master_address = identity->master_node, .version = "0.2.0", .key = go->key,
		                            .progress_fd = -1, .gpu = { .device = -1 }, .cpus = 1,
		                            .restarts_in_step = go->restart_count, .nccl_net = "", .nccl_profiler = "",
		                            .environment = environment->list };
	struct error error;

	assert_true(environment_build(&variables, identity, settings, &extras, &error));
	for (int i = 0; i < variables.count; i++)
		put(environment, variables.item[i].name, variables.item[i].value);
}

static struct environment environment;

/* The task as it is in the generation. */
static struct identity make_task(uint32_t node_rank, uint32_t local)
{
	static struct renumbered renumbered;
	struct deal_go go = deal(node_rank);
	struct settings settings;
	struct identity identity;
	struct step_facts facts;
	struct error error = { "" };

	settings_init(&settings);
	settings.restarts = 5;
	make_step(&environment, node_of_rank[node_rank], local);
	assert_true(renumber(&renumbered, environment.list, &go, local, 1234, &error));
	for (int i = 0; i < renumbered.count; i++)
		put(&environment, renumbered.item[i].name, renumbered.item[i].value);
	facts = facts_of(&environment, &go, local);
	if (!identity_derive(&facts, &settings, &identity, &error))
		fail_msg("%s", error.text);
	give(&environment, &identity, &settings, &go);
	return identity;
}

static void expect(const char *name, const char *value)
{
	const char *found = environment_get(environment.list, name);

	if (found == NULL || strcmp(found, value) != 0)
		fail_msg("%s is %s, not %s", name, found != NULL ? found : "unset", value);
}

TEST(all_variables_are_of_the_generation)
{
	static const char *const wanted[][2] = {
		{ "RANK", "3" }, { "WORLD_SIZE", "6" }, { "LOCAL_RANK", "1" }, { "LOCAL_WORLD_SIZE", "2" },
		{ "NODE_RANK", "1" }, { "NNODES", "3" }, { "MASTER_ADDR", "n0" }, { "MASTER_PORT", "12002" },
		{ "JAX_NUM_PROCESSES", "6" }, { "JAX_PROCESS_ID", "3" }, { "JAX_COORDINATOR_ADDRESS", "n0:12002" },
		{ "DDP_RESTART_COUNT", "2" }, { "DDP_KEY", "step:" KEY }, { "TORCHELASTIC_RESTART_COUNT", "2" },
		{ "TORCHELASTIC_MAX_RESTARTS", "5" }, { "DDP_NODE_NAME", "n3" },
		{ "SLURM_PROCID", "3" }, { "SLURM_NTASKS", "6" }, { "SLURM_NPROCS", "6" }, { "SLURM_STEP_NUM_TASKS", "6" },
		{ "SLURM_NODEID", "1" }, { "SLURM_NNODES", "3" }, { "SLURM_STEP_NUM_NODES", "3" },
		{ "SLURM_NODELIST", "n0,n3,n2" }, { "SLURM_STEP_NODELIST", "n0,n3,n2" }, { "SLURM_TASKS_PER_NODE", "2(x3)" },
		{ "SLURM_STEP_TASKS_PER_NODE", "2(x3)" }, { "SLURM_GTIDS", "2,3" }, { "SLURM_TASK_PID", "1234" },
		{ "SLURM_LOCALID", "1" },
		/* The job has more nodes than the step had. */
		{ "SLURM_JOB_NUM_NODES", "9" }, { "SLURM_JOB_NODELIST", "n[0-8]" },
	};

	make_task(1, 1);
	for (size_t i = 0; i < COUNT(wanted); i++)
		expect(wanted[i][0], wanted[i][1]);
}

TEST(libddp_reads_each_task)
{
	static const char *const nodes_of[] = { "n0", "n0", "n3", "n3", "n2", "n2" };
	char **before = environ;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct identity identity = make_task(rank / 2, rank % 2);
		ddp_nodes nodes;
		ddp_job job;
		ddp_key key;
		environ = environment.list;
		assert_int_equal(ddp_job_discover(&job, &key), DDP_OK);
		assert_int_equal(job.rank, rank);
		assert_int_equal(job.world_size, WORLD);
		assert_int_equal(job.node_rank, rank / 2);
		assert_int_equal(job.nnodes, 3);
		assert_int_equal(job.restart_count, 2);
		assert_int_equal(job.master_port, 12002);
		assert_true(job.plugin && key.present);
		assert_int_equal(identity.holds_rank_zero, rank < 2);
		ddp_nodes_find(&job, &nodes);
		assert_int_equal(nodes.count, 3);
		for (int r = 0; r < WORLD; r++)
			assert_string_equal(nodes.names[nodes.of_rank[r]], nodes_of[r]);
		ddp_nodes_free(&nodes);
		environ = before;
	}
}

TEST(uneven_nodes_keep_their_tasks)
{
	static struct renumbered renumbered;
	struct deal_go go = deal(0);
	struct error error;

	make_step(&environment, 0, 0);
	put(&environment, "SLURM_STEP_TASKS_PER_NODE", "2,1(x2)");
	assert_true(renumber(&renumbered, environment.list, &go, 0, 1, &error));
	for (int i = 0; i < renumbered.count; i++)
		put(&environment, renumbered.item[i].name, renumbered.item[i].value);
	expect("SLURM_STEP_TASKS_PER_NODE", "2,1(x2)");
	/* It said something else than the step's. */
	expect("SLURM_TASKS_PER_NODE", "2(x4)");
}

TEST(pmi_is_hidden)
{
	assert_true(renumber_hides("PMIX_RANK=3") && renumber_hides("PMI_FD=5") && renumber_hides("PMI2_X=1"));
	assert_false(renumber_hides("PMIXED=1") || renumber_hides("SLURM_PMIX_MAPPING_SERV=x") || renumber_hides("PATH=PMI_"));
}

TEST(ports_of_a_reservation_are_taken_in_turn)
{
	static const uint16_t ports[] = { 12000, 12001, 12005, 13000, 13001, 12000, 12001 };

	for (uint32_t i = 0; i < COUNT(ports); i++)
		assert_int_equal(port_of_reservation("12000-12001,12005,13000-13001", i), ports[i]);
	assert_int_equal(port_of_reservation("9", 7), 9);
	assert_int_equal(port_of_reservation("", 0), 0);
	assert_int_equal(port_of_reservation("12-", 0), 0);
	assert_int_equal(port_of_reservation("12,", 0), 0);
	assert_int_equal(port_of_reservation("15-12", 0), 0);
	assert_int_equal(port_of_reservation("12000-99999", 1), 0);
}

TEST(a_list_has_its_hosts_in_order)
{
	char host[HOST_NAME_MAX_BYTES];
	struct error error;

	assert_true(nodelist_at("n0,n[3-5],a", 0, host, &error));
	assert_string_equal(host, "n0");
	assert_true(nodelist_at("n0,n[3-5],a", 3, host, &error));
	assert_string_equal(host, "n5");
	assert_true(nodelist_at("n0,n[3-5],a", 4, host, &error));
	assert_string_equal(host, "a");
	assert_false(nodelist_at("n0,n[3-5],a", 5, host, &error));
	assert_string_equal(error.text, "'n0,n[3-5],a' has no 6 hosts");
}

TEST(a_generation_has_a_port_of_its_own)
{
	struct settings settings;
	struct identity identity;
	struct deal_go go = deal(1);
	struct error error;
	uint16_t ports[4];

	settings_init(&settings);
	for (uint32_t seed = 0; seed < COUNT(ports); seed++) {
		struct step_facts facts;
		make_task(1, 0);
		put(&environment, "SLURM_STEP_RESV_PORTS", NULL);
		facts = facts_of(&environment, &go, 0);
		facts.port_seed = seed;
		assert_true(identity_derive(&facts, &settings, &identity, &error));
		assert_int_equal(identity.restart_count, 2);
		ports[seed] = identity.master_port;
		for (uint32_t i = 0; i < seed; i++)
			assert_int_not_equal(ports[i], ports[seed]);
	}
}
