/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan bare; all: unit tsan no-ucx no-pmix no-blas */
/* job: who a process is, from tables of environments. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/job.h"
#include "tests/support/test.h"

enum { VARIABLES = 32 };

#define KEY "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100"
#define FOUR "RANK=2", "WORLD_SIZE=4"
#define MASTER "MASTER_ADDR=n0", "MASTER_PORT=20001"
/* What the plugin gives the third of four tasks on two nodes. */
#define PLUGIN "DDP_PLUGIN_VERSION=0.2.0", FOUR, "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", \
	"NODE_RANK=1", "NNODES=2", MASTER, "DDP_KEY=step:" KEY, "DDP_JOB_ID=77", "DDP_STEP_ID=1"
/* What Slurm itself gives it. */
#define STEP "SLURM_JOB_ID=77", "SLURM_STEP_ID=1", "SLURM_PROCID=2", \
	"SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=4", "SLURMD_NODENAME=n1"
#define BATCH "SLURM_JOB_ID=77", "SLURM_PROCID=0"

/* Later entries take the place of earlier ones; "NAME" without '=' unsets. */
struct example {
	const char *what;
	const char *variables[VARIABLES];
	ddp_status status;
	const char *words; /* in the message */
	ddp_job job;       /* on success */
};

#define JOB(...) DDP_OK, NULL, { __VA_ARGS__ }
#define FAILS(words) DDP_ERR_JOB, words, { 0 }
#define UNKNOWN_LOCAL .local_rank = -1, .local_world_size = -1
#define UNKNOWN_NODE .node_rank = -1, .nnodes = -1
#define SINGLE .world_size = 1, .local_world_size = 1, .nnodes = 1, \
	.identity_source = DDP_SOURCE_SINGLE
#define ENVIRONMENT .identity_source = DDP_SOURCE_ENVIRONMENT
#define PLUGIN_JOB .world_size = 4, .local_rank = 0, .local_world_size = 2, \
	.node_rank = 1, .nnodes = 2, .master_addr = "n0", .master_port = 20001, .plugin = true, \
	.address_source = DDP_SOURCE_ENVIRONMENT, ENVIRONMENT, .job_id = 77, .step_id = 1

