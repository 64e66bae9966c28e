/* SPDX-License-Identifier: Apache-2.0 */
/* types: torch's types and reductions in libddp's terms, and checks of tensors. */
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "operation.h"

namespace slurm_ddp {

/* A type that libddp can reduce; false: there is none. */
bool type_of(const at::Tensor &tensor, ddp_type *type);
/* Sets a call's reduction and type. Complex numbers are summed as pairs. */
void set_reduction(ddp_operation *call, const at::Tensor &tensor, const c10d::ReduceOp &op);
/* The tensor as libddp reduces it: complex numbers as pairs. */
at::Tensor as_reducible(const at::Tensor &tensor);
/* Throws unless the tensors are dense, of the host, and of one type. */
void check_tensors(const char *operation, const Tensors &tensors);
const at::Tensor &only_one(const char *operation, const Tensors &tensors);
const Tensors &only_list(const char *operation, const std::vector<Tensors> &lists, size_t ranks);
/* Throws unless the list's tensor for this rank is like its own one. */
void check_block(const char *operation, const Tensors &list, int rank, const at::Tensor &own);
size_t elements(const at::Tensor &tensor);
/* How many of libddp's elements make one of the tensor's elements: types that libddp does not know travel as bytes. */
size_t unit_of(const at::Tensor &tensor);
std::vector<size_t> scaled(std::vector<size_t> counts, size_t unit);
/* How many elements each tensor has. */
std::vector<size_t> elements_of(const Tensors &tensors);
bool all_equal(const std::vector<size_t> &counts);
/* The rows of a tensor that each rank gets, in elements; no splits: the same number for each. */
std::vector<size_t> split_counts(const char *operation, const at::Tensor &tensor, const std::vector<int64_t> &splits,
                                 size_t ranks);

} // namespace slurm_ddp
