/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/variables and daemon: what a task gets. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "spank/launch/container.h"
#include "spank/launch/variables.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

static const struct variable *find(const struct variables *variables, const char *name)
{
	for (int i = 0; i < variables->count; i++)
		if (strcmp(variables->item[i].name, name) == 0)
			return &variables->item[i];
	return NULL;
}

static void expect(const struct variables *variables, const char *name, const char *value)
{
	const struct variable *variable = find(variables, name);

	if (variable == NULL || variable->value == NULL)
		fail_msg("%s is not set", name);
	else if (strcmp(variable->value, value) != 0)
		fail_msg("%s is '%s', not '%s'", name, variable->value, value);
}

/* Taken out, or left to the caller's own. */
static void expect_no_value(const struct variables *variables, const char *name)
{
	const struct variable *variable = find(variables, name);

	if (variable != NULL && variable->value != NULL)
		fail_msg("%s is set to '%s'", name, variable->value);
}

TEST(ranks_are_given_for_every_framework)
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
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "", &identity, &with);
	for (size_t i = 0; i < COUNT(expected); i++)
		expect(&variables, expected[i][0], expected[i][1]);
	for (int i = 0; i < variables.count; i++)
		assert_non_null(variables.item[i].source);
}

TEST(stale_variables_are_taken_out)
{
	static const char *const stale[] = { "PET_NNODES", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT",
		                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
		                             "ROLE_RANK", "GROUP_WORLD_SIZE", "DDP_LOCAL_DEVICE",
		                             "SLURM_DDP_KEY", "SLURM_DDP_FIRST_HOST",
		                             "SLURM_DDP_RELAY" };
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "", &identity, &with);
	for (size_t i = 0; i < COUNT(stale); i++) {
		const struct variable *variable = find(&variables, stale[i]);
		if (variable == NULL || variable->value != NULL)
			fail_msg("%s is not taken out", stale[i]);
	}
}

TEST(absent_page_does_not_leave_a_stale_one)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.progress_fd = -1;
	build(&variables, "", &identity, &with);
	assert_non_null(find(&variables, "DDP_PROGRESS_FD"));
	assert_null(find(&variables, "DDP_PROGRESS_FD")->value);
}

