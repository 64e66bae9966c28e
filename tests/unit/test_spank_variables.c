/* spank/environment, gpu and check: what a task gets, and how it is shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "spank/launch/check.h"
#include "spank/launch/daemon.h"
#include "spank/launch/table.h"
#include "spank/launch/variables.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ENVIRONMENT(...) ((char *[]){ (char[]){ "PATH=/bin" }, __VA_ARGS__ NULL })
#define V(text) (char[]){ text },

static const char key[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static struct identity task(void)
{
	return (struct identity){ .job_id = 7, .step_id = 2, .restart_count = 1, .rank = 3,
		                  .world_size = 4, .local_rank = 1, .local_world_size = 2, .node_rank = 1,
		                  .node_count = 2, .node_name = "n1", .master_node = "n0",
		                  .master_port = 20001, .node_source = "the list",
		                  .port_source = "reserved by Slurm" };
}

static struct task_extras extras(char *const *environment)
{
	return (struct task_extras){ .master_address = "n0", .version = "0.1.0", .key = key,
		                     .progress_fd = 200, .gpu = { .device = -1 }, .cpus = 4,
		                     .environment = environment };
}

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

static void build(struct variables *variables, const char *list, const struct identity *identity,
                  const struct task_extras *with)
{
	struct settings settings;
	struct fault fault = { "" };

	settings_init(&settings);
	if (!options_parse(&settings, list, 0, &fault) ||
	    !environment_build(variables, identity, &settings, with, &fault))
		fail_msg("%s", fault.text);
}

static void ranks_are_given_for_every_framework(void **state)
{
	static const char *const expected[][2] = {
		{ "RANK", "3" }, { "WORLD_SIZE", "4" }, { "LOCAL_RANK", "1" }, { "LOCAL_WORLD_SIZE", "2" },
		{ "NODE_RANK", "1" }, { "NNODES", "2" }, { "GROUP_RANK", "1" }, { "MASTER_ADDR", "n0" },
		{ "MASTER_PORT", "20001" }, { "JAX_COORDINATOR_ADDRESS", "n0:20001" },
		{ "JAX_NUM_PROCESSES", "4" }, { "JAX_PROCESS_ID", "3" }, { "DDP_PLUGIN_VERSION", "0.1.0" },
		{ "DDP_REQUESTED", "7.2" }, { "DDP_JOB_ID", "7" }, { "DDP_STEP_ID", "2" },
		{ "DDP_RESTART_COUNT", "1" }, { "DDP_NODE_NAME", "n1" }, { "DDP_ON_FAILURE", "kill" },
		{ "DDP_KEY", key }, { "DDP_PROGRESS_FD", "200" }, { "OMP_NUM_THREADS", "4" },
	};
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	build(&variables, "", &identity, &with);
	for (size_t i = 0; i < COUNT(expected); i++)
		expect(&variables, expected[i][0], expected[i][1]);
	for (int i = 0; i < variables.count; i++)
		assert_non_null(variables.item[i].source);
}

static void stale_variables_are_taken_out(void **state)
{
	static const char *const stale[] = { "PET_NNODES", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT",
		                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
		                             "ROLE_RANK", "GROUP_WORLD_SIZE", "DDP_LOCAL_DEVICE",
		                             "SLURM_DDP_KEY", "SLURM_DDP_FIRST_HOST",
		                             "SLURM_DDP_RELAY" };
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	build(&variables, "", &identity, &with);
	for (size_t i = 0; i < COUNT(stale); i++) {
		const struct variable *variable = find(&variables, stale[i]);
		if (variable == NULL || variable->value != NULL)
			fail_msg("%s is not taken out", stale[i]);
	}
}

static void absent_page_does_not_leave_a_stale_one(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	with.progress_fd = -1;
	build(&variables, "", &identity, &with);
	assert_non_null(find(&variables, "DDP_PROGRESS_FD"));
	assert_null(find(&variables, "DDP_PROGRESS_FD")->value);
}

static void step_without_a_key_is_refused(void **state)
{
	static const struct { const char *key, *named; } keys[] = {
		{ NULL, "missing" }, { "", "not what it made" }, { key + 1, "not what it made" },
		{ "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
		{ "000112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "not what" },
	};
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	struct settings settings;

	(void)state;
	settings_init(&settings);
	for (size_t i = 0; i < COUNT(keys); i++) {
		struct fault fault = { "" };
		with.key = keys[i].key;
		assert_false(environment_build(&variables, &identity, &settings, &with, &fault));
		assert_non_null(strstr(fault.text, keys[i].named));
	}
}

static void nothing_of_the_transports_is_touched(void **state)
{
	static const char *const prefixes[] = { "UCX_", "NCCL_", "SLURM_PMIX", "PMIX_", "SLURM_PROCID",
		                                "SLURM_LOCALID", "CUDA_" };
	static const char *const lists[] = { "", "launcher", "verbose,timeout=5,trace=/t,bucket-mb=1" };
	static struct variables variables;

	(void)state;
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

static void keys_of_the_library_pass_through(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	build(&variables, "timeout=90,bucket-mb=0.5,trace=/scratch/t,on-failure=continue", &identity, &with);
	expect(&variables, "DDP_TIMEOUT", "90");
	expect(&variables, "DDP_BUCKET_MB", "0.5");
	expect(&variables, "DDP_TRACE_DIR", "/scratch/t");
	expect(&variables, "DDP_ON_FAILURE", "continue");
	build(&variables, "", &identity, &with);
	assert_null(find(&variables, "DDP_TIMEOUT"));
	assert_null(find(&variables, "DDP_BUCKET_MB"));
	assert_null(find(&variables, "DDP_TRACE_DIR"));
}

static void threads_follow_omp(void **state)
{
	static const struct { const char *list; bool caller; uint32_t cpus; const char *threads; } cases[] = {
		{ "", false, 4, "4" }, { "", true, 4, NULL }, { "", false, 0, NULL },
		{ "omp=cpus", false, 8, "8" }, { "omp=cpus", true, 8, "8" },
		{ "omp=1", false, 8, "1" }, { "omp=1", true, 8, "1" },
		{ "omp=keep", false, 8, NULL }, { "omp=keep", true, 8, NULL },
	};

	(void)state;
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

static void threads_of_a_container_are_nobodys(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=77")));

	(void)state;
	build(&variables, "", &identity, &with);
	expect(&variables, "OMP_NUM_THREADS", "4");
	with.user_threads = "5";
	build(&variables, "", &identity, &with);
	expect(&variables, "OMP_NUM_THREADS", "5");
	build(&variables, "omp=keep", &identity, &with);
	assert_null(find(&variables, "OMP_NUM_THREADS"));
}

static void cpus_are_the_least_that_a_task_is_given(void **state)
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		if (cpus_of_task(&cases[i].facts) != cases[i].cpus)
			fail_msg("%s: %u, not %u", cases[i].what, cpus_of_task(&cases[i].facts), cases[i].cpus);
}

static void jax_is_told_of_devices_that_are_the_tasks_own(void **state)
{
	static const struct { struct gpu_view gpu; bool caller; const char *devices; } cases[] = {
		{ { .visible = 0, .device = -1 }, false, NULL }, { { .visible = 4, .device = 1 }, false, NULL },
		{ { .visible = 2, .binding = GPU_OVERLAP, .device = -1 }, false, NULL },
		{ { .visible = 1, .binding = GPU_OWN }, false, "0" },
		{ { .visible = 3, .binding = GPU_OWN }, false, "0,1,2" },
		{ { .visible = 1, .binding = GPU_OWN }, true, NULL },
	};
	static struct variables variables;

	(void)state;
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

static void address_of_version_6_gets_brackets_in_a_pair(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	with.master_address = "2001:db8::1";
	build(&variables, "", &identity, &with);
	expect(&variables, "MASTER_ADDR", "2001:db8::1");
	expect(&variables, "JAX_COORDINATOR_ADDRESS", "[2001:db8::1]:20001");
}

static void launcher_gives_pet_and_no_rank(void **state)
{
	static const char *const absent[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
		                              "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
		                              "JAX_PROCESS_ID", "OMP_NUM_THREADS" };
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	identity.rank = 1;
	identity.world_size = identity.node_count = 2;
	identity.local_rank = 0;
	identity.local_world_size = 1;
	with.gpu.visible = 8;
	build(&variables, "launcher", &identity, &with);
	expect(&variables, "PET_NNODES", "2");
	expect(&variables, "PET_NODE_RANK", "1");
	expect(&variables, "PET_MASTER_ADDR", "n0");
	expect(&variables, "PET_MASTER_PORT", "20001");
	expect(&variables, "PET_RDZV_ID", "7.2.1");
	expect(&variables, "PET_NPROC_PER_NODE", "8");
	expect(&variables, "DDP_KEY", key);
	for (size_t i = 0; i < COUNT(absent); i++)
		expect_no_value(&variables, absent[i]);
	assert_non_null(find(&variables, "RANK"));
	with.gpu.visible = 0;
	build(&variables, "launcher", &identity, &with);
	expect_no_value(&variables, "PET_NPROC_PER_NODE");
}

static void torchrun_finds_its_world_without_launcher(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	identity.rank = 1;
	identity.world_size = identity.node_count = 2;
	identity.local_rank = 0;
	identity.local_world_size = 1;
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

static void launcher_wants_one_task_per_node(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	struct settings settings;
	struct fault fault = { "" };

	(void)state;
	settings_init(&settings);
	settings.launcher = true;
	assert_false(environment_build(&variables, &identity, &settings, &with, &fault));
	assert_non_null(strstr(fault.text, "4 tasks on 2 nodes"));
	assert_non_null(strstr(fault.text, "--ntasks-per-node=1"));
}

static void devices_are_found_as_slurm_binds_them(void **state)
{
	static const struct {
		const char *variables[4];
		uint32_t local_rank, local_world_size, visible;
		enum gpu_binding binding;
		int device;
		enum gpu_verdict verdict;
	} cases[] = {
		{ { NULL }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=NoDevFiles" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=-1" }, 0, 4, 0, GPU_COMMON, -1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 2, 4, 4, GPU_COMMON, 2, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 3, 4, 4, GPU_COMMON, 3, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=GPU-aa,GPU-bb" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0" }, 0, 1, 1, GPU_COMMON, 0, GPU_FINE },
		/* The only task of the node may be a torchrun, with a rank on each. */
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 0, 1, 4, GPU_COMMON, -1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0,1,2,3" }, 1, 2, 4, GPU_COMMON, 1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0,1" }, 3, 4, 2, GPU_COMMON, 1, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0" }, 1, 2, 1, GPU_COMMON, 0, GPU_MISMATCH },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPUS_PER_TASK=1" }, 3, 4, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_GPUS_PER_TASK=2" }, 1, 2, 2, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURMD_TRES_BIND=gpu:single:1" }, 1, 2, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURMD_TRES_BIND=gpu:none" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0,1", "SLURM_TRES_BIND=nic:closest" }, 1, 2, 2, GPU_COMMON, 1, GPU_FINE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPU_BIND=closest" }, 1, 2, 1, GPU_OWN, 0, GPU_NOTE },
		{ { "CUDA_VISIBLE_DEVICES=0", "SLURM_GPU_BIND=none" }, 1, 2, 1, GPU_COMMON, 0, GPU_MISMATCH },
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char *environment[5] = { NULL };
		struct fault sentence = { "" };
		for (int v = 0; v < 4 && cases[i].variables[v] != NULL; v++)
			environment[v] = (char *)(uintptr_t)cases[i].variables[v];
		struct gpu_view view = gpu_look(environment, cases[i].local_rank, cases[i].local_world_size);
		if (view.visible != cases[i].visible || view.binding != cases[i].binding ||
		    view.device != cases[i].device ||
		    gpu_judge(&view, cases[i].local_world_size, GPU_COMMON, &sentence) != cases[i].verdict)
			fail_msg("case %zu: %u visible, binding %d, device %d, '%s'", i, view.visible, view.binding,
			         view.device, sentence.text);
		assert_int_equal(sentence.text[0] == '\0', cases[i].verdict == GPU_FINE);
		assert_int_equal(gpu_judge(&view, cases[i].local_world_size, GPU_OWN, &sentence), GPU_FINE);
	}
}

