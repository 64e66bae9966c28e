/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/names.h"

#include <stddef.h>
#include <string.h>

#include "spank/options/options.h"

/* The variables of options stand in the table of options. */
static const struct name names[] = {
	{ "RANK", NAME_RANK },
	{ "WORLD_SIZE", NAME_RANK },
	{ "LOCAL_RANK", NAME_RANK },
	{ "LOCAL_WORLD_SIZE", NAME_RANK },
	{ "NODE_RANK", NAME_RANK },
	{ "NNODES", NAME_RANK },
	{ "GROUP_RANK", NAME_RANK },
	{ "MASTER_ADDR", NAME_RANK },
	{ "MASTER_PORT", NAME_RANK },
	{ "JAX_COORDINATOR_ADDRESS", NAME_RANK },
	{ "JAX_NUM_PROCESSES", NAME_RANK },
	{ "JAX_PROCESS_ID", NAME_RANK },
	{ "DDP_LOCAL_DEVICE", NAME_RANK },

	{ "PET_NNODES", NAME_TORCHRUN },
	{ "PET_NODE_RANK", NAME_TORCHRUN },
	{ "PET_NPROC_PER_NODE", NAME_TORCHRUN },
	{ "PET_MASTER_ADDR", NAME_TORCHRUN },
	{ "PET_MASTER_PORT", NAME_TORCHRUN },
	{ "PET_RDZV_ID", NAME_TORCHRUN },
	{ "PET_RDZV_BACKEND", NAME_TORCHRUN },
	{ "PET_RDZV_ENDPOINT", NAME_TORCHRUN },
	{ "PET_STANDALONE", NAME_TORCHRUN },
	{ "GROUP_WORLD_SIZE", NAME_TORCHRUN },
	{ "ROLE_RANK", NAME_TORCHRUN },
	{ "ROLE_WORLD_SIZE", NAME_TORCHRUN },
	{ "ROLE_NAME", NAME_TORCHRUN },
	{ "TORCHELASTIC_RUN_ID", NAME_TORCHRUN },
	{ "TORCHELASTIC_RESTART_COUNT", NAME_TORCHRUN },
	{ "TORCHELASTIC_MAX_RESTARTS", NAME_TORCHRUN },
	{ "TORCHELASTIC_USE_AGENT_STORE", NAME_TORCHRUN },
	{ "TORCHELASTIC_ERROR_FILE", NAME_TORCHRUN },

	{ "DDP_PLUGIN_VERSION", NAME_STEP },
	{ "DDP_REQUESTED", NAME_STEP },
	{ "DDP_JOB_ID", NAME_STEP },
	{ "DDP_STEP_ID", NAME_STEP },
	{ "DDP_RESTART_COUNT", NAME_STEP },
	{ "DDP_JOINS", NAME_STEP },
	{ "DDP_NODE_NAME", NAME_STEP },
	{ "DDP_ON_FAILURE", NAME_STEP },
	{ "DDP_KEY", NAME_STEP },
	{ "DDP_PROGRESS_FD", NAME_STEP },
	{ "DDP_DERIVED", NAME_STEP },

	{ "OMP_NUM_THREADS", NAME_CHOICE },
	{ "JAX_LOCAL_DEVICE_IDS", NAME_CHOICE },
	{ "NCCL_PROFILER_PLUGIN", NAME_CHOICE },
	{ "NCCL_NET_PLUGIN", NAME_CHOICE },

	{ "PYTHONPATH", NAME_LIST },

	{ "SLURM_STEP_RESV_PORTS", NAME_SLURM },

	{ "SLURM_PROCID", NAME_RENUMBERED },
	{ "SLURM_NTASKS", NAME_RENUMBERED },
	{ "SLURM_NPROCS", NAME_RENUMBERED },
	{ "SLURM_STEP_NUM_TASKS", NAME_RENUMBERED },
	{ "SLURM_NODEID", NAME_RENUMBERED },
	{ "SLURM_NNODES", NAME_RENUMBERED },
	{ "SLURM_JOB_NUM_NODES", NAME_RENUMBERED },
	{ "SLURM_STEP_NUM_NODES", NAME_RENUMBERED },
	{ "SLURM_NODELIST", NAME_RENUMBERED },
	{ "SLURM_JOB_NODELIST", NAME_RENUMBERED },
	{ "SLURM_STEP_NODELIST", NAME_RENUMBERED },
	{ "SLURM_TASKS_PER_NODE", NAME_RENUMBERED },
	{ "SLURM_STEP_TASKS_PER_NODE", NAME_RENUMBERED },
	{ "SLURM_GTIDS", NAME_RENUMBERED },
	{ "SLURM_TASK_PID", NAME_RENUMBERED },

	{ "SLURM_DDP_KEY", NAME_HANDOVER },
	{ "SLURM_DDP_FIRST_HOST", NAME_HANDOVER },
	{ "SLURM_DDP_RELAY", NAME_HANDOVER },
	{ "SLURM_DDP_ON_FAILURE", NAME_HANDOVER },
	{ "SLURM_DDP_NO_WITNESS", NAME_HANDOVER },
	{ "SLURM_DDP_PREFLIGHT", NAME_HANDOVER }, /* for an srun that runs ddp-preflight before another step */
	{ "SLURM_DDP_RELAUNCH", NAME_HANDOVER }, /* for an srun that starts again without some nodes */
	{ "SLURM_DDP_REFUSED", NAME_HANDOVER }, /* "yes": no program is to start */
	{ "SLURM_DDP_RESTART", NAME_HANDOVER }, /* "yes": each task is to be an agent, as srun deals generations */
};

enum { NAMES = sizeof(names) / sizeof(names[0]) };

/* Returns the name of the index-th option that has a variable, or NULL. */
static const struct name *name_of_option(int index)
{
	static struct name of_options[OPTION_COUNT_MAX];
	const struct option *option;

	for (int i = 0; (option = option_at(i)) != NULL; i++) {
		if (option->variable == NULL || index-- > 0)
			continue;
		of_options[i] = (struct name){ option->variable, NAME_CHOICE };
		return &of_options[i];
	}
	return NULL;
}

const struct name *name_at(int index)
{
	return index < NAMES ? &names[index] : name_of_option(index - NAMES);
}

const struct name *name_find(const char *text)
{
	const struct name *name;

	for (int i = 0; (name = name_at(i)) != NULL; i++)
		if (strcmp(name->text, text) == 0)
			return name;
	return NULL;
}

bool name_is_derived(const char *derived, const char *text, const char *value)
{
	size_t name_length = strlen(text), value_length = strlen(value);

	for (const char *item = derived; item != NULL && *item != '\0';) {
		size_t length = strcspn(item, DERIVED_SEPARATOR);
		if (length == name_length + 1 + value_length && memcmp(item, text, name_length) == 0 &&
		    item[name_length] == '=' && memcmp(item + name_length + 1, value, value_length) == 0)
			return true;
		item += length + (item[length] != '\0');
	}
	return false;
}
