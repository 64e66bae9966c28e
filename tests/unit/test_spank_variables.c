/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/launch/variables: what a task gets. */
#include <string.h>

#include "spank/launch/srun_options.h"
#include "spank/launch/variables.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

/* The task, and what it gets; each case begins with the same. */
static struct identity identity;
static struct task_extras with;
static struct variables variables;

static int begin(void **state)
{
	static char path[] = "PATH=/bin", *environment[] = { path, NULL };

	identity = task();
	with = extras(environment);
	return 0;
}

static void give(const char *list)
{
	build(&variables, list, &identity, &with);
}

static const struct variable *find(const char *name)
{
	for (int i = 0; i < variables.count; i++)
		if (strcmp(variables.item[i].name, name) == 0)
			return &variables.item[i];
	return NULL;
}

static void expect(const char *name, const char *value)
{
	const struct variable *variable = find(name);

	if (variable == NULL || variable->value == NULL)
		fail_msg("%s is not set", name);
	else if (strcmp(variable->value, value) != 0)
		fail_msg("%s is '%s', not '%s'", name, variable->value, value);
}

/* Taken out, or left to the caller's own. */
static void expect_no_value(const char *name)
{
	const struct variable *variable = find(name);

	if (variable != NULL && variable->value != NULL)
		fail_msg("%s is set to '%s'", name, variable->value);
}

/* The caller's stays; `value` NULL: likewise. */
static void expect_or_left(const char *name, const char *value)
{
	if (value != NULL)
		expect(name, value);
	else
		assert_null(find(name));
}

TEST_WITH(ranks_are_given_for_every_framework, begin, NULL)
{
	static const char *const expected[][2] = {
		{ "RANK", "3" }, { "WORLD_SIZE", "4" }, { "LOCAL_RANK", "1" }, { "LOCAL_WORLD_SIZE", "2" },
		{ "NODE_RANK", "1" }, { "NNODES", "2" }, { "GROUP_RANK", "1" }, { "MASTER_ADDR", "n0" },
		{ "MASTER_PORT", "20001" }, { "JAX_COORDINATOR_ADDRESS", "n0:20001" },
		{ "JAX_NUM_PROCESSES", "4" }, { "JAX_PROCESS_ID", "3" }, { "DDP_PLUGIN_VERSION", "0.2.0" },
		{ "DDP_REQUESTED", "7.2" }, { "DDP_JOB_ID", "7" }, { "DDP_STEP_ID", "2" },
		{ "DDP_RESTART_COUNT", "1" }, { "DDP_NODE_NAME", "n1" }, { "DDP_ON_FAILURE", "kill" },
		{ "DDP_KEY", STEP_KEY TASK_KEY }, { "DDP_PROGRESS_FD", "200" }, { "OMP_NUM_THREADS", "4" },
	};

	give("");
	for (size_t i = 0; i < COUNT(expected); i++)
		expect(expected[i][0], expected[i][1]);
	for (int i = 0; i < variables.count; i++)
		assert_non_null(variables.item[i].source);
}

TEST_WITH(stale_variables_are_taken_out, begin, NULL)
{
	static const char *const stale[] = { "PET_NNODES", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT",
		                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
		                             "ROLE_RANK", "GROUP_WORLD_SIZE", "DDP_LOCAL_DEVICE",
		                             "SLURM_DDP_KEY", "SLURM_DDP_FIRST_HOST",
		                             "SLURM_DDP_RELAY" };

	give("");
	for (size_t i = 0; i < COUNT(stale); i++) {
		const struct variable *variable = find(stale[i]);
		if (variable == NULL || variable->value != NULL)
			fail_msg("%s is not taken out", stale[i]);
	}
}

TEST_WITH(absent_page_does_not_leave_a_stale_one, begin, NULL)
{
	with.progress_fd = -1;
	give("");
	assert_non_null(find("DDP_PROGRESS_FD"));
	assert_null(find("DDP_PROGRESS_FD")->value);
}

