/* SPDX-License-Identifier: Apache-2.0 */
/* reductions: all_reduce, reduce and reduce_scatter. */
#include "backend.h"
#include "types.h"

namespace slurm_ddp {

using c10d::OpType;

std::shared_ptr<Operation> Backend::all_reduce(const at::Tensor &tensor, const c10d::ReduceOp &op)
{
	const at::Tensor numbers = as_reducible(tensor);
	auto made = operation(DDP_ALL_REDUCE, numbers, elements(numbers));

	set_reduction(&made->call, tensor, op);
	made->call.recv = made->write(numbers, true);
	return made;
}

WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options)
{
	if (tensors.size() == 1 && tensors[0].is_sparse())
		return allreduce_sparse(tensors, options);
	auto made = all_reduce(only_one("all_reduce", tensors), options.reduceOp);
	made->gives(tensors);
	return start({ OpType::ALLREDUCE, "all_reduce" }, { made }, tensors, options);
}

WorkPtr Backend::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options)
{
	std::vector<std::shared_ptr<Operation>> operations;

	TORCH_CHECK_VALUE(!tensors.empty(), "ddp: all_reduce got no tensors");
	check_tensors("all_reduce", tensors);
	for (const at::Tensor &tensor : tensors)
		operations.push_back(all_reduce(tensor, options.reduceOp));
	operations.back()->gives(tensors);
	return start({ OpType::ALLREDUCE_COALESCED, "all_reduce" }, std::move(operations), tensors, options);
}

WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &options)
{
	const at::Tensor &tensor = only_one("reduce", tensors);
	const at::Tensor numbers = as_reducible(tensor);
	auto made = operation(DDP_REDUCE, numbers, elements(numbers));

	set_reduction(&made->call, tensor, options.reduceOp);
	made->call.root = static_cast<int>(options.rootRank);
	if (options.rootRank == rank_)
		made->call.recv = made->write(numbers, true);
	else
		made->call.send = made->read(numbers);
	made->gives(tensors);
	return start({ OpType::REDUCE, "reduce" }, { made }, tensors, options);
}

static void read_list(const std::shared_ptr<Operation> &made, const Tensors &list, size_t unit)
{
	const std::vector<size_t> counts = elements_of(list);

	made->read_each(list);
	if (!all_equal(counts))
		made->count_each(scaled(counts, unit));
}

WorkPtr Backend::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                const c10d::ReduceScatterOptions &options)
{
	const at::Tensor &output = only_one("reduce_scatter", outputs);
	const at::Tensor numbers = as_reducible(output);
	Tensors list;
	auto made = operation(DDP_REDUCE_SCATTER, numbers, elements(numbers));

	for (const at::Tensor &input : only_list("reduce_scatter", inputs, members()))
		list.push_back(as_reducible(input));
	check_block("reduce_scatter", list, rank_, numbers);
	set_reduction(&made->call, output, options.reduceOp);
	made->call.recv = made->write(numbers);
	read_list(made, list, 1);
	made->gives(outputs);
	return start({ OpType::REDUCE_SCATTER, "reduce_scatter" }, { made }, inputs[0], options);
}

std::shared_ptr<Operation> Backend::reduce_scatter_single(const at::Tensor &output, const at::Tensor &input,
                                                          const c10d::ReduceOp &op)
{
	const at::Tensor to = as_reducible(output), from = as_reducible(input);
	auto made = operation(DDP_REDUCE_SCATTER, to, elements(to));

	check_tensors("reduce_scatter", { output, input });
	TORCH_CHECK_VALUE(elements(input) == elements(output) * members(), "ddp: reduce_scatter gives ",
	                  output.numel(), " elements to each of ", members(), " ranks, but the input has ", input.numel());
	set_reduction(&made->call, output, op);
	made->call.send = made->read(from);
	made->call.recv = made->write(to);
	return made;
}

WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &options)
{
	auto made = reduce_scatter_single(output, input, options.reduceOp);

	made->gives(Tensors{ output });
	return start({ OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base" }, { made }, { input }, options);
}

WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                 const c10d::ReduceScatterOptions &options)
{
	std::vector<std::shared_ptr<Operation>> operations;

	TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "ddp: reduce_scatter got ", inputs.size(),
	                  " inputs and ", outputs.size(), " outputs; each input needs one output");
	for (size_t i = 0; i < inputs.size(); i++)
		operations.push_back(reduce_scatter_single(outputs[i], inputs[i], options.reduceOp));
	operations.back()->gives(outputs);
	return start({ OpType::REDUCE_SCATTER, "reduce_scatter" }, std::move(operations), inputs, options);
}

} // namespace slurm_ddp
