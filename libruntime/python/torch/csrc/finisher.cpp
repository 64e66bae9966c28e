/* SPDX-License-Identifier: Apache-2.0 */
#include <deque>
#include <system_error>
#include <thread>
#include <vector>

#include <c10/util/Logging.h>

#include "operation.h"

namespace slurm_ddp {

namespace {

/* How long a further thread leaves an operation to the first one, which completes them in order. */
constexpr auto patience = std::chrono::microseconds(200);

/*
 * A callback may wait for another operation, which then needs a further thread. So at least one thread is outside of
 * callbacks. A thread starts a further one before it begins with a callback. If none can be started (ulimit -u,
 * pids.max), the callback runs nevertheless, and nobody gets a further future. A callback then waits in vain only for a
 * future that somebody got before; a warning tells that.
 */
class Finisher {
 public:
	void reserve()
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (stopped_ || free_ > 0)
			return;
		if (const std::error_code error = add_thread())
			std::rethrow_exception(error_of(DDP_ERR_NOMEM, "cannot start a thread that runs callbacks (see ulimit -u): " +
			                                error.message()));
	}

	void push(std::shared_ptr<Operation> operation)
	{
		std::unique_lock<std::mutex> lock(mutex_);

		if (stopped_) {
			/* To give back its tensors may need the GIL, which no thread can take any more. */
			new std::shared_ptr<Operation>(std::move(operation));
			return;
		}
		if (threads_.empty() && add_thread()) {
			lock.unlock();
			operation->finish();
			return;
		}
		queue_.push_back(std::move(operation));
		call_one();
	}

	void stop()
	{
		std::unique_lock<std::mutex> lock(mutex_);

		stopped_ = true;
		filled_.notify_one();
		left_over_.notify_all();
		/* Threads that end may start further ones for what is queued. */
		while (!threads_.empty()) {
			std::thread thread = std::move(threads_.back());
			threads_.pop_back();
			lock.unlock();
			if (thread.get_id() != std::this_thread::get_id())
				thread.join();
			else
				thread.detach();
			lock.lock();
		}
	}

 private:
	/* The queue has got an operation, or still has one. If all threads are in callbacks and none can be started, one of
	   them comes to the operation after its callback. */
	void call_one()
	{
		if (free_ == 0 && add_thread() && !std::exchange(told_, true))
			LOG(WARNING) << "ddp: callbacks of an operation wait until those of another one have ended, because no thread can be "
			                "started (see ulimit -u)";
		if (first_is_free_)
			filled_.notify_one();
		else
			left_over_.notify_one();
	}

	std::error_code add_thread()
	{
		const bool first = !has_first_;

		try {
			threads_.emplace_back([this, first] { run(first); });
		} catch (const std::system_error &error) {
			return error.code();
		}
		has_first_ = true;
		first_is_free_ = first_is_free_ || first;
		free_++;
		return {};
	}

	/* Whether there is an operation for this thread. */
	bool take(std::unique_lock<std::mutex> &lock, bool first)
	{
		while (true) {
			(first ? filled_ : left_over_).wait(lock, [this] { return stopped_ || !queue_.empty(); });
			if (queue_.empty())
				return false;
			if (first || stopped_)
				return true;
			const Operation *front = queue_.front().get();
			lock.unlock();
			std::this_thread::sleep_for(patience);
			lock.lock();
			if (!queue_.empty() && queue_.front().get() == front)
				return true;
		}
	}

	void run(bool first)
	{
		std::unique_lock<std::mutex> lock(mutex_);

		while (take(lock, first)) {
			std::shared_ptr<Operation> operation = std::move(queue_.front());
			queue_.pop_front();
			free_--;
			if (first)
				first_is_free_ = false;
			if (!queue_.empty())
				call_one();
			else if (free_ == 0 && !stopped_)
				(void)add_thread();
			lock.unlock();
			operation->finish();
			operation.reset();
			lock.lock();
			free_++;
			if (first)
				first_is_free_ = true;
		}
	}

	std::mutex mutex_;
	std::condition_variable filled_, left_over_; /* of the first thread, and of the others */
	std::deque<std::shared_ptr<Operation>> queue_;
	std::vector<std::thread> threads_;
	int free_ = 0; /* threads outside of callbacks */
	bool has_first_ = false, first_is_free_ = false, stopped_ = false, told_ = false;
};

/* It is never freed, because operations may end while the process exits. */
Finisher *finisher = new Finisher;

} // namespace

void reserve_finisher()
{
	finisher->reserve();
}

void finish_later(std::shared_ptr<Operation> operation)
{
	finisher->push(std::move(operation));
}

void stop_finisher()
{
	finisher->stop();
}

void forget_finisher()
{
	finisher = new Finisher;
}

} // namespace slurm_ddp
