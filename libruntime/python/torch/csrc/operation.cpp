/* SPDX-License-Identifier: Apache-2.0 */
#include "operation.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <regex>

namespace slurm_ddp {

std::string in_words_of_torch(const std::string &sentence)
{
	/* They are never freed: operations may end while the process exits. */
	static const auto &words = *new std::vector<std::pair<std::regex, const char *>>{
		{ std::regex("ddp_finalize\\(\\)( or destroy_process_group\\(\\))?"), "destroy_process_group() or the end of its program" },
		{ std::regex("ddp_comm_free\\(\\)( or destroy_process_group\\(\\))?"), "destroy_process_group()" },
		{ std::regex("ddp_comm_create_group\\(\\)( or new_group\\(\\), tag [0-9]+)?"), "new_group() or split_group()" },
		{ std::regex("ddp_init\\(\\)"), "init_process_group()" },
		{ std::regex("ddp_comm_abort\\(\\)"), "abort()" },
		{ std::regex("memory of ddp_mem_alloc(_local)?\\(\\)( or allocate_tensor\\(\\))?"), "memory of allocate_tensor()" },
		{ std::regex("\\b(its|the|a) communicator"), "$1 process group" },
	};
	std::string text = sentence;

	for (const auto &[function, word] : words)
		text = std::regex_replace(text, function, word);
	return text;
}

std::exception_ptr error_of(ddp_status status, const std::string &libddps_sentence, int64_t timeout_ms)
{
	const std::string sentence = in_words_of_torch(libddps_sentence);
	std::string text = ddp_status_name(status) + (": " + sentence);

	/* PyTorch's own tests, and programs that retry, look for these words. */
	if (status == DDP_ERR_TIMEOUT && timeout_ms > 0)
		text = c10::str(ddp_status_name(status), ": Timed out waiting ", timeout_ms, "ms: ", sentence);

#if TORCH_VERSION_MAJOR >= 2
	return std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text));
#else
	return std::make_exception_ptr(c10::Error({ __func__, __FILE__, static_cast<uint32_t>(__LINE__) }, text));
#endif
}

void fail(ddp_status status)
{
	std::rethrow_exception(error_of(status, ddp_last_error()));
}

std::chrono::steady_clock::time_point end_of(milliseconds timeout)
{
	const milliseconds century = std::chrono::hours(100 * 365 * 24);

	return std::chrono::steady_clock::now() + std::min(timeout, century);
}

void set_values(const at::Tensor &to, const at::Tensor &from)
{
	const c10::InferenceMode mode(to.is_inference());
	const at::NoGradGuard guard;

	to.copy_(from);
}

const void *Operation::read(const at::Tensor &tensor)
{
	static const char nothing = 0;

	buffers_.push_back(tensor.contiguous());
	/* To libddp, NULL means in place. */
	return tensor.numel() > 0 ? buffers_.back().data_ptr() : &nothing;
}

void *Operation::write(const at::Tensor &tensor, bool read_too)
{
	static char nothing;

	buffers_.push_back(tensor.is_contiguous() ? tensor : read_too ? tensor.contiguous()
	                   : at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous)));
	if (!tensor.is_contiguous()) {
		/* copy_back() would throw after the operation, which the other ranks would not hear of. */
		at::assert_no_internal_overlap(tensor);
		copies_.emplace_back(tensor, buffers_.back());
	}
	return tensor.numel() > 0 ? buffers_.back().data_ptr() : &nothing;
}

void Operation::read_each(const Tensors &tensors)
{
	for (const at::Tensor &t : tensors)
		send_list_.push_back(read(t));
	call.send_list = send_list_.data();
}

void Operation::write_each(const Tensors &tensors)
{
	for (const at::Tensor &t : tensors)
		recv_list_.push_back(write(t));
	call.recv_list = recv_list_.data();
}

void Operation::count_each(std::vector<size_t> counts, std::vector<size_t> recv_counts)
{
	counts_ = std::move(counts);
	recv_counts_ = std::move(recv_counts);
	call.count = 0;
	call.counts = counts_.data();
	call.recv_counts = recv_counts_.empty() ? nullptr : recv_counts_.data();
}

void Operation::gives(Tensors tensors)
{
	result_ = std::move(tensors);
}

void Operation::gives(std::vector<Tensors> lists)
{
	/* As with gloo, the result is a list of lists only if there are several lists. */
	if (lists.size() == 1)
		return gives(std::move(lists[0]));
	gives_lists_ = !lists.empty();
	lists_ = std::move(lists);
}

void Operation::copy_back()
{
	for (auto &earlier : before_)
		earlier->copy_back();
	for (auto &[to, from] : copies_)
		set_values(to, from);
	copies_.clear();
}

bool Operation::claim()
{
	if (!arrived_ || claimed_)
		return false;
	return claimed_ = true;
}

void Operation::note(ddp_status status)
{
	status_ = status;
	if (status != DDP_OK)
		sentence_ = ddp_last_error();
	if (status == DDP_ERR_PEER || status == DDP_ERR_TIMEOUT || status == DDP_ERR_ABORTED || status == DDP_ERR_MISMATCH)
		*broken = true;
}

void Operation::end_in_caller(ddp_status status)
{
	note(status);
	if (status != DDP_OK)
		std::rethrow_exception(error_of(status_, sentence_, call.timeout_ms));
	copy_back();
}

