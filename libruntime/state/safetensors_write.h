/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write: writes the file format that state/safetensors.h describes. */
#pragma once

#include "state/safetensors.h"

/* A file has tensors in this order, and metadata as pairs. */
typedef struct ddp_safetensors_tensor {
	const char *name;
	int ndim;
	const int64_t *shape;
	const void *data;
	bool bytes; /* U8, else F32 */
} ddp_safetensors_tensor;

typedef struct ddp_safetensors_pair {
	const char *key;
	const char *value;
} ddp_safetensors_pair;

/* Writes a file's contents to fd; `path` is for messages. */
ddp_status ddp_safetensors_write(const char *path, int fd,
                                 const ddp_safetensors_tensor *tensors, int count,
                                 const ddp_safetensors_pair *metadata, int pairs);
