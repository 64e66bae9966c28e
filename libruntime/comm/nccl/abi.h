/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/abi: what libddp calls of NCCL, as its library has it since 2.27: libddp is
   built without NCCL's headers, and loads the library when it is needed (load.h). The
   numbers are NCCL's; a structure that has grown since then begins with its size. */
#pragma once

#include <limits.h>
#include <stddef.h>

typedef struct ddp_nccl_handle ddp_nccl_handle; /* what ncclComm_t points to */

typedef struct ddp_nccl_id {
	char internal[128];
} ddp_nccl_id;

typedef enum ddp_nccl_result {
	DDP_NCCL_SUCCESS, DDP_NCCL_UNHANDLED_CUDA_ERROR, DDP_NCCL_SYSTEM_ERROR,
	DDP_NCCL_INTERNAL_ERROR, DDP_NCCL_INVALID_ARGUMENT, DDP_NCCL_INVALID_USAGE,
	DDP_NCCL_REMOTE_ERROR, DDP_NCCL_IN_PROGRESS,
} ddp_nccl_result;

typedef enum ddp_nccl_op {
	DDP_NCCL_SUM, DDP_NCCL_PROD, DDP_NCCL_MAX, DDP_NCCL_MIN, DDP_NCCL_AVG,
	DDP_NCCL_OPS, /* those made by ncclRedOpCreatePreMulSum() begin here */
} ddp_nccl_op;

typedef enum ddp_nccl_type {
	DDP_NCCL_INT8 = 0, DDP_NCCL_UINT8 = 1, DDP_NCCL_INT32 = 2, DDP_NCCL_INT64 = 4, DDP_NCCL_FLOAT16 = 6,
	DDP_NCCL_FLOAT32 = 7, DDP_NCCL_FLOAT64 = 8, DDP_NCCL_BFLOAT16 = 9,
} ddp_nccl_type;

enum { DDP_NCCL_SCALAR_ON_HOST = 1 };

/* ncclConfig_t as of 2.17. */
typedef struct ddp_nccl_config {
	size_t size;
	unsigned int magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share;
} ddp_nccl_config;

enum { DDP_NCCL_CONFIG_VERSION = 21700, DDP_NCCL_UNSET = INT_MIN };
#define DDP_NCCL_CONFIG_MAGIC 0xcafebeefu
