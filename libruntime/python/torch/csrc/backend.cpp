/* SPDX-License-Identifier: Apache-2.0 */
#include "backend.h"

#include <ATen/record_function.h>
#include <Python.h>

#include <set>

#include <c10/util/Logging.h>

#include "types.h"

namespace slurm_ddp {

using c10d::OpType;

/* What an operation is called: by c10d, and by the profiler after the backend's name. */
struct Backend::Kind {
	OpType type;
	const char *name;
};

namespace {

struct Live {
	std::mutex mutex;
	std::set<Backend *> backends;
	uint64_t forks = 0;
};

/* The backends that the end of the process closes. A forked child begins with none. */
Live &live()
{
	static Live *now = new Live;

	if (now->forks != count_forks()) {
		now = new Live;
		now->forks = count_forks();
	}
	return *now;
}

/* A group that is closed waits for other ranks, whose threads may need this process's GIL. */
class WithoutGil {
 public:
	WithoutGil()
	{
		if (Py_IsInitialized() && PyGILState_Check())
			saved_ = PyEval_SaveThread();
	}
	~WithoutGil()
	{
		if (saved_ != nullptr)
			PyEval_RestoreThread(saved_);
	}
	WithoutGil(const WithoutGil &) = delete;
	WithoutGil &operator=(const WithoutGil &) = delete;