TEST(step_without_a_key_is_refused)
{
	static const struct { const char *key, *named; } keys[] = {
		{ NULL, "missing" }, { "", "not what it made" }, { &TASK_KEY[1], "not what it made" },
		{ "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
		{ "000112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
	};
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	struct settings settings;

	settings_init(&settings);
	for (size_t i = 0; i < COUNT(keys); i++) {
		struct error error = { "" };
		with.key = keys[i].key;
		assert_false(environment_build(&variables, &identity, &settings, &with, &error));
		assert_non_null(strstr(error.text, keys[i].named));
	}
}

TEST(watch_names_nccls_plugin)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.nccl_profiler = "/usr/lib/slurm-ddp/libnccl-profiler-ddp.so";
	build(&variables, "watch", &identity, &with);
	expect(&variables, "NCCL_PROFILER_PLUGIN", "/usr/lib/slurm-ddp/libnccl-profiler-ddp.so");
	build(&variables, "watch=/opt/p.so", &identity, &with);
	expect(&variables, "NCCL_PROFILER_PLUGIN", "/opt/p.so");
	with.progress_fd = -1; /* no page to write to */
	build(&variables, "watch", &identity, &with);
	assert_null(find(&variables, "NCCL_PROFILER_PLUGIN"));
	with = extras(ENVIRONMENT((char[]){ "NCCL_PROFILER_PLUGIN=mine" },));
	build(&variables, "watch", &identity, &with);
	assert_null(find(&variables, "NCCL_PROFILER_PLUGIN"));
}

TEST(python_adds_a_folder_to_the_users)
{
	static struct variables variables;
	static char much[4000] = "PYTHONPATH=/";
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.python = "/usr/lib/slurm-ddp/python";
	build(&variables, "python", &identity, &with);
	expect(&variables, "PYTHONPATH", "/usr/lib/slurm-ddp/python/site");
	expect(&variables, "DDP_PYTHON", "yes");
	/* A step that a task starts gets the user's list, in which the folder does nothing. */
	assert_null(strstr(find(&variables, "DDP_DERIVED")->value, "PYTHONPATH"));
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=/mine:/too" },));
	build(&variables, "python=/opt/p", &identity, &with);
	expect(&variables, "PYTHONPATH", "/opt/p/site:/mine:/too");
	build(&variables, "timeout=5", &identity, &with);
	assert_null(find(&variables, "PYTHONPATH"));
	assert_null(find(&variables, "DDP_PYTHON"));
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=" },));
	build(&variables, "python=/opt/p", &identity, &with);
	expect(&variables, "PYTHONPATH", "/opt/p/site");
	with = extras(ENVIRONMENT((char[]){ "PYTHONPATH=/opt/p/site:/mine" },));
	build(&variables, "python=/opt/p", &identity, &with);
	assert_null(find(&variables, "PYTHONPATH"));
	memset(much + strlen(much), 'p', sizeof(much) - strlen(much) - 1);
	with = extras(ENVIRONMENT(much,));
	build(&variables, "python=/opt/p", &identity, &with);
	assert_null(find(&variables, "PYTHONPATH"));
	environment_leave_step(&variables, ENVIRONMENT(V("DDP_STEP_ID=1") V("DDP_PYTHON=yes") V("DDP_DERIVED=DDP_PYTHON=yes")
	                                               V("PYTHONPATH=/opt/p/site:/mine")));
	assert_null(find(&variables, "PYTHONPATH"));
	assert_non_null(find(&variables, "DDP_PYTHON"));
}

TEST(nccl_net_names_nccls_network)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.nccl_net = "/usr/lib/slurm-ddp/libnccl-net-ddpucx.so";
	build(&variables, "", &identity, &with);
	assert_null(find(&variables, "NCCL_NET_PLUGIN"));
	build(&variables, "nccl-net", &identity, &with);
	expect(&variables, "NCCL_NET_PLUGIN", "/usr/lib/slurm-ddp/libnccl-net-ddpucx.so");
	build(&variables, "nccl-net=/opt/p.so", &identity, &with);
	expect(&variables, "NCCL_NET_PLUGIN", "/opt/p.so");
	with = extras(ENVIRONMENT((char[]){ "NCCL_NET_PLUGIN=none" },));
	build(&variables, "nccl-net", &identity, &with);
	assert_null(find(&variables, "NCCL_NET_PLUGIN"));
}

TEST(nothing_of_the_transports_is_touched)
{
	static const char *const prefixes[] = { "UCX_", "NCCL_", "SLURM_PMIX", "PMIX_", "SLURM_PROCID",
		                                "SLURM_LOCALID", "CUDA_" };
	static const char *const lists[] = { "", "launcher", "verbose,timeout=5,trace=/t,bucket-mb=1" };
	static struct variables variables;

	for (size_t l = 0; l < COUNT(lists); l++) {
		struct identity identity = task();
		struct task_extras with = extras(ENVIRONMENT());
		identity.world_size = identity.node_count = 4;
		identity.local_world_size = 1;
		build(&variables, lists[l], &identity, &with);
		for (int i = 0; i < variables.count; i++)
			for (size_t p = 0; p < COUNT(prefixes); p++)
				assert_int_not_equal(strncmp(variables.item[i].name, prefixes[p],
				                             strlen(prefixes[p])), 0);
	}
}

TEST(keys_of_the_library_pass_through)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	build(&variables, "timeout=90,silence=7,bucket-mb=0.5,trace=/scratch/t,on-failure=continue", &identity, &with);
	expect(&variables, "DDP_TIMEOUT", "90");
	expect(&variables, "DDP_SILENCE", "7");
	expect(&variables, "DDP_BUCKET_MB", "0.5");
	expect(&variables, "DDP_TRACE_DIR", "/scratch/t");
	expect(&variables, "DDP_ON_FAILURE", "continue");
	build(&variables, "", &identity, &with);
	assert_null(find(&variables, "DDP_TIMEOUT"));
	assert_null(find(&variables, "DDP_SILENCE"));
	assert_null(find(&variables, "DDP_BUCKET_MB"));
	assert_null(find(&variables, "DDP_TRACE_DIR"));
}

