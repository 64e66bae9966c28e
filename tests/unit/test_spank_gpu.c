/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/gpu: which GPUs a task sees, and whether they suit the node's tasks. */
#include <stdint.h>
#include <stdio.h>

#include "spank/identity/gpu.h"
#include "tests/support/test.h"

TEST(devices_are_found_as_slurm_binds_them)
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

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *environment[5] = { NULL };
		struct error sentence = { "" };
		for (int v = 0; v < 4 && cases[i].variables[v] != NULL; v++)
			environment[v] = (char *)(uintptr_t)cases[i].variables[v];
		struct gpu_view view = gpu_view_of(environment, cases[i].local_rank, cases[i].local_world_size);
		if (view.visible != cases[i].visible || view.binding != cases[i].binding ||
		    view.device != cases[i].device ||
		    gpu_judge(&view, cases[i].local_world_size, GPU_COMMON, &sentence) != cases[i].verdict)
			fail_msg("case %zu: %u visible, binding %d, device %d, '%s'", i, view.visible, view.binding,
			         view.device, sentence.text);
		assert_int_equal(sentence.text[0] == '\0', cases[i].verdict == GPU_FINE);
		assert_int_equal(gpu_judge(&view, cases[i].local_world_size, GPU_OWN, &sentence), GPU_FINE);
	}
}
