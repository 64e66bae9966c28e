/* SPDX-License-Identifier: Apache-2.0 */
#include "backend.h"

#include <ATen/record_function.h>

#include "gil.h"
#include "types.h"

namespace slurm_ddp {

using c10d::OpType;

Backend::Backend(const std::string &name, const intrusive_ptr<c10d::Store> &store, int rank, int size,
                 milliseconds timeout, Group group)
	: Base(rank, size), name_(name), store_(store), first_store_(store), timeout_(timeout),
	  opened_(group.context != nullptr), live_(std::make_shared<LiveGroup>(std::move(group)))
{
	remember(live_);
}

Backend::~Backend()
{
	const WithoutGil guard;

	forget(live_.get());
	live_->close();
}

void Backend::shutdown()
{
	const WithoutGil guard;

	live_->close();
}

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
static ddp_status issue(ddp_comm *comm, const std::vector<std::shared_ptr<Operation>> &operations, bool is_message)
{
	const auto &last = operations.back();
	ddp_request *request = nullptr;
	ddp_status status = DDP_OK;

	last->hold();
	for (size_t i = 0; i < operations.size() && status == DDP_OK; i++) {
		const bool is_last = operations[i] == last;
		ddp_operation *call = &operations[i]->call;
		call->on_complete = is_last ? arrive : ignore;
		call->user = last.get();
		status = ddp_issue(comm, call, is_last && !is_message ? &request : nullptr);
		/* The operations before it still use their memory. The last one never arrives, so it is never freed. */
		if (status != DDP_OK && i == 0)
			last->let_go();
	}
	if (request != nullptr)
		last->follow(request);
	return status;
}

/* Sets what all operations of a call share, and throws if the group cannot run them. */
void Backend::prepare(const Group &group, const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations,
                      milliseconds limit) const
{
	for (const auto &operation : operations) {
		operation->call.timeout_ms = limit_of(limit);
		operation->broken = group.broken;
		if (operation != operations.back())
			operations.back()->includes(operation);
	}
	TORCH_CHECK(group.context != nullptr, "ddp: ", kind.name, " was called on a process group that is closed",
	            opened_ ? "" : ", or is not open yet: reconfigure() opens it");
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
	std::unique_lock<std::mutex> lock(live_->issue);
	const Group &group = live_->group();
	++number_;
	prepare(group, kind, operations, limit);
	for (const auto &operation : operations)
		if ((status = ddp_run(group.comm.get(), &operation->call)) != DDP_OK)
			break;
	lock.unlock();
	operations.back()->end_in_caller(status);
}

WorkPtr Backend::run(const Kind &kind, const std::vector<std::shared_ptr<Operation>> &operations, const Tensors &inputs,
                     milliseconds timeout, bool in_caller)
{
	const bool is_message = kind.type == OpType::SEND || kind.type == OpType::RECV || kind.type == OpType::RECVANYSOURCE;
	const milliseconds limit = timeout <= milliseconds(0) ? timeout_.load() : timeout;

	live_->refuse_fork(kind.name);
	if (in_caller) {
		run_in_caller(kind, operations, inputs, limit);
		return WorkPtr();
	}
	const uint64_t number = is_message ? number_.load() : ++number_;
	auto work = c10::make_intrusive<Work>(kind.type, name_ + ":" + kind.name, inputs, operations.back(), number, limit);
	const auto begin = [&](const Group &group) {
		prepare(group, kind, operations, limit);
		if (const ddp_status status = issue(group.comm.get(), operations, is_message); status != DDP_OK)
			fail(status);
	};
	if (is_message) {
		live_->with(begin);
	} else {
		std::lock_guard<std::mutex> lock(live_->issue);
		begin(live_->group());
	}
	return work;
}

WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
	const at::Tensor &tensor = only_one("broadcast", tensors);
	auto made = operation(DDP_BROADCAST, tensor, elements(tensor));

	made->call.root = static_cast<int>(options.rootRank);
	made->call.recv = options.rootRank == rank_ ? const_cast<void *>(made->read(tensor)) : made->write(tensor);
	made->gives(tensors);
	return start({ OpType::BROADCAST, "broadcast" }, { made }, tensors, options);
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

/* As with gloo, a message may be shorter than the tensor, whose other elements stay as they are. */
WorkPtr Backend::receive(const at::Tensor &tensor, int peer, int tag)
{
	const bool any = peer == DDP_ANY_SOURCE;
	auto made = std::make_shared<Operation>();

	made->call.kind = DDP_RECV;
	made->call.type = DDP_U8;
	made->call.count = tensor.nbytes();
	made->call.recv = made->write(tensor, true);
	made->call.root = peer;
	made->call.tag = tag;
	made->call.received = &made->received;
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
