/* SPDX-License-Identifier: Apache-2.0 */
/* monitored: the monitored barrier. */
#include "backend.h"
#include "gil.h"

namespace slurm_ddp {

namespace {

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
 * after a failed monitored barrier. Rank 0 deletes the keys of the others that it has seen, and its own key at the next
 * barrier that all ranks have reached, because all of them have seen the key by then.
 */
void Backend::monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks)
{
	const milliseconds limit = options.timeout == c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
	const auto end = end_of(limit);
	const std::string name = "ddp_monitored_barrier/" + std::to_string(barriers_++) + "/";
	const std::string in_time = " in " + std::to_string(limit.count()) + " ms";
	std::vector<int> missing;

	live_->refuse_fork("monitored_barrier()");
	const WithoutGil guard;
	if (rank_ != 0) {
		store_->set(name + std::to_string(rank_), yes);
		TORCH_CHECK(came(*store_, name + "passed", end), "Rank ", rank_,
		            " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0", in_time,
		            ". Please check rank 0 logs for faulty rank.");
		return;
	}
	for (int rank = 1; rank < size_ && (all_ranks || missing.empty()); rank++) {
		if (came(*store_, name + std::to_string(rank), end))
			(void)store_->deleteKey(name + std::to_string(rank));
		else
			missing.push_back(rank);
	}
	TORCH_CHECK(limit > milliseconds(0) || missing.empty(), "Rank 0 timed out in monitoredBarrier after 0 ms");
	TORCH_CHECK(missing.empty(), missing.size() > 1 ? "Ranks " : "Rank ", list_of(missing),
	            " failed to pass monitoredBarrier", in_time);
	if (!passed_.empty())
		(void)store_->deleteKey(passed_);
	passed_ = name + "passed";
	store_->set(passed_, yes);
}

} // namespace slurm_ddp
