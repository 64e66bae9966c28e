/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "spank/identity/identity.h"

static uint32_t count_devices(const char *list)
{
	uint32_t count = 1;

	/* Slurm's word for an allocation without GPUs. */
	if (list == NULL || list[0] == '\0' || strcmp(list, "NoDevFiles") == 0 ||
	    strcmp(list, "-1") == 0)
		return 0;
	for (const char *p = list; *p != '\0'; p++)
		count += *p == ',';
	return count;
}

/* Returns the text that tells how the GPUs are bound, such as "per_task:1"; NULL: they are not.
   slurmstepd's own word comes first, since a step may ask for another binding
   than the job whose variables it inherits. */
static const char *find_binding(char *const *environment)
{
	const char *resources = environment_get(environment, "SLURMD_TRES_BIND");
	const char *kind = environment_get(environment, "SLURM_GPU_BIND");

	if (resources == NULL)
		resources = environment_get(environment, "SLURM_TRES_BIND");
	if (resources != NULL) {
		/* Such as "gpu:KIND", "gres/gpu:KIND"; other resources beside it. */
		kind = strstr(resources, "gpu:");
		kind = kind != NULL ? kind + 4 : NULL;
	} else if (kind == NULL && environment_get(environment, "SLURM_GPUS_PER_TASK") != NULL) {
		kind = "per_task";
	}
	if (kind != NULL && strncmp(kind, "verbose,", 8) == 0)
		kind += 8;
	return kind == NULL || kind[0] == '\0' || strncmp(kind, "none", 4) == 0 ? NULL : kind;
}

static enum gpu_binding judge_binding(const char *asked, uint32_t visible, const char *on_node)
{
	if (asked == NULL)
		return GPU_COMMON;
	if (strncmp(asked, "per_task", 8) == 0)
		return GPU_OWN;
	/* single:N is N tasks on each GPU. */
	if (strncmp(asked, "single:", 7) == 0 && strtoul(asked + 7, NULL, 10) > 1)
		return GPU_OVERLAP;
	if (visible == 1)
		return GPU_OWN;
	/* Such as closest, where all GPUs are close to all tasks. */
	return on_node != NULL && strtoul(on_node, NULL, 10) == visible ? GPU_COMMON : GPU_OVERLAP;
}

struct gpu_view gpu_view_of(char *const *environment, uint32_t local_rank, uint32_t local_world_size)
{
	static const char *const lists[] = { "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
		                             "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK" };
	struct gpu_view view = { .device = -1 };

	for (int i = 0; i < 4 && view.visible == 0; i++)
		view.visible = count_devices(environment_get(environment, lists[i]));
	if (view.visible == 0)
		return view;
	if (local_world_size > 1) {
		view.asked = find_binding(environment);
		view.binding = judge_binding(view.asked, view.visible,
		                             environment_get(environment, "SLURM_GPUS_ON_NODE"));
	}
	/* A single task that sees several may be a launcher, whose ranks would all
	   take the one device. */
	if (view.binding == GPU_COMMON && (local_world_size > 1 || view.visible == 1))
		view.device = (int)(local_rank % view.visible);
	else if (view.binding == GPU_OWN || view.visible == 1)
		view.device = 0;
	return view;
}

enum gpu_verdict gpu_judge(const struct gpu_view *view, uint32_t local_world_size, bool launcher,
                           struct error *sentence)
{
	if (view->visible == 0 || launcher)
		return GPU_FINE;
	if (view->binding == GPU_OVERLAP) {
		error_set(sentence, "--gpu-bind=%.60s lets tasks share GPUs, and of the %u that a task sees "
		          "none is known to be its own%s: use --gpus-per-node alone, or "
		          "--gpu-bind=per_task:1", view->asked, view->visible,
		          view->device < 0 ? ", so DDP_LOCAL_DEVICE is not set" : "");
		return GPU_MISMATCH;
	}
	if (view->binding == GPU_OWN) {
		error_set(sentence, "each task sees GPUs of its own (%u), numbered from 0: select device "
		          "DDP_LOCAL_DEVICE, not LOCAL_RANK, or ask for --gpus-per-node instead of "
		          "--gpus-per-task, which also lets the GPUs of a node talk directly", view->visible);
		return GPU_NOTE;
	}
	if (view->visible < local_world_size) {
		error_set(sentence, "%u tasks share %u GPUs on this node: set --ntasks-per-node=%u, or "
		          "more GPUs with --gpus-per-node", local_world_size, view->visible, view->visible);
		return GPU_MISMATCH;
	}
	if (view->visible > local_world_size) {
		error_set(sentence, "%u of %u GPUs on this node have no task: set --ntasks-per-node=%u, "
		          "or --ddp=launcher for one torchrun per node",
		          view->visible - local_world_size, view->visible, view->visible);
		return GPU_MISMATCH;
	}
	return GPU_FINE;
}