 private:
	PyThreadState *saved_ = nullptr;
};

/* How many of libddp's elements make one of the tensor's elements: types that libddp does not know travel as bytes. */
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

} // namespace

Backend::Backend(const std::string &name, const intrusive_ptr<c10d::Store> &store, int rank, int size,
                 milliseconds timeout, Group group)
	: Base(rank, size), name_(name), store_(store), first_store_(store), timeout_(timeout), group_(std::move(group))
{
	opened_ = group_.context != nullptr;
	std::lock_guard<std::mutex> lock(live().mutex);

	live().backends.insert(this);
}

Backend::~Backend()
{
	const WithoutGil guard;
	std::unique_lock<std::mutex> lock(live().mutex);

	live().backends.erase(this);
	lock.unlock();
	shutdown();
}

void Backend::shutdown()
{
	const WithoutGil guard;
	stop_sparse();
	std::unique_lock<std::mutex> lock(issue_);
	Group group = std::move(group_);

	group_ = Group();
	lock.unlock();
	group.close();
}

void Backend::abort()
{
	if (group_.context == nullptr || group_.context->is_forked())
		return;
	abort_sparse();
	(void)ddp_comm_abort(group_.comm, "abort() of the process group was called");
}

void Backend::leave(const std::string &reason)
{
	if (group_.context == nullptr || group_.context->is_forked())
		return;
	if (group_.is_part)
		(void)ddp_comm_abort(group_.comm, ("it left: " + reason).c_str());
	else
		group_.context->leave(reason);
}

void leave_all(const std::string &reason)
{
	std::lock_guard<std::mutex> lock(live().mutex);

	for (Backend *backend : live().backends)
		backend->leave(reason);
}

void close_all(const std::string &reason)
{
	std::set<Backend *> open;

	if (!reason.empty())
		leave_all(reason);
	{
		std::lock_guard<std::mutex> lock(live().mutex);
		open = live().backends;
	}
	/* The caller has the GIL's thread, so nobody destroys a group meanwhile. */
	for (Backend *backend : open)
		backend->shutdown();
	stop_finisher();
}

/* ---- starting operations ---- */

std::shared_ptr<Operation> Backend::operation(ddp_operation_kind kind, const at::Tensor &typed, size_t count)
{
	auto made = std::make_shared<Operation>();

	made->call.kind = kind;
	made->call.type = DDP_U8;
	made->call.count = count * unit_of(typed);
	(void)type_of(typed, &made->call.type);
	return made;
}

static void ignore(void *, ddp_status)
{
}

static void arrive(void *user, ddp_status status)
{
	static_cast<Operation *>(user)->arrive(status);
}

/* Issues operations whose last one ends last. */
static ddp_status issue(ddp_comm *comm, const std::vector<std::shared_ptr<Operation>> &operations)
{
	const auto &last = operations.back();
	ddp_status status = DDP_OK;

	last->hold();
	for (size_t i = 0; i < operations.size() && status == DDP_OK; i++) {
		ddp_operation *call = &operations[i]->call;
		call->on_complete = operations[i] == last ? arrive : ignore;
		call->user = last.get();
		status = ddp_issue(comm, call, nullptr);
		/* The operations before it still use their memory. The last one never arrives, so it is never freed. */
		if (status != DDP_OK && i == 0)
			last->let_go();
	}
	return status;
}

/* What all operations of a call share, and whether the group can run them; the lock is held unless it is a message. */
void Backend::prepare(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations, milliseconds limit)
{
	for (const auto &operation : operations) {
		operation->call.timeout_ms = limit_of(limit);
		operation->broken = group_.broken;
		if (operation != operations.back())
			operations.back()->includes(operation);
	}
	TORCH_CHECK(group_.context != nullptr, "ddp: ", kind.name, " on a process group that is closed",
	            opened_ ? "" : ", or not open yet: reconfigure() opens it");
	TORCH_CHECK(!group_.context->is_forked(), "ddp: ", kind.name,
	            " in a forked child, on a process group of its parent; the child can make one of its own");
}

/* Python takes no Work for the sign that an operation has ended in the caller: a Work takes longer than a small sum. */
void Backend::run_in_caller(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations,
                            const Tensors &inputs, milliseconds limit)
{
	at::RecordFunction record(at::RecordScope::USER_SCOPE);
	ddp_status status = DDP_OK;

	if (record.isActive()) {
		const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
		record._setAsync();
		record.before(name_ + ":" + kind.name, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
	}
	std::unique_lock<std::mutex> lock(issue_);
	++number_;
	prepare(kind, operations, limit);
	for (const auto &operation : operations)
		if ((status = ddp_run(group_.comm, &operation->call)) != DDP_OK)
			break;
	lock.unlock();
	operations.back()->end_in_caller(status);
}

WorkPtr Backend::run(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations, const Tensors &inputs,
                     milliseconds timeout, bool in_caller)
{
	const bool is_message = kind.type == OpType::SEND || kind.type == OpType::RECV || kind.type == OpType::RECVANYSOURCE;
	const milliseconds limit = timeout <= milliseconds(0) ? timeout_.load() : timeout;

	if (in_caller) {
		run_in_caller(kind, operations, inputs, limit);
		return WorkPtr();
	}
	const uint64_t number = is_message ? number_.load() : ++number_;
	auto work = c10::make_intrusive<Work>(kind.type, name_ + ":" + kind.name, inputs, operations.back(), number, limit);
	std::unique_lock<std::mutex> lock(issue_, std::defer_lock);
	if (!is_message)
		lock.lock();
	prepare(kind, operations, limit);
	if (const ddp_status status = issue(group_.comm, operations); status != DDP_OK)
		fail(status);
	return work;
}

template <class Given>
WorkPtr Backend::start(const Kind &kind, std::vector<std::shared_ptr<Operation>> operations, const Tensors &inputs,
                       const Given &options)
{
	return run(kind, std::move(operations), inputs, options.timeout, runs_in_caller(options, 0));
}

/* ---- collectives ---- */

WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
	const at::Tensor &tensor = only_one("broadcast", tensors);
	auto made = operation(DDP_BROADCAST, tensor, elements(tensor));

	made->call.root = static_cast<int>(options.rootRank);
	made->call.recv = made->write(tensor, options.rootRank == rank_);
	made->gives(tensors);
	return start({ OpType::BROADCAST, "broadcast" }, { made }, tensors, options);
}

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

