/* SPDX-License-Identifier: Apache-2.0 */
/* metadata: the values that a checkpoint holds besides tensors, as a file's metadata. All keys
   except "format" begin with "ddp.". */
#pragma once

#include "data/loader.h"
#include "reduce/hypers.h"
#include "state/safetensors.h"
#include "state/safetensors_write.h"

/* Plain data: sent to all ranks as it is. */
typedef struct ddp_position {
	bool found;
	int64_t step;
	bool has_loader;
	ddp_loader_state loader;
	bool has_hypers;
	bool has_extras; /* the tensors of the model's strategy */
	double hypers[DDP_HYPERS];
} ddp_position;

enum { DDP_METADATA_PAIRS_MAX = 16 + DDP_HYPERS, DDP_METADATA_NUMBER_MAX = 32, DDP_METADATA_KEY_MAX = 48 };

typedef struct ddp_metadata {
	ddp_safetensors_pair pairs[DDP_METADATA_PAIRS_MAX];
	char keys[DDP_METADATA_PAIRS_MAX][DDP_METADATA_KEY_MAX];
	char numbers[DDP_METADATA_PAIRS_MAX][DDP_METADATA_NUMBER_MAX];
	int count;
} ddp_metadata;

/* The pairs point into *metadata. */
void ddp_metadata_write(const ddp_position *position, int world_size, ddp_metadata *metadata);
/* DDP_ERR_FORMAT names what is missing or wrong. Files of older versions have no
   hyperparameters. */
ddp_status ddp_metadata_read(const ddp_safetensors *file, ddp_position *position);
