/* SPDX-License-Identifier: Apache-2.0 */
/* blocks: all_gather, gather, scatter and all_to_all, which move a block for each rank. */
#include "backend.h"
#include "types.h"

namespace slurm_ddp {

using c10d::OpType;

/* `list` has a tensor for each rank. */
static void write_list(const std::shared_ptr<Operation> &made, const Tensors &list, size_t unit)
{
	const std::vector<size_t> counts = elements_of(list);

	made->write_each(list);
	if (!all_equal(counts))
		made->count_each(scaled(counts, unit));
}

WorkPtr Backend::allgather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
	const at::Tensor &input = only_one("all_gather", inputs);
	const Tensors &list = only_list("all_gather", outputs, members());
	auto made = operation(DDP_ALL_GATHER, input, elements(input));

	check_block("all_gather", list, rank_, input);
	made->call.send = made->read(input);
	write_list(made, list, unit_of(input));
	made->gives(outputs);
	return start({ OpType::ALLGATHER, "all_gather" }, { made }, inputs, options);
}

WorkPtr Backend::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                     const c10d::AllgatherOptions &options)
{
	std::vector<std::shared_ptr<Operation>> operations;

	TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == members(), "ddp: all_gather needs ", members(),
	                  " lists of tensors, one for each rank");
	for (size_t i = 0; i < inputs.size(); i++) {
		Tensors list;
		for (const Tensors &of_rank : outputs) {
			TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "ddp: all_gather got ", inputs.size(),
			                  " tensors, but the list for a rank has ", of_rank.size());
			list.push_back(of_rank[i]);
		}
		check_block("all_gather", only_list("all_gather", { list }, members()), rank_, only_one("all_gather", { inputs[i] }));
		auto made = operation(DDP_ALL_GATHER, inputs[i], elements(inputs[i]));
		made->call.send = made->read(inputs[i]);
		write_list(made, list, unit_of(inputs[i]));
		operations.push_back(std::move(made));
	}
	operations.back()->gives(outputs);
	return start({ OpType::ALLGATHER_COALESCED, "all_gather" }, std::move(operations), inputs, options);
}

std::shared_ptr<Operation> Backend::all_gather_single(const at::Tensor &output, const at::Tensor &input)
{
	auto made = operation(DDP_ALL_GATHER, input, elements(input));

	check_tensors("all_gather", { output, input });
	TORCH_CHECK_VALUE(elements(output) == elements(input) * members(), "ddp: all_gather takes ", input.numel(),
	                  " elements from each of ", members(), " ranks, but the output has ", output.numel());
	made->call.send = made->read(input);
	made->call.recv = made->write(output);
	return made;
}

WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options)
{
	auto made = all_gather_single(output, input);

	made->gives(Tensors{ output });
	return start({ OpType::_ALLGATHER_BASE, "_all_gather_base" }, { made }, { input }, options);
}

WorkPtr Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                 const c10d::AllgatherOptions &options)
{
	std::vector<std::shared_ptr<Operation>> operations;

	TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "ddp: all_gather got ", inputs.size(),
	                  " inputs and ", outputs.size(), " outputs; each input needs one output");
	for (size_t i = 0; i < inputs.size(); i++)
		operations.push_back(all_gather_single(outputs[i], inputs[i]));
	operations.back()->gives(outputs);
	return start({ OpType::ALLGATHER_COALESCED, "all_gather" }, std::move(operations), inputs, options);
}

WorkPtr Backend::gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options)
{
	const at::Tensor &input = only_one("gather", inputs);
	auto made = operation(DDP_GATHER, input, elements(input));

	made->call.root = static_cast<int>(options.rootRank);
	made->call.send = made->read(input);
	if (options.rootRank == rank_) {
		const Tensors &list = only_list("gather", outputs, members());
		check_block("gather", list, rank_, input);
		TORCH_CHECK_VALUE(all_equal(elements_of(list)), "ddp: gather needs tensors of one size, but those in the list differ");
		made->write_each(list);
		made->gives(outputs);
	} else {
		TORCH_CHECK_VALUE(outputs.empty(), "ddp: gather: only the root gives tensors to gather into");
	}
	return start({ OpType::GATHER, "gather" }, { made }, inputs, options);
}

WorkPtr Backend::scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &options)
{
	const at::Tensor &output = only_one("scatter", outputs);
	auto made = operation(DDP_SCATTER, output, elements(output));

	made->call.root = static_cast<int>(options.rootRank);
	made->call.recv = made->write(output);
	if (options.rootRank == rank_) {
		const Tensors &list = only_list("scatter", inputs, members());
		check_block("scatter", list, rank_, output);
		TORCH_CHECK_VALUE(all_equal(elements_of(list)), "ddp: scatter needs tensors of one size, but those in the list differ");
		made->read_each(list);
	} else {
		TORCH_CHECK_VALUE(inputs.empty(), "ddp: scatter: only the root gives tensors to scatter");
	}
	made->gives(outputs);
	return start({ OpType::SCATTER, "scatter" }, { made }, outputs, options);
}

WorkPtr Backend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                               std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options)
{
	auto made = operation(DDP_ALL_TO_ALL, input, 0);
	const size_t unit = unit_of(input);

	check_tensors("all_to_all", { output, input });
	made->call.send = made->read(input);
	made->call.recv = made->write(output);
	made->count_each(scaled(split_counts("all_to_all", input, input_splits, members()), unit),
	                 scaled(split_counts("all_to_all", output, output_splits, members()), unit));
	made->gives(Tensors{ output });
	return start({ OpType::ALLTOALL_BASE, "all_to_all" }, { made }, { input }, options);
}

WorkPtr Backend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options)
{
	const Tensors from = only_list("all_to_all", { inputs }, members());
	const Tensors to = only_list("all_to_all", { outputs }, members());
	auto made = operation(DDP_ALL_TO_ALL, from[0], 0);
	const size_t unit = unit_of(from[0]);

	check_tensors("all_to_all", { from[0], to[0] });
	made->read_each(from);
	made->write_each(to);
	made->count_each(scaled(elements_of(from), unit), scaled(elements_of(to), unit));
	made->gives(outputs);
	return start({ OpType::ALLTOALL, "all_to_all" }, { made }, inputs, options);
}

} // namespace slurm_ddp
