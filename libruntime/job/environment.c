/* SPDX-License-Identifier: Apache-2.0 */
#include "job/environment.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hex.h"
#include "base/text.h"

/* Slurm's SLURM_MAX_NORMAL_STEP_ID: batch, extern and interactive steps have
   larger ids. */
static const int64_t max_normal_step_id = 0xfffffff0;

const char *ddp_environment(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

static ddp_status number(const char *name, int64_t min, int64_t max, int64_t *value)
{
	const char *text = ddp_environment(name);

	if (text == NULL)
		return ddp_fail(DDP_ERR_JOB, "%s is not set", name);
	if (!ddp_parse_int64(text, min, max, value))
		return ddp_fail(DDP_ERR_JOB, "%s is \"%.80s\"; a number from %lld to %lld is expected",
		                name, text, (long long)min, (long long)max);
	return DDP_OK;
}

/* An absent variable leaves *value as it is. */
static ddp_status optional_number(const char *name, int64_t min, int64_t max, int64_t *value)
{
	return ddp_environment(name) != NULL ? number(name, min, max, value) : DDP_OK;
}

static ddp_status index_and_count(const char *index_name, const char *count_name,
                                  int64_t max_count, int *index, int *count)
{
	int64_t i, n;
	ddp_status status = number(count_name, 1, max_count, &n);

	if (status == DDP_OK)
		status = number(index_name, 0, INT32_MAX, &i);
	if (status != DDP_OK)
		return status;
	if (i >= n)
		return ddp_fail(DDP_ERR_JOB, "%s is %lld, but %s is %lld: it must be below it",
		                index_name, (long long)i, count_name, (long long)n);
	*index = (int)i;
	*count = (int)n;
	return DDP_OK;
}

bool ddp_environment_has_rank(void)
{
	return ddp_environment("RANK") != NULL || ddp_environment("WORLD_SIZE") != NULL;
}

static bool is_host(const char *text)
{
	return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	                         "0123456789.-_:%")] == '\0';
}

static ddp_status read_master(ddp_job *job)
{
	const char *address = ddp_environment("MASTER_ADDR");
	const char *port_text = ddp_environment("MASTER_PORT");
	int64_t port;

	if (address == NULL && port_text == NULL && !job->plugin)
		return DDP_OK;
	if (address == NULL)
		return ddp_fail(DDP_ERR_JOB, "MASTER_ADDR is not set, but RANK%s is",
		                port_text != NULL ? " and MASTER_PORT" : "");
	if (!is_host(address) || !ddp_copy_text(job->master_addr, sizeof(job->master_addr), address))
		return ddp_fail(DDP_ERR_JOB, "MASTER_ADDR \"%.80s\" is no host name or address", address);
	ddp_status status = number("MASTER_PORT", 1, 65535, &port);
	if (status != DDP_OK)
		return status;
	job->master_port = (int)port;
	job->address_source = DDP_SOURCE_ENVIRONMENT;
	return DDP_OK;
}

static ddp_status read_local(ddp_job *job)
{
	bool has_rank = ddp_environment("LOCAL_RANK") != NULL;
	bool has_size = ddp_environment("LOCAL_WORLD_SIZE") != NULL;

	if (!has_rank && !has_size && !job->plugin)
		return DDP_OK;
	return index_and_count("LOCAL_RANK", "LOCAL_WORLD_SIZE", job->world_size,
	                       &job->local_rank, &job->local_world_size);
}

/* NODE_RANK and NNODES are the plugin's, GROUP_* torchrun's. */
static ddp_status read_nodes(ddp_job *job)
{
	const char *rank_name = ddp_environment("NODE_RANK") != NULL ? "NODE_RANK" : "GROUP_RANK";
	const char *count_name = ddp_environment("NNODES") != NULL ? "NNODES" : "GROUP_WORLD_SIZE";
	bool has_rank = ddp_environment(rank_name) != NULL;
	bool has_count = ddp_environment(count_name) != NULL;
	int64_t rank = DDP_UNKNOWN, count = DDP_UNKNOWN;

	if ((has_rank && has_count) || job->plugin)
		return index_and_count(has_rank ? rank_name : "NODE_RANK",
		                       has_count ? count_name : "NNODES",
		                       job->world_size, &job->node_rank, &job->nnodes);
	ddp_status status = optional_number(rank_name, 0, job->world_size - 1, &rank);
	if (status == DDP_OK)
		status = optional_number(count_name, 1, job->world_size, &count);
	if (status != DDP_OK)
		return status;
	job->node_rank = (int)rank;
	job->nnodes = (int)count;
	return DDP_OK;
}

/* Whether this process is in a step that srun made; *step_id is its number. */
static bool in_step(int64_t *step_id)
{
	const char *text = ddp_environment("SLURM_STEP_ID");

	return ddp_environment("SLURM_JOB_ID") != NULL && text != NULL &&
	       ddp_parse_int64(text, 0, max_normal_step_id, step_id);
}