TEST_WITH(step_without_a_key_is_refused, begin, NULL)
{
	static const struct { const char *key, *named; } keys[] = {
		{ NULL, "missing" }, { "", "not what it made" }, { &TASK_KEY[1], "not what it made" },
		{ "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
		{ "000112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
	};
	struct settings settings;

	settings_init(&settings);
	for (size_t i = 0; i < COUNT(keys); i++) {
		struct error error = { "" };
		with.key = keys[i].key;
		assert_false(environment_build(&variables, &identity, &settings, &with, &error));
		assert_non_null(strstr(error.text, keys[i].named));
	}
}

TEST_WITH(watch_names_nccls_plugin, begin, NULL)
{
	with.nccl_profiler = "/usr/lib/slurm-ddp/libnccl-profiler-ddp.so";
	give("watch");
	expect("NCCL_PROFILER_PLUGIN", "/usr/lib/slurm-ddp/libnccl-profiler-ddp.so");
	give("watch=/opt/p.so");
	expect("NCCL_PROFILER_PLUGIN", "/opt/p.so");
	with.progress_fd = -1; /* no page to write to */
	give("watch");
	assert_null(find("NCCL_PROFILER_PLUGIN"));
	with = extras(ENVIRONMENT((char[]){ "NCCL_PROFILER_PLUGIN=mine" },));
	give("watch");
	assert_null(find("NCCL_PROFILER_PLUGIN"));
}

TEST_WITH(python_adds_a_folder_to_the_users, begin, NULL)
{
	static char much[4000] = "PYTHONPATH=/";

	with.python = "/usr/lib/slurm-ddp/python";
	give("python");
	expect("PYTHONPATH", "/usr/lib/slurm-ddp/python/site");
	expect("DDP_PYTHON", "yes");
	/* A step that a task starts gets the user's list, in which the folder does nothing. */
	assert_null(strstr(find("DDP_DERIVED")->value, "PYTHONPATH"));
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=/mine:/too" },));
	give("python=/opt/p");
	expect("PYTHONPATH", "/opt/p/site:/mine:/too");
	give("timeout=5");
	assert_null(find("PYTHONPATH"));
	assert_null(find("DDP_PYTHON"));
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=" },));
	give("python=/opt/p");
	expect("PYTHONPATH", "/opt/p/site");
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=/opt/p/site:/mine" },));
	give("python=/opt/p");
	assert_null(find("PYTHONPATH"));
	memset(much + strlen(much), 'p', sizeof(much) - strlen(much) - 1);
	with = extras(ENVIRONMENT(much,));
	give("python=/opt/p");
	assert_null(find("PYTHONPATH"));
	environment_leave_step(&variables, ENVIRONMENT(V("DDP_STEP_ID=1") V("DDP_PYTHON=yes") V("DDP_DERIVED=DDP_PYTHON=yes")
	                                               V("PYTHONPATH=/opt/p/site:/mine")));
	assert_null(find("PYTHONPATH"));
	assert_non_null(find("DDP_PYTHON"));
}

TEST_WITH(nccl_net_names_nccls_network, begin, NULL)
{
	with.nccl_net = "/usr/lib/slurm-ddp/libnccl-net-ddpucx.so";
	give("");
	assert_null(find("NCCL_NET_PLUGIN"));
	give("nccl-net");
	expect("NCCL_NET_PLUGIN", "/usr/lib/slurm-ddp/libnccl-net-ddpucx.so");
	give("nccl-net=/opt/p.so");
	expect("NCCL_NET_PLUGIN", "/opt/p.so");
	with = extras(ENVIRONMENT((char[]){ "NCCL_NET_PLUGIN=none" },));
	give("nccl-net");
	assert_null(find("NCCL_NET_PLUGIN"));
}

TEST_WITH(nothing_of_the_transports_is_touched, begin, NULL)
{
	static const char *const prefixes[] = { "UCX_", "NCCL_", "SLURM_PMIX", "PMIX_", "SLURM_PROCID",
		                                "SLURM_LOCALID", "CUDA_" };
	static const char *const lists[] = { "", "launcher", "verbose,timeout=5,trace=/t,bucket-mb=1" };

	for (size_t l = 0; l < COUNT(lists); l++) {
		identity.world_size = identity.node_count = 4;
		identity.local_world_size = 1;
		give(lists[l]);
		for (int i = 0; i < variables.count; i++)
			for (size_t p = 0; p < COUNT(prefixes); p++)
				assert_int_not_equal(strncmp(variables.item[i].name, prefixes[p],
				                             strlen(prefixes[p])), 0);
	}
}

TEST_WITH(keys_of_the_library_pass_through, begin, NULL)
{
	give("timeout=90,silence=7,bucket-mb=0.5,trace=/scratch/t,on-failure=continue");
	expect("DDP_TIMEOUT", "90");
	expect("DDP_SILENCE", "7");
	expect("DDP_BUCKET_MB", "0.5");
	expect("DDP_TRACE_DIR", "/scratch/t");
	expect("DDP_ON_FAILURE", "continue");
	give("");
	assert_null(find("DDP_TIMEOUT"));
	assert_null(find("DDP_SILENCE"));
	assert_null(find("DDP_BUCKET_MB"));
	assert_null(find("DDP_TRACE_DIR"));
}

TEST_WITH(threads_follow_omp, begin, NULL)
{
	static const struct { const char *list; bool caller; uint32_t cpus; const char *threads; } cases[] = {
		{ "", false, 4, "4" }, { "", true, 4, NULL }, { "", false, 0, NULL },
		{ "omp=cpus", false, 8, "8" }, { "omp=cpus", true, 8, "8" },
		{ "omp=1", false, 8, "1" }, { "omp=1", true, 8, "1" },
		{ "omp=keep", false, 8, NULL }, { "omp=keep", true, 8, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char **environment = cases[i].caller ? ENVIRONMENT(V("OMP_NUM_THREADS=64")) : ENVIRONMENT();
		with = extras(environment);
		with.cpus = cases[i].cpus;
		with.user_threads = cases[i].caller ? "64" : NULL;
		give(cases[i].list);
		expect_or_left("OMP_NUM_THREADS", cases[i].threads);
	}
}

TEST_WITH(threads_of_a_container_are_nobodys, begin, NULL)
{
	with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=77")));
	give("");
	expect("OMP_NUM_THREADS", "4");
	with.user_threads = "5";
	give("");
	expect("OMP_NUM_THREADS", "5");
	give("omp=keep");
	assert_null(find("OMP_NUM_THREADS"));
}

TEST_WITH(cpus_are_the_least_that_a_task_is_given, begin, NULL)
{
	static const struct { struct cpu_facts facts; uint32_t cpus; const char *what; } cases[] = {
		{ { .per_task = 3, .asked = 3, .share = 3 }, 3, "-c3" },
		{ { .per_task = 3, .asked = 3, .share = 4 }, 3, "-c3 of cores with two threads" },
		{ { .per_task = 4, .asked = 4, .share = 8, .bound = 4 }, 4, "-c4 --hint=nomultithread" },
		{ { .per_task = 1, .asked = 0, .share = 8, .bound = 4 }, 4, "a node, --hint=nomultithread" },
		{ { .per_task = 1, .asked = 1, .share = 2, .bound = 2 }, 1, "-c1 of cores with two threads" },
		{ { .per_task = 1, .asked = 0, .share = 2, .bound = 2 }, 2, "a core with two threads" },
		{ { .per_task = 1, .asked = 3, .share = 3 }, 3, "the job's -c3, a step without" },
		{ { .per_task = 2, .asked = 2, .share = 3 }, 2, "the job's -c3, the step's -c2" },
		{ { .per_task = 1, .asked = 0, .share = 2, .bound = 8 }, 2, "four tasks bound to eight" },
		{ { .per_task = 1, .asked = 0, .share = 0 }, 1, "--overcommit" },
		{ { .per_task = 0 }, 0, "nothing is known" },
		{ { .bound = 4 }, 0, "nothing else is known" },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		if (cpus_of_task(&cases[i].facts) != cases[i].cpus)
			fail_msg("%s: %u, not %u", cases[i].what, cpus_of_task(&cases[i].facts), cases[i].cpus);
}

TEST_WITH(derived_values_are_told_from_the_users, begin, NULL)
{
	static const struct { const char *list; bool caller; const char *derived; } cases[] = {
		{ "", false, "OMP_NUM_THREADS=4" }, { "omp=keep", false, NULL },
		{ "", true, NULL }, /* all is the user's */
		{ "omp=cpus,timeout=90,bucket-mb=2", true, "DDP_BUCKET_MB=2" }, /* 4 and 90 are the user's, too */
		{ "omp=1,timeout=9", true, "DDP_TIMEOUT=9\tOMP_NUM_THREADS=1" },
		{ "trace=/a b,nccl-net=/n.so,watch=/w.so", false,
		  "NCCL_PROFILER_PLUGIN=/w.so\tNCCL_NET_PLUGIN=/n.so\tDDP_TRACE_DIR=/a b\tOMP_NUM_THREADS=4" },
		{ "nccl-net=/n.so,watch=/w.so", true, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char **environment = cases[i].caller
			? ENVIRONMENT(V("OMP_NUM_THREADS=77") V("DDP_TIMEOUT=90") V("NCCL_NET_PLUGIN=none")
			              V("NCCL_PROFILER_PLUGIN=mine")) : ENVIRONMENT();
		with = extras(environment);
		/* A container's plugin has set 77. */
		with.user_threads = cases[i].caller ? "4" : NULL;
		give(cases[i].list);
		if (cases[i].derived != NULL)
			expect("DDP_DERIVED", cases[i].derived);
		else
			expect_no_value("DDP_DERIVED");
	}
}

TEST_WITH(jax_is_told_of_devices_that_are_the_tasks_own, begin, NULL)
{
	static const struct { struct gpu_view gpu; bool caller; const char *devices; } cases[] = {
		{ { .visible = 0, .device = -1 }, false, NULL }, { { .visible = 4, .device = 1 }, false, NULL },
		{ { .visible = 2, .binding = GPU_OVERLAP, .device = -1 }, false, NULL },
		{ { .visible = 1, .binding = GPU_OWN }, false, "0" },
		{ { .visible = 3, .binding = GPU_OWN }, false, "0,1,2" },
		{ { .visible = 1, .binding = GPU_OWN }, true, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char **environment = cases[i].caller ? ENVIRONMENT(V("JAX_LOCAL_DEVICE_IDS=5")) : ENVIRONMENT();
		with = extras(environment);
		with.gpu = cases[i].gpu;
		give("");
		expect_or_left("JAX_LOCAL_DEVICE_IDS", cases[i].devices);
	}
}

TEST_WITH(address_of_version_6_gets_brackets_in_a_pair, begin, NULL)
{
	with.master_address = "2001:db8::1";
	give("");
	expect("MASTER_ADDR", "2001:db8::1");
	expect("JAX_COORDINATOR_ADDRESS", "[2001:db8::1]:20001");
}

/* The only one of its node, as a launcher is. */
static void be_alone(void)
{
	identity.rank = 1;
	identity.world_size = identity.node_count = 2;
	identity.local_rank = 0;
	identity.local_world_size = 1;
}

TEST_WITH(launcher_gives_pet_and_no_rank, begin, NULL)
{
	static const char *const absent[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
		                              "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
		                              "JAX_PROCESS_ID", "OMP_NUM_THREADS" };

	be_alone();
	with.gpu.visible = 8;
	give("launcher");
	expect("PET_NNODES", "2");
	expect("PET_NODE_RANK", "1");
	expect("PET_MASTER_ADDR", "n0");
	expect("PET_MASTER_PORT", "20001");
	expect("PET_RDZV_ID", "7.2.1");
	expect("PET_NPROC_PER_NODE", "8");
	expect("DDP_KEY", STEP_KEY TASK_KEY);
	for (size_t i = 0; i < COUNT(absent); i++)
		expect_no_value(absent[i]);
	assert_non_null(find("RANK"));
	with.gpu.visible = 0;
	give("launcher");
	expect_no_value("PET_NPROC_PER_NODE");
}

TEST_WITH(torchrun_finds_its_world_without_launcher, begin, NULL)
{
	be_alone();
	with.gpu.visible = 8;
	give("");
	expect("RANK", "1");
	expect("PET_NNODES", "2");
	expect("PET_NODE_RANK", "1");
	expect("PET_MASTER_ADDR", "n0");
	expect("PET_MASTER_PORT", "20001");
	expect("PET_NPROC_PER_NODE", "8");
	expect_no_value("DDP_LOCAL_DEVICE");
	/* Not where tasks are ranks: of torchruns there would be several to a node. */
	identity.world_size = 4;
	identity.local_world_size = 2;
	give("");
	expect_no_value("PET_NNODES");
	identity.local_world_size = 1;
	identity.world_size = 3;
	give("");
	expect_no_value("PET_NNODES");
}

TEST_WITH(launcher_wants_one_task_per_node, begin, NULL)
{
	struct settings settings;
	struct error error = { "" };

	settings_init(&settings);
	settings.launcher = true;
	assert_false(environment_build(&variables, &identity, &settings, &with, &error));
	assert_non_null(strstr(error.text, "4 tasks on 2 nodes"));
	assert_non_null(strstr(error.text, "--ntasks-per-node=1"));
}

TEST_WITH(device_is_given_when_there_is_one, begin, NULL)
{
	with.gpu = (struct gpu_view){ .visible = 1, .binding = GPU_OWN };
	give("");
	expect("LOCAL_RANK", "1");
	expect("DDP_LOCAL_DEVICE", "0");
}

TEST_WITH(values_that_do_not_fit_are_an_error, begin, NULL)
{
	static char long_address[VARIABLES_TEXT_MAX];
	struct settings settings;
	struct error error = { "" };

	settings_init(&settings);
	memset(long_address, 'a', sizeof(long_address) - 1);
	with.master_address = long_address;
	assert_false(environment_build(&variables, &identity, &settings, &with, &error));
	assert_non_null(strstr(error.text, "longer than"));
}

TEST(launchers_daemons_are_known_by_name)
{
	static const struct { const char *command; bool daemon; } cases[] = {
		{ "orted", true }, { "/usr/bin/orted", true }, { "prted", true }, { "./prted", true },
		{ "hydra_pmi_proxy", true }, { "/opt/mpi/bin/hydra_bstrap_proxy", true }, { "pmi_proxy", true },
		{ "", false }, { "/", false }, { "orted/", false }, { "orted2", false }, { "my-orted", false },
		{ "hydra", false }, { "hydra_train.py", false }, { "python", false }, { "/opt/orted/train", false },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *words[] = { (char *)(uintptr_t)cases[i].command, (char[]){ "orted" }, NULL };
		if (daemon_is_launched(2, words) != cases[i].daemon)
			fail_msg("'%s'", cases[i].command);
	}
	assert_false(daemon_is_launched(0, NULL));
}

TEST(nothing_is_left_to_a_daemon)
{
	static const char *const names[] = { "RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "DDP_KEY",
		                             "DDP_REQUESTED", "DDP_PROGRESS_FD", "SLURM_DDP_KEY",
		                             "SLURM_DDP_RELAY" };

	environment_clear(&variables);
	assert_false(variables.overflow);
	for (int i = 0; i < variables.count; i++)
		assert_null(variables.item[i].value);
	for (size_t i = 0; i < COUNT(names); i++)
		if (find(names[i]) == NULL)
			fail_msg("%s is not taken out", names[i]);
}

TEST(values_take_the_places_of_others)
{
	static const struct variables values = { .item = { { "ABSENT", NULL, "" }, { "SHORT", NULL, "" }, { "RANK", "3", "" },
	                                                   { "LONGEST", NULL, "" } }, .count = 4 };
	char **environment = ENVIRONMENT(V("RANK=absent") V("SHORT=1") V("LONGEST=123456789") V("OTHER=x"));
	struct room room;

	room_find(&room, environment, &values);
	assert_int_equal(room.count, 2);
	assert_true(room_put(&room, environment, "RANK", "3"));
	/* Nothing says how long the place is. */
	assert_false(room_put(&room, environment, "RANK", "10"));
	assert_string_equal(environment_get(environment, "RANK"), "3");
	assert_true(room_put(&room, environment, "WORLD_SIZE", "12345"));
	assert_string_equal(environment[3], "WORLD_SIZE=12345");
	assert_string_equal(room.name[1], "LONGEST");
	assert_null(room.text[1]);
	/* It is in the environment now, and no place of its own. */
	assert_true(room_put(&room, environment, "WORLD_SIZE", "4"));
	assert_false(room_put(&room, environment, "AB", "12345"));
	assert_string_equal(environment[2], "SHORT=1");
	assert_true(room_put(&room, environment, "AB", "1234"));
	assert_string_equal(environment[2], "AB=1234");
	assert_false(room_put(&room, environment, "X", ""));
	assert_string_equal(environment[1], "RANK=3");
	assert_string_equal(environment[3], "WORLD_SIZE=4");
	assert_string_equal(environment[4], "OTHER=x");
}
