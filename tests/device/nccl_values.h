/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_values: arithmetic of the stand-in for NCCL, in the type itself as NCCL's kernels have it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types and ops are those of comm/nccl/abi.h. */
size_t nccl_bytes_of(int type);
bool nccl_is_integer(int type);

/* Element i of a type of floats, and of a type of integers. */
double nccl_get(int type, const void *memory, size_t i);
void nccl_put(int type, void *memory, size_t i, double x);
int64_t nccl_get_integer(int type, const void *memory, size_t i);
void nccl_put_integer(int type, void *memory, size_t i, uint64_t x);

void nccl_combine_one(int type, int op, void *into, const void *from, size_t i);
