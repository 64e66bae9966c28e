/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs a task sees, and whether that suits one task per GPU. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"

/* How the GPUs of a node are parted among its tasks. */
enum gpu_binding {
	GPU_COMMON,  /* all tasks see the same ones */
	GPU_OWN,     /* each task sees its own only */
	GPU_OVERLAP, /* a task sees some, which others may see, too */
};

struct gpu_view {
	uint32_t visible;   /* devices that the task sees; 0: none, or not known */
	enum gpu_binding binding;
	const char *asked;  /* the binding in Slurm's words, of the environment; NULL: none */
	int device;         /* the task's device among the visible ones, -1: none, or not known */
};

enum gpu_verdict { GPU_FINE, GPU_NOTE, GPU_MISMATCH };

struct gpu_view gpu_view_of(char *const *environment, uint32_t local_rank, uint32_t local_world_size);

/* A note or a mismatch comes with a sentence. */
enum gpu_verdict gpu_judge(const struct gpu_view *view, uint32_t local_world_size, bool launcher,
                           struct error *sentence);
