/* SPDX-License-Identifier: Apache-2.0 */
/* transfer: loads tensors of a file into a model on all its ranks. Rank 0 reads the tensors and
   broadcasts them to the other ranks, one chunk after the other. */
#pragma once

#include "context.h"
#include "reduce/tensors.h"
#include "state/safetensors.h"

/* Where a tensor of the model comes from. */
typedef struct ddp_origin {
	const ddp_safetensor *tensor; /* of the file; NULL: none, and */
	float otherwise;              /* all elements get this value */
} ddp_origin;

typedef struct ddp_transfer {
	ddp_model *model;
	ddp_tensors tensors;    /* of the model */
	unsigned char *taken;   /* [tensors.count]: 0: the model keeps what it has. The same on all ranks */
	const char *not_finite; /* on rank 0: the first tensor that was read with a NaN, or trained with an infinity; NULL: none */
	ddp_safetensors file;   /* rank 0 */
	ddp_origin *origins;    /* rank 0: [tensors.count] */
	float *chunk;
	int tensor;             /* where the chunk begins: in this one, */
	int64_t first;          /* at this element */
	int64_t room, count;    /* elements of a chunk at most, and in this one */
	uint32_t sum;           /* rank 0: of the tensor that is read */
} ddp_transfer;

/* This call can fail on this rank alone. It takes all tensors and sets no origin; the caller then changes this.
   The caller also frees the transfer after an error. A transfer that is all zeroes except for fd -1 is
   empty. */
ddp_status ddp_transfer_make(ddp_model *model, ddp_transfer *transfer);
void ddp_transfer_free(ddp_transfer *transfer);

/* Whether a tensor of a file has a type that can be read as F32. */
bool ddp_transfer_reads(const ddp_safetensor *tensor);

/* Rank 0: DDP_ERR_FORMAT, naming both, unless a file's tensor has the model's shape. */
ddp_status ddp_transfer_check_shape(const ddp_safetensors *file, const ddp_safetensor *have,
                                    const ddp_tensor *want);

/* Rank 0: DDP_ERR_FORMAT, naming the first, if F32 cannot hold a finite value of a file's tensor. Reads
   tensors of F64 only. */
ddp_status ddp_transfer_check_values(const ddp_safetensors *file, const ddp_safetensor *have);

/* Loads the taken tensors on all ranks. After an error the model is partly loaded. Collective. */
ddp_status ddp_transfer_run(ddp_transfer *transfer);
