/* SPDX-License-Identifier: Apache-2.0 */
/* monitored: the monitored barrier. */
#include <thread>

#include "backend.h"

namespace slurm_ddp {

namespace {

using Clock = std::chrono::steady_clock;

/* Waits for a key by looking, so that other threads may use the store meanwhile. Returns false at the deadline. */
bool came(c10d::Store &store, const std::string &key, Clock::time_point end)
{
	auto pause = std::chrono::microseconds(50);

	while (!store.check({ key })) {
		if (Clock::now() >= end)
			return false;
		std::this_thread::sleep_for(pause);
		pause = std::min(pause * 2, std::chrono::microseconds(5000));
	}
	return true;
}

std::string list_of(const std::vector<int> &ranks)
{
	std::string text;

	for (const int rank : ranks)
		text += (text.empty() ? "" : ", ") + std::to_string(rank);
	return text;
}

const std::vector<uint8_t> yes{ 1 };

} // namespace

/*
 * The barrier uses the store, because an operation that times out would end the communicator, and a program may go on
 * after a failed monitored barrier.
 */
void Backend::monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks)
{
	const milliseconds limit = options.timeout == c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
	const auto end = Clock::now() + limit;
	const std::string name = "ddp_monitored_barrier/" + std::to_string(barriers_++) + "/";
	const std::string in_time = " in " + std::to_string(limit.count()) + " ms";
	std::vector<int> missing;

	if (rank_ != 0) {
		store_->set(name + std::to_string(rank_), yes);
		TORCH_CHECK(came(*store_, name + "passed", end), "Rank ", rank_,
		            " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0", in_time,
		            ". Please check rank 0 logs for faulty rank.");
		return;
	}
	for (int rank = 1; rank < size_ && (all_ranks || missing.empty()); rank++)
		if (!came(*store_, name + std::to_string(rank), end))
			missing.push_back(rank);
	TORCH_CHECK(limit > milliseconds(0) || missing.empty(), "Rank 0 timed out in monitoredBarrier after 0 ms");
	TORCH_CHECK(missing.empty(), missing.size() > 1 ? "Ranks " : "Rank ", list_of(missing),
	            " failed to pass monitoredBarrier", in_time);
	store_->set(name + "passed", yes);
}

} // namespace slurm_ddp
