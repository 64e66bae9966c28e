/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse: the sum of sparse tensors. All ranks get all indices and values, and add them. This takes several
 * collectives, whose sizes the first one brings. They run in a thread and a communicator of their own. So they may
 * meet the group's other operations in any order.
 */
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>

#include <deque>
#include <thread>

#include "backend.h"
#include "gil.h"
#include "types.h"

namespace slurm_ddp {

/* Runs sums one after the other, on all ranks in the same order. */
class SparseLine : public Beside {
 public:
	explicit SparseLine(intrusive_ptr<Backend> backend) : group(std::move(backend)), thread_([this] { run(); }) {}
	~SparseLine() override { SparseLine::stop(); }

	void push(std::function<void()> sum)
	{
		std::lock_guard<std::mutex> lock(mutex_);

		TORCH_CHECK(!stopped_, "ddp: all_reduce was called on a process group that is closed");
		queue_.push_back(std::move(sum));
		filled_.notify_one();
	}

	void abort() override { group->abort(); }
	/* Waits for the end of the sums. Several threads may close the group; each of them waits, and one joins the thread. */
	void stop() override
	{
		const WithoutGil guard;
		std::lock_guard<std::mutex> alone(stopping_);
		std::unique_lock<std::mutex> lock(mutex_);

		stopped_ = true;
		lock.unlock();
		filled_.notify_one();
		if (thread_.joinable())
			thread_.join();
		group->shutdown();
	}

	const intrusive_ptr<Backend> group;

 private:
	void run()
	{
		std::unique_lock<std::mutex> lock(mutex_);

		while (true) {
			filled_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
			if (queue_.empty())
				return;
			std::function<void()> sum = std::move(queue_.front());
			queue_.pop_front();
			lock.unlock();
			sum();
			sum = nullptr;
			lock.lock();
		}
	}

	std::mutex mutex_, stopping_;
	std::condition_variable filled_;
	std::deque<std::function<void()>> queue_;
	bool stopped_ = false;
	std::thread thread_;
};

static void add_all(Backend &group, const at::Tensor &input, milliseconds timeout, at::Tensor to)
{
	at::NoGradGuard guard;
	const at::Tensor indices = input.indices(), values = input.values();
	const auto gather = [&](const at::Tensor &own, const Tensors &of_ranks) {
		std::vector<Tensors> outputs{ of_ranks };
		Tensors inputs{ own };
		c10d::AllgatherOptions with;
		with.timeout = timeout;
		group.allgather(outputs, inputs, with)->wait();
	};
	Tensors entries, all_indices, all_values;

	for (int rank = 0; rank < group.getSize(); rank++)
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
	set_values(to, at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), input.sizes(), input.options())
	                   .coalesce());
}

std::shared_ptr<SparseLine> Backend::sparse_line()
{
	std::lock_guard<std::mutex> lock(live_->issue);
	const Group &group = live_->group();

	TORCH_CHECK(group.context != nullptr, "ddp: all_reduce was called on a process group that is closed");
	if (live_->beside() == nullptr) {
		std::vector<int> all(members());
		for (int rank = 0; rank < size_; rank++)
			all[static_cast<size_t>(rank)] = rank;
		Group part = open_part(group, all, "sparse");
		part.broken = group.broken;
		live_->set_beside(std::make_shared<SparseLine>(
			c10::make_intrusive<Backend>(name_, store_, rank_, size_, timeout_.load(), std::move(part))));
	}
	return std::static_pointer_cast<SparseLine>(live_->beside());
}

WorkPtr Backend::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options)
{
	TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse(), "ddp: all_reduce takes one sparse tensor at a time");
	TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "ddp: sparse tensors can be summed only");
	live_->refuse_fork("all_reduce");
	const std::shared_ptr<SparseLine> line = sparse_line();
	const milliseconds limit = options.timeout <= milliseconds(0) ? timeout_.load() : options.timeout;
	const auto made = std::make_shared<Operation>();

	made->broken = live_->with([](const Group &group) { return group.broken; });
	made->gives(tensors);
	auto work = c10::make_intrusive<Work>(c10d::OpType::ALLREDUCE, name_ + ":all_reduce", tensors, made, ++number_, limit);
	line->push([made, limit, group = line->group.get(), input = tensors[0].coalesce(), to = tensors[0]] {
		made->hold();
		try {
			add_all(*group, input, limit, to);
			made->arrive(DDP_OK);
		} catch (...) {
			made->arrive(std::current_exception());
		}
	});
	if (runs_in_caller(options, 0))
		work->wait();
	return work;
}

} // namespace slurm_ddp