static const struct example examples[] = {
	/* nothing around */
	{ "empty", { NULL }, JOB(SINGLE) },
	{ "empty values are as good as none", { "RANK=", "WORLD_SIZE=" }, JOB(SINGLE) },
	{ "addresses alone make no rank", { MASTER }, JOB(SINGLE) },

	/* any launcher's */
	{ "rank and size only", { FOUR },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT) },
	{ "env:// of PyTorch", { FOUR, MASTER },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT,
	      .master_addr = "n0", .master_port = 20001, .address_source = DDP_SOURCE_ENVIRONMENT) },
	{ "torchrun", { FOUR, MASTER, "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
	                "GROUP_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=x" },
	  JOB(.rank = 2, .world_size = 4, .local_rank = 0, .local_world_size = 2, .node_rank = 1,
	      .nnodes = 2, ENVIRONMENT, .master_addr = "n0", .master_port = 20001,
	      .address_source = DDP_SOURCE_ENVIRONMENT) },
	{ "torchrun without GROUP_WORLD_SIZE", { FOUR, "GROUP_RANK=1" },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, .node_rank = 1, .nnodes = -1, ENVIRONMENT) },
	{ "nodes without this node's number", { FOUR, "NNODES=2" },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, .node_rank = -1, .nnodes = 2, ENVIRONMENT) },
	{ "a world of one by name", { "RANK=0", "WORLD_SIZE=1" },
	  JOB(.world_size = 1, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT) },
	{ "IPv6", { FOUR, "MASTER_ADDR=fe80::1%eth0", "MASTER_PORT=1" },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT,
	      .master_addr = "fe80::1%eth0", .master_port = 1,
	      .address_source = DDP_SOURCE_ENVIRONMENT) },

	/* incomplete */
	{ "no world size", { "RANK=2" }, FAILS("WORLD_SIZE is not set") },
	{ "no rank", { "WORLD_SIZE=2" }, FAILS("RANK is not set") },
	{ "local rank alone", { FOUR, "LOCAL_RANK=0" }, FAILS("LOCAL_WORLD_SIZE is not set") },
	{ "local size alone", { FOUR, "LOCAL_WORLD_SIZE=2" }, FAILS("LOCAL_RANK is not set") },
	{ "address alone", { FOUR, "MASTER_ADDR=n0" }, FAILS("MASTER_PORT is not set") },
	{ "port alone", { FOUR, "MASTER_PORT=1" }, FAILS("MASTER_ADDR is not set") },

	/* contradictory */
	{ "rank is size", { "RANK=4", "WORLD_SIZE=4" }, FAILS("RANK is 4, but WORLD_SIZE is 4") },
	{ "local rank is local size", { FOUR, "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2" },
	  FAILS("LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2") },
	{ "more local ranks than ranks", { FOUR, "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=5" },
	  FAILS("a number from 1 to 4") },
	{ "node is number of nodes", { FOUR, "NODE_RANK=2", "NNODES=2" },
	  FAILS("NODE_RANK is 2, but NNODES is 2") },
	{ "more nodes than ranks", { FOUR, "NODE_RANK=0", "NNODES=5" }, FAILS("NNODES is \"5\"") },
	{ "node beyond the ranks", { FOUR, "GROUP_RANK=4" }, FAILS("GROUP_RANK is \"4\"") },

	/* malformed */
	{ "host with a blank", { FOUR, "MASTER_ADDR=n 0", "MASTER_PORT=1" }, FAILS("no host name") },
	{ "host with a shell's bracket", { FOUR, "MASTER_ADDR=n[0-3]", "MASTER_PORT=1" },
	  FAILS("no host name") },
	{ "key too short", { FOUR, "DDP_KEY=00ff" }, FAILS("DDP_KEY has 4 characters") },
	{ "key too long", { FOUR, "DDP_KEY=" KEY "0" }, FAILS("DDP_KEY has 65 characters") },
	{ "key of a step, too short", { FOUR, "DDP_KEY=step:00ff" }, FAILS("DDP_KEY has 4 characters") },
	{ "key of other letters",
	  { FOUR, "DDP_KEY=g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff" },
	  FAILS("something else than hex digits") },

	/* the plugin */
	{ "plugin", { PLUGIN, STEP }, JOB(.rank = 2, PLUGIN_JOB) },
	{ "plugin with PMIx beside", { PLUGIN, STEP, "PMIX_NAMESPACE=s", "PMIX_RANK=2" },
	  JOB(.rank = 2, PLUGIN_JOB) },
	{ "plugin was requested", { PLUGIN, STEP, "DDP_REQUESTED=77.1" }, JOB(.rank = 2, PLUGIN_JOB) },
	{ "plugin, restarted", { PLUGIN, STEP, "DDP_RESTART_COUNT=3" },
	  JOB(.rank = 2, PLUGIN_JOB, .restart_count = 3) },
	{ "plugin without local rank", { PLUGIN, STEP, "LOCAL_RANK" }, FAILS("LOCAL_RANK is not set") },
	{ "plugin without local size", { PLUGIN, STEP, "LOCAL_WORLD_SIZE" },
	  FAILS("LOCAL_WORLD_SIZE is not set") },
	{ "plugin without node", { PLUGIN, STEP, "NODE_RANK" }, FAILS("NODE_RANK is not set") },
	{ "plugin without nodes", { PLUGIN, STEP, "NNODES" }, FAILS("NNODES is not set") },
	{ "plugin without address", { PLUGIN, STEP, "MASTER_ADDR", "MASTER_PORT" },
	  FAILS("MASTER_ADDR is not set") },
	{ "plugin without ranks", { PLUGIN, STEP, "RANK", "WORLD_SIZE" }, FAILS("has set no RANK") },
	{ "launcher mode without torchrun", { PLUGIN, STEP, "RANK", "WORLD_SIZE", "PET_NNODES=2" },
	  FAILS("through torchrun") },
	{ "a container's hook changed RANK", { PLUGIN, STEP, "RANK=3" },
	  FAILS("RANK is 3, but SLURM_PROCID is 2") },
	{ "torchrun below the plugin", { PLUGIN, STEP, "RANK=3", "TORCHELASTIC_RUN_ID=x" },
	  JOB(.rank = 3, PLUGIN_JOB) },
	{ "variables of another step", { PLUGIN, STEP, "SLURM_STEP_ID=2" },
	  FAILS("those of step 77.1, but this is step 77.2") },
	{ "variables of another job", { PLUGIN, STEP, "SLURM_JOB_ID=78" },
	  FAILS("those of step 77.1, but this is step 78.1") },
	{ "component of a heterogeneous job", { PLUGIN, STEP, "SLURM_JOB_ID=78", "SLURM_HET_SIZE=2" },
	  JOB(.rank = 2, PLUGIN_JOB) },

	/* requested, but absent */
	{ "plugin absent on this node", { STEP, "DDP_REQUESTED=77.1" },
	  FAILS("the plugin spank_ddp is absent on this node, n1") },
	{ "absent, although RANK was inherited", { STEP, FOUR, "DDP_REQUESTED=77.1" },
	  FAILS("the plugin spank_ddp is absent on this node") },
	{ "absent, although PMIx is there", { STEP, "DDP_REQUESTED=77.1", "PMIX_NAMESPACE=s",
	                                      "PMIX_RANK=2" },
	  FAILS("the plugin spank_ddp is absent on this node") },
	{ "requested for another step", { STEP, FOUR, "DDP_REQUESTED=77.0" },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT, .job_id = 77,
	      .step_id = 1) },
	{ "requested for a job with a like number", { STEP, FOUR, "DDP_REQUESTED=7.1" },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT, .job_id = 77,
	      .step_id = 1) },

	/* Slurm without the plugin */
	{ "one of several tasks", { STEP }, FAILS("srun --ddp, or with srun --mpi=pmix") },
	{ "the only task of a step", { STEP, "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0" },
	  JOB(SINGLE, .job_id = 77, .step_id = 1) },
	{ "ranks by a wrapper script", { STEP, FOUR, MASTER },
	  JOB(.rank = 2, .world_size = 4, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT, .job_id = 77,
	      .step_id = 1, .master_addr = "n0", .master_port = 20001,
	      .address_source = DDP_SOURCE_ENVIRONMENT) },
	{ "several ranks per task", { STEP, "RANK=6", "WORLD_SIZE=8" },
	  JOB(.rank = 6, .world_size = 8, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT, .job_id = 77,
	      .step_id = 1) },
	{ "a stale world of one", { STEP, "RANK=0", "WORLD_SIZE=1" },
	  FAILS("WORLD_SIZE is 1, but this step has 4 tasks") },
	{ "srun forgotten", { BATCH, "SLURM_NTASKS=4" }, FAILS("started without srun") },
	{ "srun forgotten, only nodes given", { BATCH, "SLURM_JOB_NUM_NODES=2" },
	  FAILS("this Slurm job has 2 tasks") },
	{ "srun forgotten, tasks per node given",
	  { BATCH, "SLURM_JOB_NUM_NODES=2", "SLURM_NTASKS_PER_NODE=4" },
	  FAILS("this Slurm job has 8 tasks") },
	{ "srun forgotten, batch step numbered", { BATCH, "SLURM_STEP_ID=4294967291", "SLURM_NTASKS=4" },
	  FAILS("started without srun") },
	{ "srun forgotten, batch step numbered as Slurm 26.05 does",
	  { BATCH, "SLURM_STEP_ID=-5", "SLURM_NTASKS=4" }, FAILS("started without srun") },
	{ "a step number that is none", { BATCH, "SLURM_STEP_ID=-2147483649" },
	  FAILS("SLURM_STEP_ID is \"-2147483649\"") },
	{ "srun forgotten, salloc's shell", { BATCH, "SLURM_STEP_ID=4294967290", "SLURM_NTASKS=4" },
	  FAILS("started without srun") },
	{ "srun forgotten, two components of one task", { BATCH, "SLURM_NTASKS=1", "SLURM_HET_SIZE=2" },
	  FAILS("2 components, but the program was started without srun") },
	{ "step of one component of two", { BATCH, "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_HET_SIZE=2" },
	  JOB(SINGLE, .job_id = 77) },
	{ "batch script of one task", { BATCH, "SLURM_NTASKS=1", "SLURM_RESTART_COUNT=2" },
	  JOB(SINGLE, .job_id = 77, .restart_count = 2) },
	{ "torchrun in a batch script", { BATCH, "SLURM_NTASKS=8", "RANK=1", "WORLD_SIZE=2" },
	  JOB(.rank = 1, .world_size = 2, UNKNOWN_LOCAL, UNKNOWN_NODE, ENVIRONMENT, .job_id = 77) },
	{ "task count is no number", { STEP, "SLURM_STEP_NUM_TASKS=1(x2)" },
	  FAILS("SLURM_STEP_NUM_TASKS is \"1(x2)\"") },
	{ "job id is no number", { "SLURM_JOB_ID=7x" }, FAILS("SLURM_JOB_ID is \"7x\"") },
};

