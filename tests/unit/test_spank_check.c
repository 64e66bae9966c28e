/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/launch/check: how a dry run shows what tasks get.
   spank/launch/variables, and identity and variables of a generation. Each task of a generation is made here as the
   plugin makes it, and libddp reads it: it refuses variables that contradict each other. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/job.h"
#include "job/nodes.h"
#include "spank/identity/identity.h"
#include "spank/launch/check.h"
#include "spank/launch/variables.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

TEST(check_prints_a_row_for_the_task)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  omp 4  gpus 0\n");
	with.master_address = "fd00::1";
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_non_null(strstr(text, "  master [fd00::1]:20001  "));
	assert_false(check_row(&identity, &with, &variables, text, 16));
}

TEST(check_shows_spares)
{
	static struct variables variables;
	char text[256], rows[] = "spare  local 1/2  node 3 n3  waits\nrank 1/4  local 1/2  node 0/2 n0\n"
	                         "spare  local 0/2  node 2 n2  waits\nrank 0/4  local 0/2  node 0/2 n0\nword\n";
	struct settings settings = { .restarts = 1, .spares = 2 };
	struct identity identity = { .world_size = 8, .local_world_size = 2, .node_count = 4, .node_name = "n3" };
	struct task_extras with = extras(ENVIRONMENT());
	const uint32_t cyclic[] = { 0, 4, 1, 5 }, dealt[] = { 0, 2, 1, 3 };

	identity.node_rank = 3, identity.rank = 7, identity.local_rank = 1;
	identity_without_spares(&identity, &settings);
	assert_true(identity.spare);
	assert_int_equal(identity.world_size, 4);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "spare  local 1/2  node 3 n3  waits for the place of a lost node\n");
	assert_true(check_json(&identity, &(struct variable){ "spare", "yes", "spare=" }, text, sizeof(text)));
	assert_string_equal(text, "{\"rank\":null,\"world_size\":4,\"node\":\"n3\",\"name\":\"spare\",\"value\":\"yes\","
	                    "\"source\":\"spare=\"}\n");
	assert_true(table_sort(rows));
	assert_string_equal(rows, "word\nrank 0/4  local 0/2  node 0/2 n0\nrank 1/4  local 1/2  node 0/2 n0\n"
	                    "spare  local 1/2  node 3 n3  waits\nspare  local 0/2  node 2 n2  waits\n");
	for (uint32_t i = 0; i < COUNT(cyclic); i++) {
		identity = (struct identity){ .world_size = 8, .local_world_size = 2, .node_count = 4, .node_rank = i / 2,
			                      .local_rank = i % 2, .rank = cyclic[i] };
		identity_without_spares(&identity, &settings);
		assert_false(identity.spare);
		assert_int_equal(identity.rank, dealt[i]);
	}
}

/* slurmstepd writes the row into slurmd's log when verbose is on. */
TEST(check_row_is_one_printable_line)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=1\nslurmd: error: \033[2Jlies, and "
	                                               "more of them than a row has room for")));

	with.user_threads = environment_get(with.environment, "OMP_NUM_THREADS");
	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  "
	                    "omp 1?slurmd: error: ?[2Jlies, and more of t  gpus 0\n");
}

TEST(check_prints_valid_json_for_each_variable)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "trace=/a\"b\\c", &identity, &with);
	for (int i = 0; i < variables.count; i++) {
		const struct variable *variable = &variables.item[i];
		char text[1024];
		assert_int_equal(check_json(&identity, variable, text, sizeof(text)), variable->value != NULL);
		if (variable->value == NULL)
			continue;
		assert_int_equal(strchr(text, '\n') - text, (long)strlen(text) - 1);
		json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
		assert_non_null(root);
		assert_int_equal(json_integer_value(json_object_get(root, "rank")), 3);
		assert_string_equal(json_string_value(json_object_get(root, "name")), variable->name);
		assert_string_equal(json_string_value(json_object_get(root, "source")), variable->source);
		assert_string_equal(json_string_value(json_object_get(root, "value")),
		                    strcmp(variable->name, "DDP_KEY") == 0 ? "(secret)" : variable->value);
		json_decref(root);
	}
}

