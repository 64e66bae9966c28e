/* SPDX-License-Identifier: Apache-2.0 */
#include "types.h"

#include <ATen/ops/view_as_real.h>

#include <algorithm>

namespace slurm_ddp {

bool type_of(const at::Tensor &tensor, ddp_type *type)
{
	switch (tensor.scalar_type()) {
	case at::kFloat: *type = DDP_F32; return true;
	case at::kDouble: *type = DDP_F64; return true;
	case at::kHalf: *type = DDP_F16; return true;
	case at::kBFloat16: *type = DDP_BF16; return true;
	case at::kInt: *type = DDP_I32; return true;
	case at::kLong: *type = DDP_I64; return true;
	case at::kByte: *type = DDP_U8; return true;
	case at::kChar: *type = DDP_I8; return true;
	case at::kBool: *type = DDP_BOOL; return true;
	default: return false;
	}
}

static ddp_op op_of(const c10d::ReduceOp &op)
{
	switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
	case c10d::ReduceOp::SUM:
	case c10d::ReduceOp::PREMUL_SUM: return DDP_SUM;
	case c10d::ReduceOp::AVG: return DDP_AVG;
	case c10d::ReduceOp::PRODUCT: return DDP_PROD;
	case c10d::ReduceOp::MIN: return DDP_MIN;
	case c10d::ReduceOp::MAX: return DDP_MAX;
	case c10d::ReduceOp::BAND: return DDP_BAND;
	case c10d::ReduceOp::BOR: return DDP_BOR;
	case c10d::ReduceOp::BXOR: return DDP_BXOR;
	default: TORCH_CHECK(false, "ddp: the reduction is not known");
	}
}

/* What torch.distributed._make_nccl_premul_sum() has been given. Torch 1.13 has a list of factors. */
template <class Given> static auto factor_in(const Given &given, int) -> decltype(given.tensor_factor.numel(), 0.0)
{
	return given.tensor_factor.defined() ? given.tensor_factor.template item<double>() : given.double_factor;
}

template <class Given> static double factor_in(const Given &given, long)
{
	return given.tensor_factors.empty() ? given.double_factor : given.tensor_factors[0].template item<double>();
}

static double factor_of(const c10d::ReduceOp &op)
{
	const auto *given = dynamic_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());

	TORCH_CHECK(given != nullptr, "ddp: PREMUL_SUM needs a factor");
	return factor_in(*given, 0);
}

void set_reduction(ddp_operation *call, const at::Tensor &tensor, const c10d::ReduceOp &op)
{
	call->op = op_of(op);
	TORCH_CHECK(!tensor.is_complex() || call->op == DDP_SUM || call->op == DDP_AVG,
	            "ddp: complex tensors can be summed and averaged only");
	TORCH_CHECK_TYPE(type_of(as_reducible(tensor), &call->type), "ddp: tensors of type ", tensor.scalar_type(),
	                 " cannot be reduced; convert them first");
	if (op == c10d::ReduceOp::PREMUL_SUM) {
		call->scaled = true;
		call->scale = factor_of(op);
	}
}

at::Tensor as_reducible(const at::Tensor &tensor)
{
	return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

void check_tensors(const char *operation, const Tensors &tensors)
{
	for (const at::Tensor &t : tensors) {
		TORCH_CHECK_VALUE(t.device().is_cpu(), "ddp: ", operation, " got a tensor on ", t.device(),
		                  ", but the backend is for tensors on the host; \"cpu:ddp,cuda:nccl\" also names one for GPUs");
		TORCH_CHECK_VALUE(t.layout() == at::kStrided, "ddp: ", operation, " got a tensor that is not dense");
		TORCH_CHECK_VALUE(!t.is_conj() && !t.is_neg(), "ddp: ", operation, " got a view whose numbers are not those in its "
		                  "memory: call resolve_conj() or resolve_neg() first");
		TORCH_CHECK_TYPE(t.scalar_type() == tensors[0].scalar_type(), "ddp: ", operation, " got tensors of types ",
		                 tensors[0].scalar_type(), " and ", t.scalar_type(), ", but needs one type");
	}
}

const at::Tensor &only_one(const char *operation, const Tensors &tensors)
{
	TORCH_CHECK_VALUE(tensors.size() == 1, "ddp: ", operation, " takes one tensor, but got ", tensors.size());
	check_tensors(operation, tensors);
	return tensors[0];
}

const Tensors &only_list(const char *operation, const std::vector<Tensors> &lists, size_t ranks)
{
	TORCH_CHECK_VALUE(lists.size() == 1 && lists[0].size() == ranks, "ddp: ", operation, " needs one list of ", ranks,
	                  " tensors, one for each rank");
	check_tensors(operation, lists[0]);
	return lists[0];
}

std::vector<size_t> elements_of(const Tensors &tensors)
{
	std::vector<size_t> counts;

	for (const at::Tensor &t : tensors)
		counts.push_back(static_cast<size_t>(t.numel()));
	return counts;
}

bool all_equal(const std::vector<size_t> &counts)
{
	return std::all_of(counts.begin(), counts.end(), [&](size_t count) { return count == counts[0]; });
}

std::vector<size_t> split_counts(const char *operation, const at::Tensor &tensor, const std::vector<int64_t> &splits,
                                 size_t ranks)
{
	const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
	const size_t row = rows > 0 ? static_cast<size_t>(tensor.numel() / rows) : 0;
	std::vector<size_t> counts;
	int64_t sum = 0;

	if (splits.empty()) {
		TORCH_CHECK_VALUE(rows % static_cast<int64_t>(ranks) == 0, "ddp: ", operation, ": ", rows,
		                  " rows cannot be dealt to ", ranks, " ranks");
		return std::vector<size_t>(ranks, static_cast<size_t>(rows) / ranks * row);
	}
	TORCH_CHECK_VALUE(splits.size() == ranks, "ddp: ", operation, " got ", splits.size(), " splits for ", ranks,
	                  " ranks");
	for (const int64_t split : splits) {
		TORCH_CHECK_VALUE(split >= 0, "ddp: ", operation, ": a split is ", split);
		sum += split;
		counts.push_back(static_cast<size_t>(split) * row);
	}
	TORCH_CHECK_VALUE(sum == rows, "ddp: ", operation, ": the splits sum to ", sum, ", but there are ", rows, " rows");
	return counts;
}

size_t unit_of(const at::Tensor &tensor)
{
	ddp_type type;

	return type_of(tensor, &type) ? 1 : tensor.element_size();
}

std::vector<size_t> scaled(std::vector<size_t> counts, size_t unit)
{
	for (size_t &count : counts)
		count *= unit;
	return counts;
}

size_t elements(const at::Tensor &tensor)
{
	return static_cast<size_t>(tensor.numel());
}

void check_block(const char *operation, const Tensors &list, int rank, const at::Tensor &own)
{
	const at::Tensor &block = list[static_cast<size_t>(rank)];

	TORCH_CHECK_VALUE(block.numel() == own.numel(), "ddp: ", operation, ": this rank's tensor has ", own.numel(),
	                  " elements, but the list has ", block.numel(), " for it");
	check_tensors(operation, { block, own });
}

} // namespace slurm_ddp