static void apply(const char *const *variables)
{
	clearenv();
	for (int i = 0; i < VARIABLES && variables[i] != NULL; i++) {
		char *name = strdup(variables[i]);
		char *value = strchr(name, '=');
		if (value != NULL) {
			*value = '\0';
			setenv(name, value + 1, 1);
		} else {
			unsetenv(name);
		}
		free(name);
	}
}

static void check_job(const char *what, const ddp_job *job, const ddp_job *expected)
{
	if (job->rank != expected->rank || job->world_size != expected->world_size ||
	    job->local_rank != expected->local_rank ||
	    job->local_world_size != expected->local_world_size ||
	    job->node_rank != expected->node_rank || job->nnodes != expected->nnodes ||
	    strcmp(job->master_addr, expected->master_addr) != 0 ||
	    job->master_port != expected->master_port || job->plugin != expected->plugin ||
	    job->identity_source != expected->identity_source ||
	    job->address_source != expected->address_source || job->job_id != expected->job_id ||
	    job->step_id != expected->step_id || job->restart_count != expected->restart_count) {
		char text[2048];
		ddp_job_json(job, text, sizeof(text));
		fail_msg("%s: %s", what, text);
	}
	assert_int_equal(job->pid, getpid());
	assert_true(job->hostname[0] != '\0');
}