TEST(table_is_in_order_of_node_and_rank)
{
	static const struct { const char *text, *sorted; } cases[] = {
		{ "", "" }, { "\n", "\n" }, { "no row\n", "no row\n" },
		{ "rank 10/12  local 0/2  node 1/2 n1  x\nrank  2/12  local 0/2  node 0/2 n0  y\n"
		  "rank  1/12  local 0/2  node 1/2 n1  z\n",
		  "rank  2/12  local 0/2  node 0/2 n0  y\nrank  1/12  local 0/2  node 1/2 n1  z\n"
		  "rank 10/12  local 0/2  node 1/2 n1  x\n" },
		/* srun --label, and what else there may be. */
		{ "1: rank 1/2  local 0/1  node 1/2 n1\nb\n0: rank 0/2  local 0/1  node 0/2 n0\na\n",
		  "b\na\n0: rank 0/2  local 0/1  node 0/2 n0\n1: rank 1/2  local 0/1  node 1/2 n1\n" },
		{ "rank 1/2  node 1/2\nrank 0/2  node 0/2", "rank 0/2  node 0/2\nrank 1/2  node 1/2" },
		{ "rank x/2  node 1/2\nrank 0/2  node\n", "rank x/2  node 1/2\nrank 0/2  node\n" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		snprintf(text, sizeof(text), "%s", cases[i].text);
		assert_true(table_sort(text));
		assert_string_equal(text, cases[i].sorted);
	}
}

TEST(check_says_when_there_is_no_room)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	const struct variable rank = { "RANK", "3", "the step" };

	build(&variables, "", &identity, &with);
	for (size_t bytes = 1; bytes < 60; bytes++) {
		char text[64];
		memset(text, 'x', sizeof(text));
		assert_false(check_json(&identity, &rank, text, bytes));
		assert_true(memchr(text, '\0', bytes) != NULL);
	}
}

/* How many descriptors a program would inherit, beside the first three. */
static int inherited(void)
{
	int count = 0;

	for (int fd = 3; fd < 256; fd++) {
		int flags = fcntl(fd, F_GETFD);
		count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
	}
	return count;
}

/* What a process writes that keeps its table, and then leaves. */
static void written_by(void (*leave)(void), char *text, size_t bytes)
{
	size_t used = 0;
	ssize_t got;
	int ends[2], status = -1;
	pid_t pid;

	fflush(stdout);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct error error;
		int before;
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		before = inherited();
		if (!table_begin(&error) || inherited() != before)
			_exit(1);
		printf("rank 1/2  local 0/1  node 1/2 n1\nrank 0/2  local 0/1  node 0/2 n0\n");
		leave();
		_exit(2);
	}
	close(ends[1]);
	while (used < bytes - 1 && (got = read(ends[0], text + used, bytes - 1 - used)) > 0)
		used += (size_t)got;
	text[used] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void leave_in_order(void)
{
	table_end();
	exit(0);
}

static void leave_at_once(void)
{
	exit(0);
}

/* A process that srun starts has no part in the table. */
static void leave_after_a_child(void)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0)
		exit(0);
	waitpid(pid, &status, 0);
	exit(status);
}

TEST(table_is_written_however_srun_leaves)
{
	static void (*const leaves[])(void) = { leave_in_order, leave_at_once, leave_after_a_child };
	char text[512];

	for (size_t i = 0; i < COUNT(leaves); i++) {
		written_by(leaves[i], text, sizeof(text));
		assert_string_equal(text, "rank 0/2  local 0/1  node 0/2 n0\n"
		                          "rank 1/2  local 0/1  node 1/2 n1\n");
	}
}

/* ---- identity and variables of a generation, as the plugin makes them and libddp reads them ---- */

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