void Operation::arrive(ddp_status status)
{
	std::unique_lock<std::mutex> lock(mutex_);

	note(status);
	arrived_ = true;
	changed_.notify_all();
	std::shared_ptr<Operation> self = std::move(self_);
	if (self == nullptr)
		return;
	if (waiters_ == 0 && (abandoned_ || future_ != nullptr) && claim()) {
		lock.unlock();
		finish_later(std::move(self));
		return;
	}
	/* The Work has another reference, which it keeps as long as this thread has the lock. */
	self.reset();
}

void Operation::arrive(std::exception_ptr thrown)
{
	{
		std::lock_guard<std::mutex> lock(mutex_);
		thrown_ = std::move(thrown);
	}
	arrive(DDP_OK);
}

void Operation::finish()
{
	std::exception_ptr error;

	try {
		if (thrown_)
			error = thrown_;
		else if (status_ != DDP_OK)
			error = error_of(status_, sentence_, call.timeout_ms);
		else
			copy_back();
	} catch (...) {
		error = std::current_exception();
	}
	if (at_end)
		at_end();
	std::unique_lock<std::mutex> lock(mutex_);
	error_ = error;
	finished_ = true;
	intrusive_ptr<Future> future = future_;
	lock.unlock();
	changed_.notify_all();
	if (future)
		complete_future(future);
}

void Operation::complete_future(const intrusive_ptr<Future> &future) const
{
	if (error_) {
		future->setError(error_);
	} else if (gives_lists_) {
		future->markCompleted(c10::IValue(lists_));
	} else {
		future->markCompleted(c10::IValue(result_));
	}
}

Operation::~Operation()
{
	if (!is_forked())
		ddp_request_free(request_);
}

void Operation::follow(ddp_request *request)
{
	std::lock_guard<std::mutex> lock(mutex_);

	request_ = request;
}

void Operation::abandon()
{
	if (is_forked())
		return;
	std::unique_lock<std::mutex> lock(mutex_);

	abandoned_ = true;
	if (!claim())
		return;
	lock.unlock();
	finish();
}

/* One thread of those that wait runs the operation, unless a thread of libddp has begun with it. */
void Operation::run_here(std::unique_lock<std::mutex> &lock)
{
	ddp_request *request = std::exchange(request_, nullptr);

	lock.unlock();
	(void)ddp_wait(request);
	lock.lock();
	/* In a callback of libddp nothing may wait. */
	if (!arrived_)
		request_ = request;
}

bool Operation::is_copy(const char *function) const
{
	TORCH_CHECK(!is_forked() || finished_, "ddp: a forked child cannot call ", function,
	            " for an operation of its parent: only the parent has the threads that complete it");
	return is_forked();
}

bool Operation::wait(milliseconds timeout)
{
	if (is_copy("wait()"))
		return true;
	std::unique_lock<std::mutex> lock(mutex_);
	const auto end = end_of(timeout);
	/* A claimed operation is about to be finished by another thread. */
	const auto done = [this] { return finished_ || (arrived_ && !claimed_); };

	waiters_++;
	if (timeout <= milliseconds(0) && request_ != nullptr && !arrived_)
		run_here(lock);
	if (timeout <= milliseconds(0))
		changed_.wait(lock, done);
	else if (!changed_.wait_until(lock, end, done)) {
		waiters_--;
		return false;
	}
	waiters_--;
	if (claim()) {
		lock.unlock();
		finish();
	}
	return true;
}

bool Operation::ended()
{
	if (is_forked())
		return finished_;
	std::unique_lock<std::mutex> lock(mutex_);

	if (claim()) {
		lock.unlock();
		finish();
		return true;
	}
	return finished_;
}

std::exception_ptr Operation::error()
{
	if (is_forked())
		return error_;
	std::lock_guard<std::mutex> lock(mutex_);

	return error_;
}

intrusive_ptr<Future> Operation::new_future() const
{
	const c10::TypePtr list = c10::ListType::create(c10::TensorType::get());

	return c10::make_intrusive<Future>(gives_lists_ ? c10::ListType::create(list) : list);
}

intrusive_ptr<Future> Operation::future()
{
	if (is_copy("get_future()")) {
		const intrusive_ptr<Future> ended = new_future();
		complete_future(ended);
		return ended;
	}
	std::unique_lock<std::mutex> lock(mutex_);

	if (future_)
		return future_;
	if (!arrived_)
		reserve_finisher();
	future_ = new_future();
	const intrusive_ptr<Future> future = future_;
	const bool finished = finished_, mine = claim();
	lock.unlock();
	if (mine)
		finish();
	else if (finished)
		complete_future(future);
	return future;
}

Work::Work(c10d::OpType type, const std::string &title, const Tensors &inputs, std::shared_ptr<Operation> operation,
           uint64_t number, milliseconds timeout)
	: c10d::Work(-1, type, title.c_str(), inputs), operation_(std::move(operation)), number_(number), timeout_(timeout)
{
	operation_->at_end = std::move(recordFunctionEndCallback_);
	recordFunctionEndCallback_ = nullptr;
}

Work::~Work()
{
	operation_->abandon();
}

Tensors Work::result()
{
	TORCH_CHECK(operation_->ended(), "result() is called before the operation is complete: call wait() first");
	return operation_->result();
}

bool Work::wait(milliseconds timeout)
{
	if (!operation_->wait(timeout))
		std::rethrow_exception(error_of(DDP_ERR_TIMEOUT, "the operation has not ended", timeout.count()));
	if (const auto error = operation_->error())
		std::rethrow_exception(error);
	return true;
}

} // namespace slurm_ddp