TEST(each_environment_gives_its_job_or_its_error)
{
	for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
		const struct example *example = &examples[i];
		ddp_job job;
		ddp_key key;

		apply(example->variables);
		ddp_status status = ddp_job_discover(&job, &key);
		if (status != example->status ||
		    (status != DDP_OK && strstr(ddp_last_error(), example->words) == NULL))
			fail_msg("%s: %s %s", example->what, ddp_status_name(status), ddp_last_error());
		if (status == DDP_OK)
			check_job(example->what, &job, &example->job);
	}
}

/* No variable of the plugin's may hold anything but a number in its range. */
TEST(numbers_are_read_strictly)
{
	static const char *const names[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
	                                     "NODE_RANK", "NNODES", "MASTER_PORT", "DDP_STEP_ID",
	                                     "DDP_JOB_ID", "DDP_RESTART_COUNT", "SLURM_PROCID" };
	static const char *const values[] = { "-1", "x", " 1", "1 ", "+1", "0x1", "1.0", "1e0", "1(x2)",
	                                      "4294967296", "99999999999999999999", "1\n", "--1", "-",
	                                      "１" };
	static const char *const good[VARIABLES] = { PLUGIN, STEP };

	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			ddp_job job;
			ddp_key key;

			apply(good);
			setenv(names[n], values[v], 1);
			if (ddp_job_discover(&job, &key) != DDP_ERR_JOB ||
			    strstr(ddp_last_error(), names[n]) == NULL)
				fail_msg("%s=\"%s\": %s", names[n], values[v], ddp_last_error());
		}
	}
}

