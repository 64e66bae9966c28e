/* SPDX-License-Identifier: Apache-2.0 */
/* backend: c10d's process group over a communicator of libddp. */
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include "live_group.h"

/* Whether torch asks backends for parts of a group, and for groups without ranks that have failed. */
#define DDP_TORCH_GROUPS (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9))
#ifdef C10D_BACKEND_HAS_RECONFIGURE
#define DDP_TORCH_FAULTS 1
#endif

namespace slurm_ddp {

using WorkPtr = intrusive_ptr<c10d::Work>;
#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup; /* torch 1.13 has no backends inside of process groups yet */
#endif

/* Torch 1.13 has no asyncOp: its Python waits for the Work. */
template <class Options> auto runs_in_caller(const Options &options, int) -> decltype(!options.asyncOp)
{
	return !options.asyncOp;
}

template <class Options> bool runs_in_caller(const Options &, long)
{
	return false;
}

class SparseLine;

class Backend : public Base {
 public:
	Backend(const std::string &name, const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout,
	        Group group);
	~Backend() override;

	const std::string getBackendName() const override { return name_; }
	uint64_t getSequenceNumberForGroup() override { return number_; }
	void setSequenceNumberForGroup() override {}

	WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
	WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
	WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override;
	WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
	WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override;
	WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override;
	WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
	                            const c10d::AllgatherOptions &options) override;
	WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options) override;
	WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &options) override;
	WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
	                       const c10d::ReduceScatterOptions &options) override;
	WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
	                             const c10d::ReduceScatterOptions &options) override;
	WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
	                      std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options) override;
	WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override;
	WorkPtr send(Tensors &tensors, int peer, int tag) override;
	WorkPtr recv(Tensors &tensors, int peer, int tag) override;
	WorkPtr recvAnysource(Tensors &tensors, int tag) override;
	WorkPtr barrier(const c10d::BarrierOptions &options) override;
	void monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks) override;

	/* Releases of torch differ in whether the base class has these functions. */
	WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options);
	WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &options);
	WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
	                                        const c10d::ReduceScatterOptions &options);
	void setTimeout(milliseconds timeout) { timeout_ = timeout; }
	void abort() { live_->abort(); }
	void shutdown();
#if DDP_TORCH_GROUPS
	bool supportsSplitting() const override { return true; }
	intrusive_ptr<Options> getBackendOptions() override;
	intrusive_ptr<Base> split(const intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
	                          const intrusive_ptr<Options> &options) override;
	intrusive_ptr<Base> merge(const intrusive_ptr<c10d::Store> &store, const intrusive_ptr<Options> &options,
	                          const int &rank, const int &size) override;
	c10d::ErrorType getError() override;
#endif
#if DDP_TORCH_FAULTS
	bool supportsShrinking() const override { return true; }
	intrusive_ptr<Base> shrink(const std::vector<int64_t> &excluded, int flags,
	                           const intrusive_ptr<Options> &options) override;
	bool supportsReconfigure() const override { return true; }
	std::string get_reconfigure_handle() const override { return handle_; }
	WorkPtr reconfigure(const c10d::ReconfigureOptions &options) override;
#endif
#if TORCH_VERSION_MAJOR >= 2
	bool supportsTensorAlloc(c10::DeviceIndex device);
	at::Tensor allocateTensor(long size, at::TensorOptions options);
#endif

 private:
	/* What an operation is called: by c10d, and by the profiler after the backend's name. */
	struct Kind {
		c10d::OpType type;
		const char *name;
	};
	static std::string new_handle();
	template <class Given> WorkPtr start(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations,
	                                     const Tensors &inputs, const Given &options)
	{
		return run(kind, operations, inputs, options.timeout, runs_in_caller(options, 0));
	}
	WorkPtr run(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations, const Tensors &inputs,
	            milliseconds timeout, bool in_caller);
	void prepare(const Group &group, const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations,
	             milliseconds limit) const;
	void run_in_caller(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations, const Tensors &inputs,
	                   milliseconds limit);
	std::shared_ptr<Operation> operation(ddp_operation_kind kind, const at::Tensor &typed, size_t count);
	std::shared_ptr<Operation> all_gather_single(const at::Tensor &output, const at::Tensor &input);
	std::shared_ptr<Operation> reduce_scatter_single(const at::Tensor &output, const at::Tensor &input,
	                                                 const c10d::ReduceOp &op);
	std::shared_ptr<Operation> all_reduce(const at::Tensor &tensor, const c10d::ReduceOp &op);
	WorkPtr receive(const at::Tensor &tensor, int peer, int tag);
	std::shared_ptr<SparseLine> sparse_line();
	size_t members() const { return static_cast<size_t>(size_); }

	std::string name_;
	intrusive_ptr<c10d::Store> store_, first_store_; /* reconfigure() changes the first one */
	std::atomic<milliseconds> timeout_;
	std::atomic<bool> opened_;
	std::shared_ptr<LiveGroup> live_;
	std::atomic<uint64_t> number_{ 0 };
	uint64_t barriers_ = 0, parts_ = 0, shrinks_ = 0;
	std::string passed_; /* rank 0's key of the last monitored barrier */
	std::string handle_ = new_handle();
};

} // namespace slurm_ddp
