/* SPDX-License-Identifier: Apache-2.0 */
/* monitored: operations that take several steps: the monitored barrier, and the sum of sparse tensors. */
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>

#include <thread>

#include "backend.h"
#include "types.h"

namespace slurm_ddp {

namespace {

using Clock = std::chrono::steady_clock;

/* Waits for a key by looking, so that other threads may use the store meanwhile. Returns false at the deadline. */
bool came(c10d::Store &store, const std::string &key, Clock::time_point end)
{
	auto pause = std::chrono::microseconds(50);

	while (!store.check({ key })) {
		if (Clock::now() >= end)
			return false;
		std::this_thread::sleep_for(pause);
		pause = std::min(pause * 2, std::chrono::microseconds(5000));
	}
	return true;
}

std::string list_of(const std::vector<int> &ranks)
{
	std::string text;

	for (const int rank : ranks)
		text += (text.empty() ? "" : ", ") + std::to_string(rank);
	return text;
}

const std::vector<uint8_t> yes{ 1 };

} // namespace

/*
 * The barrier uses the store, because an operation that times out would end the communicator, and a program may go on
 * after a failed monitored barrier.
 */
void Backend::monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks)
{
	const milliseconds limit = options.timeout == c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
	const auto end = Clock::now() + limit;
	const std::string name = "ddp_monitored_barrier/" + std::to_string(barriers_++) + "/";
	const std::string in_time = " in " + std::to_string(limit.count()) + " ms";
	std::vector<int> missing;

	if (rank_ != 0) {
		store_->set(name + std::to_string(rank_), yes);
		TORCH_CHECK(came(*store_, name + "passed", end), "Rank ", rank_,
		            " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0", in_time,
		            ". Please check rank 0 logs for faulty rank.");
		return;
	}
	for (int rank = 1; rank < size_ && (all_ranks || missing.empty()); rank++)
		if (!came(*store_, name + std::to_string(rank), end))
			missing.push_back(rank);
	TORCH_CHECK(limit > milliseconds(0) || missing.empty(), "Rank 0 timed out in monitoredBarrier after 0 ms");
	TORCH_CHECK(missing.empty(), missing.size() > 1 ? "Ranks " : "Rank ", list_of(missing),
	            " failed to pass monitoredBarrier", in_time);
	store_->set(name + "passed", yes);
}

/*
 * The sum of sparse tensors: all ranks get all indices and values, and add them. It runs in the caller, because its
 * later steps depend on the sizes that the first one brings.
 */
WorkPtr Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options)
{
	TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse(), "ddp: all_reduce of one sparse tensor at a time");
	TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "ddp: sparse tensors can be summed only");
	const at::Tensor input = tensors[0].coalesce(), indices = input.indices(), values = input.values();
	const auto gather = [&](const at::Tensor &own, const std::vector<at::Tensor> &of_ranks) {
		std::vector<Tensors> outputs{ of_ranks };
		Tensors inputs{ own };
		c10d::AllgatherOptions with;
		with.timeout = options.timeout;
		allgather(outputs, inputs, with)->wait();
	};
	Tensors entries, all_indices, all_values;

	for (int rank = 0; rank < size_; rank++)
		entries.push_back(at::empty({ 1 }, at::kLong));
	gather(at::tensor({ input._nnz() }, at::kLong), entries);
	for (const at::Tensor &count : entries) {
		std::vector<int64_t> shape = values.sizes().vec();
		shape[0] = count.item<int64_t>();
		all_indices.push_back(at::empty({ indices.size(0), shape[0] }, indices.options()));
		all_values.push_back(at::empty(shape, values.options()));
	}
	gather(indices, all_indices);
	gather(values, all_values);
	const at::Tensor sum = at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), input.sizes(),
	                                             input.options()).coalesce();
	tensors[0].copy_(sum);
	/* The Work's result is that of an operation without ranks. */
	auto made = std::make_shared<Operation>();
	made->broken = group_.broken;
	made->gives(tensors);
	auto work = c10::make_intrusive<Work>(c10d::OpType::ALLREDUCE, name_ + ":all_reduce", tensors, made, number_.load(),
	                                      timeout_.load());
	made->arrive(DDP_OK);
	return work;
}

} // namespace slurm_ddp