TEST(threads_follow_omp)
{
	static const struct { const char *list; bool caller; uint32_t cpus; const char *threads; } cases[] = {
		{ "", false, 4, "4" }, { "", true, 4, NULL }, { "", false, 0, NULL },
		{ "omp=cpus", false, 8, "8" }, { "omp=cpus", true, 8, "8" },
		{ "omp=1", false, 8, "1" }, { "omp=1", true, 8, "1" },
		{ "omp=keep", false, 8, NULL }, { "omp=keep", true, 8, NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		static struct variables variables;
		struct identity identity = task();
		char **environment = cases[i].caller ? ENVIRONMENT(V("OMP_NUM_THREADS=64")) : ENVIRONMENT();
		struct task_extras with = extras(environment);
		with.cpus = cases[i].cpus;
		with.user_threads = cases[i].caller ? "64" : NULL;
		build(&variables, cases[i].list, &identity, &with);
		if (cases[i].threads != NULL)
			expect(&variables, "OMP_NUM_THREADS", cases[i].threads);
		else
			assert_null(find(&variables, "OMP_NUM_THREADS"));
	}
}

TEST(threads_of_a_container_are_nobodys)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=77")));

	build(&variables, "", &identity, &with);
	expect(&variables, "OMP_NUM_THREADS", "4");
	with.user_threads = "5";
	build(&variables, "", &identity, &with);
	expect(&variables, "OMP_NUM_THREADS", "5");
	build(&variables, "omp=keep", &identity, &with);
	assert_null(find(&variables, "OMP_NUM_THREADS"));
}

TEST(cpus_are_the_least_that_a_task_is_given)
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

TEST(derived_values_are_told_from_the_users)
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
	static struct variables variables;

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct identity identity = task();
		char **environment = cases[i].caller
			? ENVIRONMENT(V("OMP_NUM_THREADS=77") V("DDP_TIMEOUT=90") V("NCCL_NET_PLUGIN=none")
			              V("NCCL_PROFILER_PLUGIN=mine")) : ENVIRONMENT();
		struct task_extras with = extras(environment);
		/* A container's plugin has set 77. */
		with.user_threads = cases[i].caller ? "4" : NULL;
		build(&variables, cases[i].list, &identity, &with);
		if (cases[i].derived != NULL)
			expect(&variables, "DDP_DERIVED", cases[i].derived);
		else
			expect_no_value(&variables, "DDP_DERIVED");
	}
}

TEST(jax_is_told_of_devices_that_are_the_tasks_own)
{
	static const struct { struct gpu_view gpu; bool caller; const char *devices; } cases[] = {
		{ { .visible = 0, .device = -1 }, false, NULL }, { { .visible = 4, .device = 1 }, false, NULL },
		{ { .visible = 2, .binding = GPU_OVERLAP, .device = -1 }, false, NULL },
		{ { .visible = 1, .binding = GPU_OWN }, false, "0" },
		{ { .visible = 3, .binding = GPU_OWN }, false, "0,1,2" },
		{ { .visible = 1, .binding = GPU_OWN }, true, NULL },
	};
	static struct variables variables;

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct identity identity = task();
		char **environment = cases[i].caller ? ENVIRONMENT(V("JAX_LOCAL_DEVICE_IDS=5")) : ENVIRONMENT();
		struct task_extras with = extras(environment);
		with.gpu = cases[i].gpu;
		build(&variables, "", &identity, &with);
		if (cases[i].devices != NULL)
			expect(&variables, "JAX_LOCAL_DEVICE_IDS", cases[i].devices);
		else
			assert_null(find(&variables, "JAX_LOCAL_DEVICE_IDS"));
	}
}

TEST(address_of_version_6_gets_brackets_in_a_pair)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.master_address = "2001:db8::1";
	build(&variables, "", &identity, &with);
	expect(&variables, "MASTER_ADDR", "2001:db8::1");
	expect(&variables, "JAX_COORDINATOR_ADDRESS", "[2001:db8::1]:20001");
}

/* The only one of its node, as a launcher is. */
static struct identity lone_task(void)
{
	struct identity identity = task();