static ddp_status task_count(int64_t *tasks)
{
	int64_t nodes = 1, per_node = 1;
	ddp_status status;

	if (ddp_environment("SLURM_STEP_NUM_TASKS") != NULL)
		return number("SLURM_STEP_NUM_TASKS", 1, INT32_MAX, tasks);
	if (ddp_environment("SLURM_NTASKS") != NULL)
		return number("SLURM_NTASKS", 1, INT32_MAX, tasks);
	/* sbatch -N2 --ntasks-per-node=4 sets no SLURM_NTASKS. */
	status = optional_number("SLURM_JOB_NUM_NODES", 1, INT32_MAX, &nodes);
	if (status == DDP_OK)
		status = optional_number("SLURM_NTASKS_PER_NODE", 1, INT32_MAX, &per_node);
	*tasks = nodes * per_node;
	return status;
}

bool ddp_environment_step_tasks(int64_t *tasks)
{
	int64_t step_id;

	return in_step(&step_id) && task_count(tasks) == DDP_OK;
}

/* Slurm's variables must not contradict RANK and WORLD_SIZE. torchrun's own
   children have ranks that Slurm does not know of. */
static ddp_status check_against_slurm(const ddp_job *job)
{
	int64_t step_id, tasks, procid = job->rank;

	if (!in_step(&step_id) || ddp_environment("TORCHELASTIC_RUN_ID") != NULL)
		return DDP_OK;
	ddp_status status = task_count(&tasks);
	if (status == DDP_OK)
		status = optional_number("SLURM_PROCID", 0, INT32_MAX, &procid);
	if (status != DDP_OK)
		return status;
	if (job->world_size < tasks)
		return ddp_fail(DDP_ERR_JOB, "WORLD_SIZE is %d, but this step has %lld tasks: the variable "
		                "was inherited from elsewhere; unset RANK and WORLD_SIZE before srun and "
		                "start with srun --ddp", job->world_size, (long long)tasks);
	if (job->plugin && procid != job->rank)
		return ddp_fail(DDP_ERR_JOB, "RANK is %d, but SLURM_PROCID is %lld: something between the "
		                "plugin and the program (a wrapper script, a container's hook) has changed it",
		                job->rank, (long long)procid);
	return DDP_OK;
}

ddp_status ddp_environment_job(ddp_job *job)
{
	job->plugin = ddp_environment("DDP_PLUGIN_VERSION") != NULL;
	job->local_rank = job->local_world_size = DDP_UNKNOWN;
	job->node_rank = job->nnodes = DDP_UNKNOWN;
	ddp_status status = index_and_count("RANK", "WORLD_SIZE", INT32_MAX, &job->rank,
	                                    &job->world_size);
	if (status == DDP_OK)
		status = read_local(job);
	if (status == DDP_OK)
		status = read_nodes(job);
	if (status == DDP_OK)
		status = read_master(job);
	if (status == DDP_OK)
		status = check_against_slurm(job);
	if (status != DDP_OK)
		return ddp_fail_context(status, "the environment does not say who this process is");
	job->identity_source = DDP_SOURCE_ENVIRONMENT;
	return DDP_OK;
}

ddp_status ddp_environment_key(ddp_key *key)
{
	const char *text = ddp_environment("DDP_KEY");

	key->present = false;
	if (text == NULL)
		return DDP_OK;
	/* So srun --ddp marks the key of a step. */
	if (strncmp(text, "step:", 5) == 0)
		text += 5;
	/* The key is a secret: a message must not show it. */
	if (strlen(text) != 2 * DDP_KEY_BYTES)
		return ddp_fail(DDP_ERR_JOB, "DDP_KEY has %zu characters; %d hex digits are expected",
		                strlen(text), 2 * DDP_KEY_BYTES);
	if (!ddp_parse_hex(text, key->bytes, DDP_KEY_BYTES))
		return ddp_fail(DDP_ERR_JOB, "DDP_KEY holds something else than hex digits");
	key->present = true;
	return DDP_OK;
}

/* The plugin's value, else Slurm's, else 0. Slurm 26.05 writes the numbers of steps
   that are not srun's as signed: -5 for a batch script's, which is 4294967291. */
static ddp_status identifier(const char *plugin_name, const char *slurm_name, uint32_t *value)
{
	const bool plugin = ddp_environment(plugin_name) != NULL;
	int64_t parsed = 0;
	ddp_status status = optional_number(plugin ? plugin_name : slurm_name,
	                                    plugin ? 0 : INT32_MIN, UINT32_MAX, &parsed);

	*value = (uint32_t)parsed;
	return status;
}

