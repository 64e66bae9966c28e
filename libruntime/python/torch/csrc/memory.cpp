/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: tensors in memory that the node's ranks share, on which operations take no copy. DDP allocates its buckets
 * so, and FSDP its buffers.
 */
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <list>

#include "backend.h"

#if TORCH_VERSION_MAJOR >= 2

namespace slurm_ddp {

namespace {

/* Smaller tensors are copied faster than their memory is found. */
constexpr size_t least_bytes = 64 << 10;
/* So many bytes may wait for tensors in any case. */
constexpr size_t least_idle_bytes = 64 << 20;

} // namespace

/*
 * Memory of one context. Each tensor has a block of its own, because blocks cost a descriptor each and tensors are few
 * and large. A block that is given back waits for the next tensor of its size: FSDP allocates the same sizes in
 * each step, and to map a new block takes the other ranks longer than to copy it. The blocks that wait have at most
 * twice as many bytes as tensors have had at the same time, so that sizes that do not come again are freed.
 */
class Memory : public std::enable_shared_from_this<Memory> {
 public:
	/* nullptr: there is none. */
	void *take(ddp_comm *comm, size_t bytes)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		void *memory = take_idle(bytes);

		if (memory == nullptr) {
			if (ddp_mem_alloc_local(comm, bytes, &memory) != DDP_OK)
				return nullptr;
			(void)ddp_mem_keep(comm, memory);
		}
		comm_ = comm;
		used_ += bytes;
		most_used_ = std::max(most_used_, used_);
		return memory;
	}

	void give_back(void *memory, size_t bytes)
	{
		/* A thread of the parent may have had the lock at the fork. The memory is the parent's. */
		if (forks_ != count_forks())
			return;
		std::lock_guard<std::mutex> lock(mutex_);

		used_ -= bytes;
		if (closed_) {
			(void)ddp_mem_free(nullptr, memory);
			return;
		}
		idle_.push_back({ bytes, memory });
		idle_bytes_ += bytes;
		while (comm_ != nullptr && idle_bytes_ > std::max(least_idle_bytes, 2 * most_used_)) {
			(void)ddp_mem_free(comm_, idle_.front().memory);
			idle_bytes_ -= idle_.front().bytes;
			idle_.pop_front();
		}
	}

	void keep()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		comm_ = nullptr;
	}

	/* The context is closed. Memory that tensors still use now belongs to this process alone. */
	void close()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		closed_ = true;
		for (const Idle &block : idle_)
			(void)ddp_mem_free(nullptr, block.memory);
		idle_.clear();
	}

 private:
	struct Idle {
		size_t bytes;
		void *memory;
	};

	/* The one that has waited for the shortest time is the likeliest to be in a cache. */
	void *take_idle(size_t bytes)
	{
		const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const Idle &block) { return block.bytes == bytes; });

		if (found == idle_.rend())
			return nullptr;
		void *memory = found->memory;
		idle_.erase(std::next(found).base());
		idle_bytes_ -= bytes;
		return memory;
	}

	std::mutex mutex_;
	std::list<Idle> idle_; /* the one that has waited for the longest time comes first */
	size_t used_ = 0, most_used_ = 0, idle_bytes_ = 0;
	ddp_comm *comm_ = nullptr;
	bool closed_ = false;
	const uint64_t forks_ = count_forks();
};

std::shared_ptr<Memory> new_memory()
{
	return std::make_shared<Memory>();
}

void keep_memory(Memory &memory)
{
	memory.keep();
}

void close_memory(Memory &memory)
{
	memory.close();
}

/* Only the host's tensors: their device has no index. */
bool Backend::supportsTensorAlloc(c10::DeviceIndex device)
{
	return device < 0 && !live_->is_forked() && live_->with([](const Group &group) { return group.context != nullptr; });
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options)
{
	const size_t page = 4096, bytes = static_cast<size_t>(size) * options.dtype().itemsize();
	const size_t rounded = (bytes + page - 1) / page * page;
	std::shared_ptr<Context> context;
	void *block = nullptr;

	TORCH_CHECK_VALUE(options.device().is_cpu(), "ddp: the backend has memory of the host only, and none on ",
	                  options.device());
	if (bytes >= least_bytes && !live_->is_forked())
		context = live_->with([](const Group &group) { return group.context; });
	if (context != nullptr)
		block = context->memory().take(context->comm(), rounded);
	if (block == nullptr)
		return at::empty({ size }, options);
	const auto memory = context->memory().shared_from_this();
	return at::from_blob(block, { size }, [memory, rounded](void *given) { memory->give_back(given, rounded); }, options);
}

} // namespace slurm_ddp

#else

namespace slurm_ddp {

class Memory {};

std::shared_ptr<Memory> new_memory()
{
	return nullptr;
}

void keep_memory(Memory &)
{
}

void close_memory(Memory &)
{
}

} // namespace slurm_ddp

#endif