	identity.rank = 1;
	identity.world_size = identity.node_count = 2;
	identity.local_rank = 0;
	identity.local_world_size = 1;
	return identity;
}

TEST(launcher_gives_pet_and_no_rank)
{
	static const char *const absent[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
		                              "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
		                              "JAX_PROCESS_ID", "OMP_NUM_THREADS" };
	static struct variables variables;
	struct identity identity = lone_task();
	struct task_extras with = extras(ENVIRONMENT());

	with.gpu.visible = 8;
	build(&variables, "launcher", &identity, &with);
	expect(&variables, "PET_NNODES", "2");
	expect(&variables, "PET_NODE_RANK", "1");
	expect(&variables, "PET_MASTER_ADDR", "n0");
	expect(&variables, "PET_MASTER_PORT", "20001");
	expect(&variables, "PET_RDZV_ID", "7.2.1");
	expect(&variables, "PET_NPROC_PER_NODE", "8");
	expect(&variables, "DDP_KEY", STEP_KEY TASK_KEY);
	for (size_t i = 0; i < COUNT(absent); i++)
		expect_no_value(&variables, absent[i]);
	assert_non_null(find(&variables, "RANK"));
	with.gpu.visible = 0;
	build(&variables, "launcher", &identity, &with);
	expect_no_value(&variables, "PET_NPROC_PER_NODE");
}

TEST(torchrun_finds_its_world_without_launcher)
{
	static struct variables variables;
	struct identity identity = lone_task();
	struct task_extras with = extras(ENVIRONMENT());

	with.gpu.visible = 8;
	build(&variables, "", &identity, &with);
	expect(&variables, "RANK", "1");
	expect(&variables, "PET_NNODES", "2");
	expect(&variables, "PET_NODE_RANK", "1");
	expect(&variables, "PET_MASTER_ADDR", "n0");
	expect(&variables, "PET_MASTER_PORT", "20001");
	expect(&variables, "PET_NPROC_PER_NODE", "8");
	expect_no_value(&variables, "DDP_LOCAL_DEVICE");
	/* Not where tasks are ranks: of torchruns there would be several to a node. */
	identity.world_size = 4;
	identity.local_world_size = 2;
	build(&variables, "", &identity, &with);
	expect_no_value(&variables, "PET_NNODES");
	identity.local_world_size = 1;
	identity.world_size = 3;
	build(&variables, "", &identity, &with);
	expect_no_value(&variables, "PET_NNODES");
}

TEST(launcher_wants_one_task_per_node)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	struct settings settings;
	struct error error = { "" };

	settings_init(&settings);
	settings.launcher = true;
	assert_false(environment_build(&variables, &identity, &settings, &with, &error));
	assert_non_null(strstr(error.text, "4 tasks on 2 nodes"));
	assert_non_null(strstr(error.text, "--ntasks-per-node=1"));
}

TEST(device_is_given_when_there_is_one)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	with.gpu = (struct gpu_view){ .visible = 1, .binding = GPU_OWN };
	build(&variables, "", &identity, &with);
	expect(&variables, "LOCAL_RANK", "1");
	expect(&variables, "DDP_LOCAL_DEVICE", "0");
}

TEST(values_that_do_not_fit_are_an_error)
{
	static struct variables variables;
	static char long_address[VARIABLES_TEXT_MAX];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
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
	static struct variables variables;

	environment_clear(&variables);
	assert_false(variables.overflow);
	for (int i = 0; i < variables.count; i++)
		assert_null(variables.item[i].value);
	for (size_t i = 0; i < COUNT(names); i++)
		if (find(&variables, names[i]) == NULL)
			fail_msg("%s is not taken out", names[i]);
}

TEST(values_take_the_places_of_others)
{
	static const struct variables variables = { .item = { { "ABSENT", NULL, "" }, { "SHORT", NULL, "" }, { "RANK", "3", "" },
	                                                      { "LONGEST", NULL, "" } }, .count = 4 };
	char **environment = ENVIRONMENT(V("RANK=absent") V("SHORT=1") V("LONGEST=123456789") V("OTHER=x"));
	struct room room;

	room_find(&room, environment, &variables);
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
