/* SPDX-License-Identifier: Apache-2.0 */
#include <deque>
#include <thread>

#include "operation.h"

namespace slurm_ddp {

namespace {

class Finisher {
 public:
	void push(std::shared_ptr<Operation> operation)
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (stopped_) {
			/* To give back its tensors may need the GIL, which no thread can take any more. */
			new std::shared_ptr<Operation>(std::move(operation));
			return;
		}
		queue_.push_back(std::move(operation));
		if (!thread_.joinable())
			thread_ = std::thread([this] { run(); });
		filled_.notify_one();
	}

	void stop()
	{
		std::unique_lock<std::mutex> lock(mutex_);

		stopped_ = true;
		filled_.notify_one();
		lock.unlock();
		if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id())
			thread_.join();
	}

 private:
	void run()
	{
		std::unique_lock<std::mutex> lock(mutex_);

		while (true) {
			filled_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
			if (queue_.empty())
				return;
			std::shared_ptr<Operation> operation = std::move(queue_.front());
			queue_.pop_front();
			lock.unlock();
			operation->finish();
			operation.reset();
			lock.lock();
		}
	}

	std::mutex mutex_;
	std::condition_variable filled_;
	std::deque<std::shared_ptr<Operation>> queue_;
	std::thread thread_;
	bool stopped_ = false;
};

/* It is never freed, because operations may end while the process exits. */
Finisher *finisher = new Finisher;

} // namespace

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