TEST(key_is_read_and_not_shown)
{
	static const char *const good[VARIABLES] = { PLUGIN, STEP };
	static const char secret[] = "deadbeef";
	ddp_job job;
	ddp_key key;

	apply(good);
	assert_int_equal(ddp_job_discover(&job, &key), DDP_OK);
	assert_true(key.present);
	assert_int_equal(key.bytes[0], 0x00);
	assert_int_equal(key.bytes[15], 0xff);
	assert_int_equal(key.bytes[16], 0xff);
	assert_int_equal(key.bytes[31], 0x00);
	setenv("DDP_KEY", secret, 1);
	assert_int_equal(ddp_job_discover(&job, &key), DDP_ERR_JOB);
	assert_null(strstr(ddp_last_error(), secret));
}

TEST(host_that_is_too_long_is_refused)
{
	char host[DDP_HOST_MAX + 1];
	ddp_job job;
	ddp_key key;
	const char *const variables[VARIABLES] = { FOUR, "MASTER_PORT=1" };

	memset(host, 'a', sizeof(host));
	host[DDP_HOST_MAX] = '\0';
	apply(variables);
	setenv("MASTER_ADDR", host, 1);
	assert_int_equal(ddp_job_discover(&job, &key), DDP_ERR_JOB);
	host[DDP_HOST_MAX - 1] = '\0';
	setenv("MASTER_ADDR", host, 1);
	assert_int_equal(ddp_job_discover(&job, &key), DDP_OK);
	assert_string_equal(job.master_addr, host);
}

TEST(job_prints_as_json)
{
	ddp_job job = { .rank = 2, .world_size = 4, .local_world_size = 2, .node_rank = 1, .nnodes = 2,
	                .master_addr = "n0", .master_port = 20001, .job_id = 4294967295u, .step_id = 1,
	                .hostname = "n1", .pid = 42, .identity_source = DDP_SOURCE_ENVIRONMENT,
	                .address_source = DDP_SOURCE_ENVIRONMENT, .plugin = true };
	char text[2048];

	assert_int_equal(ddp_job_json(&job, text, sizeof(text)), DDP_OK);
	assert_string_equal(text, "{\"rank\":2,\"world_size\":4,\"local_rank\":0,\"local_world_size\":2,"
	                    "\"node_rank\":1,\"nnodes\":2,\"master_addr\":\"n0\",\"master_port\":20001,"
	                    "\"job_id\":4294967295,\"step_id\":1,\"restart_count\":0,\"hostname\":\"n1\","
	                    "\"pid\":42,\"identity_source\":\"environment\","
	                    "\"address_source\":\"environment\",\"plugin\":true}");
	size_t needed = strlen(text) + 1;
	assert_int_equal(ddp_job_json(&job, text, needed), DDP_OK);
	assert_int_equal(ddp_job_json(&job, text, needed - 1), DDP_ERR_INVALID);
	assert_string_equal(text, "");
	assert_int_equal(ddp_job_json(&job, text, 0), DDP_ERR_INVALID);
}

TEST(longest_job_fits_2048_bytes)
{
	ddp_job job = { 0 };
	char text[2048];

	memset(&job, 0x7f, sizeof(job));
	job.identity_source = job.address_source = DDP_SOURCE_ENVIRONMENT;
	job.plugin = false;
	memset(job.master_addr, 'a', sizeof(job.master_addr));
	/* the kernel's limit is 64; what needs an escape takes six bytes */
	memset(job.hostname, 1, 64);
	job.hostname[64] = job.master_addr[sizeof(job.master_addr) - 1] = '\0';
	assert_int_equal(ddp_job_json(&job, text, sizeof(text)), DDP_OK);
}

int main(void)
{
	/* The tests clear the variable that asks for TAP. */
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return test_run(NULL, NULL);
}