static void device_is_given_when_there_is_one(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	with.gpu = (struct gpu_view){ .visible = 1, .binding = GPU_OWN };
	build(&variables, "", &identity, &with);
	expect(&variables, "LOCAL_RANK", "1");
	expect(&variables, "DDP_LOCAL_DEVICE", "0");
}

static void values_that_do_not_fit_are_an_error(void **state)
{
	static struct variables variables;
	static char long_address[VARIABLES_TEXT_MAX];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	struct settings settings;
	struct fault fault = { "" };

	(void)state;
	settings_init(&settings);
	memset(long_address, 'a', sizeof(long_address) - 1);
	with.master_address = long_address;
	assert_false(environment_build(&variables, &identity, &settings, &with, &fault));
	assert_non_null(strstr(fault.text, "longer than"));
}

static void check_prints_a_row_for_the_task(void **state)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  omp 4  gpus 0\n");
	assert_false(check_row(&identity, &with, &variables, text, 16));
}

/* slurmstepd writes the row into slurmd's log when verbose is on. */
static void check_row_is_one_printable_line(void **state)
{
	static struct variables variables;
	char text[256];
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT(V("OMP_NUM_THREADS=1\nslurmd: error: \033[2Jlies, and "
	                                               "more of them than a row has room for")));

	(void)state;
	with.user_threads = environment_get(with.environment, "OMP_NUM_THREADS");
	build(&variables, "", &identity, &with);
	assert_true(check_row(&identity, &with, &variables, text, sizeof(text)));
	assert_string_equal(text, "rank 3/4  local 1/2  node 1/2 n1  master n0:20001  "
	                    "omp 1?slurmd: error: ?[2Jlies, and more of t  gpus 0\n");
}

