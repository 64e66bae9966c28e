/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operation: one operation of libddp that a process group runs, the Work that Python holds for it, and the thread
 * that completes what nobody waits for.
 *
 * A thread of libddp calls Operation::arrive(). That thread takes no lock that is held for long and never the GIL,
 * because the progress of all operations depends on it. What may need the GIL is done by finish(): it runs callbacks
 * of futures, and gives tensors back. A thread that waits for the Work calls finish(), otherwise the finisher does.
 */
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ddp.h>

namespace slurm_ddp {

using c10::intrusive_ptr;
using std::chrono::milliseconds;
using Future = c10::ivalue::Future;
using Tensors = std::vector<at::Tensor>;

/* A sentence of libddp, which names what a user of torch has called instead of libddp's functions. */
std::string in_words_of_torch(const std::string &sentence);
/* An error of libddp as an exception. */
std::exception_ptr error_of(ddp_status status, const std::string &libddps_sentence, int64_t timeout_ms = 0);
/* Throws the calling thread's last error. */
[[noreturn]] void fail(ddp_status status);

/* How often this process is the child of a fork(). */
uint64_t count_forks();
/* When a timeout ends, from now on. Centuries count as one, because the clock's nanoseconds would overflow. */
std::chrono::steady_clock::time_point end_of(milliseconds timeout);

/* Does what to.copy_(from) does, in any thread: the modes of autograd are the caller's. */
void set_values(const at::Tensor &to, const at::Tensor &from);

class Operation : public std::enable_shared_from_this<Operation> {
 public:
	~Operation();
	ddp_operation call{};

	/* Returns the address of a tensor's elements, which lie one behind the other. The tensor or its copy lives as long
	   as the operation. */
	const void *read(const at::Tensor &tensor);
	/* Does the same for a tensor that the operation writes, and throws if elements of it share memory. `read_too`: the
	   operation also reads the tensor, or may leave elements as they are. */
	void *write(const at::Tensor &tensor, bool read_too = false);
	/* Gives each rank's block an address of its own. */
	void read_each(const Tensors &tensors);
	void write_each(const Tensors &tensors);
	/* Sets how many elements each rank has. */
	void count_each(std::vector<size_t> counts, std::vector<size_t> recv_counts = {});
	/* Sets what result() and the future give. */
	void gives(Tensors tensors);
	void gives(std::vector<Tensors> lists);
	/* Notes another operation, which ends no later than this one. */
	void includes(std::shared_ptr<Operation> earlier) { before_.push_back(std::move(earlier)); }

	/* libddp owns the operation until arrive(). */
	void hold() { self_ = shared_from_this(); }
	void let_go() { self_.reset(); }
	/* A thread that waits may run the operation itself by this request. */
	void follow(ddp_request *request);
	void arrive(ddp_status status);
	void arrive(std::exception_ptr thrown);
	/* The operation has run in the caller, without a Work: puts in place what it has written, or throws. */
	void end_in_caller(ddp_status status);
	/* The Work is gone. */
	void abandon();
	/* Waits for the end; 0: without a limit. Returns false after the timeout. */
	bool wait(milliseconds timeout);
	/* Whether the operation has ended, and what it has written is in place. */
	bool ended();
	bool arrived();
	/* Called once, by the thread that has claimed it. */
	void finish();

	std::exception_ptr error();
	intrusive_ptr<Future> future();
	const Tensors &result() const { return result_; }
	int source() const { return received.source; }

	ddp_received received{};
	std::shared_ptr<std::atomic<bool>> broken; /* set if an error has ended the communicator */
	std::function<void()> at_end; /* of the profiler */

 private:
	void copy_back();
	intrusive_ptr<Future> new_future() const;
	void complete_future(const intrusive_ptr<Future> &future) const;
	bool claim(); /* with the lock held */
	/* A forked child has none of the threads that complete the operation, and any of the parent's threads may have had
	   the lock at the fork. */
	bool is_forked() const { return forks_ != count_forks(); }
	/* Whether it is a copy in a child, of an operation that had ended. Throws in a child if it had not ended. */
	bool is_copy(const char *function) const;
	void run_here(std::unique_lock<std::mutex> &lock);
	void note(ddp_status status);

	Tensors buffers_;
	std::vector<std::pair<at::Tensor, at::Tensor>> copies_; /* to, from */
	std::vector<const void *> send_list_;
	std::vector<void *> recv_list_;
	std::vector<size_t> counts_, recv_counts_;
	std::vector<std::shared_ptr<Operation>> before_;
	Tensors result_;
	std::vector<Tensors> lists_;
	bool gives_lists_ = false;

	std::mutex mutex_;
	std::condition_variable changed_;
	std::shared_ptr<Operation> self_;
	ddp_request *request_ = nullptr; /* NULL also while a thread waits for it */
	const uint64_t forks_ = count_forks();
	intrusive_ptr<Future> future_;
	std::string sentence_;
	ddp_status status_ = DDP_OK;
	std::exception_ptr thrown_, error_;
	int waiters_ = 0;
	bool arrived_ = false, claimed_ = false, abandoned_ = false;
	std::atomic<bool> finished_{ false }; /* the last to be written: a forked child reads it without the lock */
};

class Work : public c10d::Work {
 public:
	Work(c10d::OpType type, const std::string &title, const Tensors &inputs, std::shared_ptr<Operation> operation,
	     uint64_t number, milliseconds timeout);
	~Work() override;
	bool isCompleted() override { return operation_->ended(); }
	bool isSuccess() const override { return operation_->ended() && !operation_->error(); }
	std::exception_ptr exception() const override { return operation_->error(); }
	int sourceRank() const override { return operation_->source(); }
	Tensors result() override;
	void synchronize() override {}
	bool wait(milliseconds timeout = kNoTimeout) override;
	intrusive_ptr<Future> getFuture() override { return operation_->future(); }
	/* Base classes of older releases have no such functions. */
	uint64_t getSequencenumber() const { return number_; }
	milliseconds getTimeout() const { return timeout_; }

 private:
	std::shared_ptr<Operation> operation_;
	uint64_t number_;
	milliseconds timeout_;
};

/* Sees to it that a thread is there for the callbacks of an operation. Throws if none can be started. */
void reserve_finisher();
/* Completes an operation on a thread of the finisher. If there is none, the operation has no future and thus no
   callbacks, and the calling thread completes it. */
void finish_later(std::shared_ptr<Operation> operation);
/* Ends the thread after what it has got. From then on operations stay as they are, since Python is about to end. */
void stop_finisher();
/* Forgets the thread, which a forked child does not have. */
void forget_finisher();

} // namespace slurm_ddp
