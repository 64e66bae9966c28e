/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: tensors in memory that the node's ranks share, on which operations take no copy. DDP allocates its buckets
 * so, and FSDP its buffers.
 */
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <map>

#include "backend.h"

#if TORCH_VERSION_MAJOR >= 2

namespace slurm_ddp {

namespace {

/* Smaller tensors are copied faster than their memory is found. */
constexpr size_t least_bytes = 64 << 10;

} // namespace

/*
 * Memory of one context. Each tensor has a block of its own, because blocks cost a descriptor each and tensors are few
 * and large. A block that is given back waits for the next tensor of its size: FSDP allocates the same sizes in
 * each step, and to map a new block takes the other ranks longer than to copy it.
 */
class Memory : public std::enable_shared_from_this<Memory> {
 public:
	/* nullptr: there is none. */
	void *take(ddp_comm *comm, size_t bytes)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const auto found = free_.find(bytes);
		void *memory = nullptr;

		if (found != free_.end()) {
			memory = found->second;
			free_.erase(found);
			return memory;
		}
		if (ddp_mem_alloc_local(comm, bytes, &memory) != DDP_OK)
			return nullptr;
		(void)ddp_mem_keep(comm, memory);
		return memory;
	}

	void give_back(void *memory, size_t bytes)
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (closed_)
			(void)ddp_mem_free(nullptr, memory);
		else
			free_.emplace(bytes, memory);
	}

	/* The context is closed. Memory that tensors still use now belongs to this process alone. */
	void close()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		closed_ = true;
		for (const auto &[bytes, memory] : free_)
			(void)ddp_mem_free(nullptr, memory);
		free_.clear();
	}

 private:
	std::mutex mutex_;
	std::multimap<size_t, void *> free_;
	bool closed_ = false;
};

std::shared_ptr<Memory> new_memory()
{
	return std::make_shared<Memory>();
}

void close_memory(Memory &memory)
{
	memory.close();
}

/* Only the host's tensors: their device has no index. */
bool Backend::supportsTensorAlloc(c10::DeviceIndex device)
{
	return device < 0 && group_.context != nullptr && !group_.context->is_forked();
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options)
{
	const size_t page = 4096, bytes = static_cast<size_t>(size) * options.dtype().itemsize();
	const size_t rounded = (bytes + page - 1) / page * page;
	void *block = nullptr;

	TORCH_CHECK_VALUE(options.device().is_cpu(), "ddp: memory on ", options.device(), "; the backend is for the host");
	if (bytes >= least_bytes && group_.context != nullptr && !group_.context->is_forked())
		block = group_.context->memory().take(group_.context->comm(), rounded);
	if (block == nullptr)
		return at::empty({ size }, options);
	const auto memory = group_.context->memory().shared_from_this();
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

void close_memory(Memory &)
{
}

} // namespace slurm_ddp

#endif