static void check_prints_valid_json_for_each_variable(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());

	(void)state;
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

static void table_is_in_order_of_node_and_rank(void **state)
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		snprintf(text, sizeof(text), "%s", cases[i].text);
		assert_true(table_sort(text));
		assert_string_equal(text, cases[i].sorted);
	}
}

static void check_says_when_there_is_no_room(void **state)
{
	static struct variables variables;
	struct identity identity = task();
	struct task_extras with = extras(ENVIRONMENT());
	const struct variable rank = { "RANK", "3", "the step" };

	(void)state;
	build(&variables, "", &identity, &with);
	for (size_t bytes = 1; bytes < 60; bytes++) {
		char text[64];
		memset(text, 'x', sizeof(text));
		assert_false(check_json(&identity, &rank, text, bytes));
		assert_true(memchr(text, '\0', bytes) != NULL);
	}
}

static void launchers_daemons_are_known_by_name(void **state)
{
	static const struct { const char *command; bool daemon; } cases[] = {
		{ "orted", true }, { "/usr/bin/orted", true }, { "prted", true }, { "./prted", true },
		{ "hydra_pmi_proxy", true }, { "/opt/mpi/bin/hydra_bstrap_proxy", true }, { "pmi_proxy", true },
		{ "", false }, { "/", false }, { "orted/", false }, { "orted2", false }, { "my-orted", false },
		{ "hydra", false }, { "hydra_train.py", false }, { "python", false }, { "/opt/orted/train", false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char *words[] = { (char *)(uintptr_t)cases[i].command, (char[]){ "orted" }, NULL };
		if (daemon_is_launched(2, words) != cases[i].daemon)
			fail_msg("'%s'", cases[i].command);
	}
	assert_false(daemon_is_launched(0, NULL));
}

static void nothing_is_left_to_a_daemon(void **state)
{
	static const char *const names[] = { "RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "DDP_KEY",
		                             "DDP_REQUESTED", "DDP_PROGRESS_FD", "SLURM_DDP_KEY",
		                             "SLURM_DDP_RELAY" };
	static struct variables variables;

	(void)state;
	environment_clear(&variables);
	assert_false(variables.overflow);
	for (int i = 0; i < variables.count; i++)
		assert_null(variables.item[i].value);
	for (size_t i = 0; i < COUNT(names); i++)
		if (find(&variables, names[i]) == NULL)
			fail_msg("%s is not taken out", names[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_are_given_for_every_framework),
		cmocka_unit_test(stale_variables_are_taken_out),
		cmocka_unit_test(absent_page_does_not_leave_a_stale_one),
		cmocka_unit_test(step_without_a_key_is_refused),
		cmocka_unit_test(nothing_of_the_transports_is_touched),
		cmocka_unit_test(keys_of_the_library_pass_through),
		cmocka_unit_test(threads_follow_omp),
		cmocka_unit_test(threads_of_a_container_are_nobodys),
		cmocka_unit_test(cpus_are_the_least_that_a_task_is_given),
		cmocka_unit_test(jax_is_told_of_devices_that_are_the_tasks_own),
		cmocka_unit_test(address_of_version_6_gets_brackets_in_a_pair),
		cmocka_unit_test(launcher_gives_pet_and_no_rank),
		cmocka_unit_test(torchrun_finds_its_world_without_launcher),
		cmocka_unit_test(launcher_wants_one_task_per_node),
		cmocka_unit_test(devices_are_found_as_slurm_binds_them),
		cmocka_unit_test(device_is_given_when_there_is_one),
		cmocka_unit_test(values_that_do_not_fit_are_an_error),
		cmocka_unit_test(launchers_daemons_are_known_by_name),
		cmocka_unit_test(nothing_is_left_to_a_daemon),
		cmocka_unit_test(check_prints_a_row_for_the_task),
		cmocka_unit_test(check_row_is_one_printable_line),
		cmocka_unit_test(check_prints_valid_json_for_each_variable),
		cmocka_unit_test(table_is_in_order_of_node_and_rank),
		cmocka_unit_test(check_says_when_there_is_no_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