	TORCH_CHECK_VALUE(!tensors.empty(), "ddp: all_reduce of no tensors");
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

/* `list` has a tensor for each rank. */
static void write_list(const std::shared_ptr<Operation> &made, const Tensors &list, size_t unit)
{
	const std::vector<size_t> counts = elements_of(list);

	made->write_each(list);
	if (!all_equal(counts))
		made->count_each(scaled(counts, unit));
}

static void read_list(const std::shared_ptr<Operation> &made, const Tensors &list, size_t unit)
{
	const std::vector<size_t> counts = elements_of(list);

	made->read_each(list);
	if (!all_equal(counts))
		made->count_each(scaled(counts, unit));
}

static void check_block(const char *operation, const Tensors &list, int rank, const at::Tensor &own)
{
	const at::Tensor &block = list[static_cast<size_t>(rank)];

	TORCH_CHECK_VALUE(block.numel() == own.numel(), "ddp: ", operation, ": this rank's tensor has ", own.numel(),
	                  " elements, but the list has ", block.numel(), " for it");
	check_tensors(operation, { block, own });
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
			TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "ddp: all_gather of ", inputs.size(),
			                  " tensors into a list of ", of_rank.size());
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
	TORCH_CHECK_VALUE(elements(output) == elements(input) * members(), "ddp: all_gather of ", input.numel(),
	                  " elements from each of ", members(), " ranks into ", output.numel());
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

	TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "ddp: all_gather of ", inputs.size(),
	                  " tensors into ", outputs.size());
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
		TORCH_CHECK_VALUE(all_equal(elements_of(list)), "ddp: gather into tensors of different sizes");
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
		TORCH_CHECK_VALUE(all_equal(elements_of(list)), "ddp: scatter of tensors of different sizes");
		made->read_each(list);
	} else {
		TORCH_CHECK_VALUE(inputs.empty(), "ddp: scatter: only the root gives tensors to scatter");
	}
	made->gives(outputs);
	return start({ OpType::SCATTER, "scatter" }, { made }, outputs, options);
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
	TORCH_CHECK_VALUE(elements(input) == elements(output) * members(), "ddp: reduce_scatter of ", input.numel(),
	                  " elements into ", output.numel(), " on each of ", members(), " ranks");
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

	TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "ddp: reduce_scatter of ", inputs.size(),
	                  " tensors into ", outputs.size());
	for (size_t i = 0; i < inputs.size(); i++)
		operations.push_back(reduce_scatter_single(outputs[i], inputs[i], options.reduceOp));
	operations.back()->gives(outputs);
	return start({ OpType::REDUCE_SCATTER, "reduce_scatter" }, std::move(operations), inputs, options);
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

WorkPtr Backend::barrier(const c10d::BarrierOptions &options)
{
	auto made = std::make_shared<Operation>();

	made->call.kind = DDP_BARRIER;
	return start({ OpType::BARRIER, "barrier" }, { made }, {}, options);
}

/* ---- messages ---- */

WorkPtr Backend::send(Tensors &tensors, int peer, int tag)
{
	const at::Tensor &tensor = only_one("send", tensors);
	auto made = std::make_shared<Operation>();

	made->call.kind = DDP_SEND;
	made->call.type = DDP_U8;
	made->call.count = tensor.nbytes();
	made->call.send = made->read(tensor);
	made->call.root = peer;
	made->call.tag = tag;
	made->gives(tensors);
	return run({ OpType::SEND, "send" }, { made }, tensors, c10d::kUnsetTimeout, false);
}

WorkPtr Backend::receive(const at::Tensor &tensor, int peer, int tag)
{
	const bool any = peer == DDP_ANY_SOURCE;
	auto made = std::make_shared<Operation>();

	made->call.kind = DDP_RECV;
	made->call.type = DDP_U8;
	made->call.count = tensor.nbytes();
	made->call.recv = made->write(tensor);
	made->call.root = peer;
	made->call.tag = tag;
	if (any)
		made->call.received = &made->received;
	else
		made->received.source = peer;
	made->gives(Tensors{ tensor });
	return run(any ? Kind{ OpType::RECVANYSOURCE, "recvAnySource" } : Kind{ OpType::RECV, "recv" }, { made }, { tensor },
	           c10d::kUnsetTimeout, false);
}

WorkPtr Backend::recv(Tensors &tensors, int peer, int tag)
{
	return receive(only_one("recv", tensors), peer, tag);
}

WorkPtr Backend::recvAnysource(Tensors &tensors, int tag)
{
	return receive(only_one("recv", tensors), DDP_ANY_SOURCE, tag);
}

} // namespace slurm_ddp