ddp_status ddp_environment_slurm_ids(ddp_job *job)
{
	ddp_status status = identifier("DDP_JOB_ID", "SLURM_JOB_ID", &job->job_id);

	if (status == DDP_OK)
		status = identifier("DDP_STEP_ID", "SLURM_STEP_ID", &job->step_id);
	if (status == DDP_OK)
		status = identifier("DDP_RESTART_COUNT", "SLURM_RESTART_COUNT", &job->restart_count);
	return status;
}

uint32_t ddp_environment_requeues(void)
{
	const char *text = ddp_environment("SLURM_RESTART_COUNT");
	int64_t count;

	return text != NULL && ddp_parse_int64(text, 0, UINT32_MAX, &count) ? (uint32_t)count : 0;
}

/* "JOBID.STEPID" of this step. */
static bool requested_for_step(const char *requested, int64_t step_id)
{
	const char *dot = strchr(requested, '.');
	const char *job_id = ddp_environment("SLURM_JOB_ID");
	int64_t step;

	return dot != NULL && ddp_parse_int64(dot + 1, 0, max_normal_step_id, &step) &&
	       step == step_id && strlen(job_id) == (size_t)(dot - requested) &&
	       strncmp(job_id, requested, (size_t)(dot - requested)) == 0;
}

ddp_status ddp_environment_check_plugin(void)
{
	const char *requested = ddp_environment("DDP_REQUESTED");
	const char *node = ddp_environment("SLURMD_NODENAME");
	bool plugin = ddp_environment("DDP_PLUGIN_VERSION") != NULL;
	int64_t step_id, plugin_step, job_id, plugin_job;

	if (!in_step(&step_id))
		return DDP_OK;
	if (!plugin) {
		if (requested == NULL || !requested_for_step(requested, step_id))
			return DDP_OK;
		return ddp_fail(DDP_ERR_JOB, "srun --ddp was asked for, but the plugin spank_ddp is absent on "
		                "this node%s%s: install it and its line of plugstack.conf there",
		                node != NULL ? ", " : "", node != NULL ? node : "");
	}
	plugin_step = step_id;
	ddp_status status = optional_number("DDP_STEP_ID", 0, UINT32_MAX, &plugin_step);
	if (status == DDP_OK)
		status = number("SLURM_JOB_ID", 0, UINT32_MAX, &job_id);
	if (status != DDP_OK)
		return status;
	plugin_job = job_id;
	status = optional_number("DDP_JOB_ID", 0, UINT32_MAX, &plugin_job);
	if (status != DDP_OK)
		return status;
	/* The components of a heterogeneous job have ids of their own. */
	bool other_job = plugin_job != job_id && ddp_environment("SLURM_HET_SIZE") == NULL;
	if (other_job || plugin_step != step_id)
		return ddp_fail(DDP_ERR_JOB, "the plugin's variables are those of step %lld.%lld, but this "
		                "is step %lld.%lld: give --ddp to this srun, too, or unset RANK, WORLD_SIZE "
		                "and DDP_PLUGIN_VERSION before it", (long long)plugin_job,
		                (long long)plugin_step, (long long)job_id, (long long)step_id);
	if (!ddp_environment_has_rank())
		return ddp_fail(DDP_ERR_JOB, "the plugin is there, but has set no RANK%s",
		                ddp_environment("PET_NNODES") != NULL
		                ? " (--ddp=launcher): start this program through torchrun" : "");
	return DDP_OK;
}

ddp_status ddp_environment_check_single(void)
{
	int64_t step_id, tasks, components = 1;

	if (ddp_environment("SLURM_JOB_ID") == NULL)
		return DDP_OK;
	const bool step = in_step(&step_id);
	ddp_status status = task_count(&tasks);
	/* A batch script's number of tasks is that of the first component. */
	if (status == DDP_OK && !step)
		status = optional_number("SLURM_HET_SIZE", 1, INT32_MAX, &components);
	if (status == DDP_OK && components > 1)
		return ddp_fail(DDP_ERR_JOB, "this heterogeneous Slurm job has %lld components, but the program "
		                "was started without srun: write \"srun --ddp --het-group=0-%lld PROGRAM\" in the "
		                "batch script (for a single process on purpose: srun -n1 PROGRAM)",
		                (long long)components, (long long)components - 1);
	if (status != DDP_OK || tasks == 1)
		return status;
	if (step)
		return ddp_fail(DDP_ERR_JOB, "this is one of %lld tasks of a Slurm step, but neither the "
		                "plugin nor PMIx says which: start it with srun --ddp, or with "
		                "srun --mpi=pmix", (long long)tasks);
	return ddp_fail(DDP_ERR_JOB, "this Slurm job has %lld tasks, but the program was started "
	                "without srun: write \"srun --ddp PROGRAM\" in the batch script (for a single "
	                "process on purpose: srun -n1 PROGRAM)", (long long)tasks);
}
