/* SPDX-License-Identifier: Apache-2.0 */
/* groups: process groups that are made of another one: its parts, and what goes on after ranks have failed. */
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend.h"

namespace slurm_ddp {

/* It names this process group of this process, also to processes that start later. */
std::string Backend::new_handle()
{
	std::random_device random;
	std::ostringstream text;

	text << "ddp-" << getpid() << "-" << std::hex << random() << random();
	return text.str();
}

#if DDP_TORCH_GROUPS
intrusive_ptr<Base::Options> Backend::getBackendOptions()
{
	return c10::make_intrusive<Options>(name_, timeout_.load());
}

intrusive_ptr<Base> Backend::split(const intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                   const intrusive_ptr<Options> &options)
{
	const auto own = std::find(ranks.begin(), ranks.end(), rank_);
	const std::string part = "split " + std::to_string(parts_++) + options->group_name;

	if (own == ranks.end())
		return nullptr;
	TORCH_CHECK(group_.context != nullptr, "ddp: split of a process group that is closed");
	return c10::make_intrusive<Backend>(name_, store, static_cast<int>(own - ranks.begin()),
	                                    static_cast<int>(ranks.size()), options->timeout, open_part(group_, ranks, part));
}

intrusive_ptr<Base> Backend::merge(const intrusive_ptr<c10d::Store> &store, const intrusive_ptr<Options> &options,
                                   const int &rank, const int &size)
{
	return c10::make_intrusive<Backend>(name_, store, rank, size, options->timeout,
	                                    open_alone(store, rank, size, options->timeout, false));
}

c10d::ErrorType Backend::getError()
{
	return *group_.broken ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}
#endif

#if DDP_TORCH_FAULTS
/*
 * The remaining ranks meet in the store if the group has failed. ddp_comm_shrink() would need no store, but it waits
 * for each rank that lives, also for those that the program excludes because they hang.
 */
intrusive_ptr<Base> Backend::shrink(const std::vector<int64_t> &excluded, int flags,
                                    const intrusive_ptr<Options> &options)
{
	const milliseconds limit = options ? options->timeout : timeout_.load();
	std::string name = "shrink " + std::to_string(shrinks_++) + " to";
	std::vector<int> rest;

	for (int rank = 0; rank < size_; rank++)
		if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
			rest.push_back(rank);
			name += " " + std::to_string(rank);
		}
	const auto own = std::find(rest.begin(), rest.end(), rank_);
	const int rank = static_cast<int>(own - rest.begin()), size = static_cast<int>(rest.size());
	TORCH_CHECK_VALUE(own != rest.end(), "ddp: shrink() without this rank, ", rank_);
	TORCH_CHECK(group_.context != nullptr, "ddp: shrink() of a process group that is closed");
	TORCH_CHECK(!group_.context->is_forked(), "ddp: shrink() in a forked child, of a process group of its parent");
	if (flags != 0)
		abort();
	Group group;
	if (flags == 0 && !*group_.broken) {
		try {
			group = open_part(group_, rest, name);
		} catch (const c10::Error &) {
			/* A rank has died since the last operation: all ranks find that. */
		}
	}
	const auto store = c10::make_intrusive<c10d::PrefixStore>(name, first_store_);
	if (group.context == nullptr)
		group = open_alone(store, rank, size, limit, false);
	group.is_world = group_.is_world;
	if (group.is_world)
		become_world(group);
	return c10::make_intrusive<Backend>(name_, store, rank, size, limit, std::move(group));
}

WorkPtr Backend::reconfigure(const c10d::ReconfigureOptions &options)
{
	const milliseconds limit = options.timeout.value_or(timeout_.load());
	std::vector<std::string> handles;

	if (const auto *ordered = std::get_if<std::vector<std::string>>(&options.handles)) {
		handles = *ordered;
	} else {
		const auto &any = std::get<std::unordered_set<std::string>>(options.handles);
		handles.assign(any.begin(), any.end());
		std::sort(handles.begin(), handles.end());
	}
	const auto own = std::find(handles.begin(), handles.end(), handle_);
	const int rank = static_cast<int>(own - handles.begin()), size = static_cast<int>(handles.size());
	TORCH_CHECK_VALUE(own != handles.end(), "ddp: reconfigure() without this process' handle, ", handle_);
	TORCH_CHECK(group_.context == nullptr || !group_.context->is_forked(),
	            "ddp: reconfigure() in a forked child, of a process group of its parent");
	const auto store = c10::make_intrusive<c10d::PrefixStore>("reconfigure " + std::to_string(options.uuid), first_store_);
	Group group = open_alone(store, rank, size, limit, group_.is_world);

	/* All ranks of the new group have come, so they use the old one no more. */
	abort();
	stop_sparse();
	std::unique_lock<std::mutex> lock(issue_);
	sparse_.reset();
	std::swap(group, group_);
	rank_ = rank;
	size_ = size;
	store_ = store;
	number_ = barriers_ = parts_ = shrinks_ = 0;
	opened_ = true;
	lock.unlock();
	group.close();
	auto made = std::make_shared<Operation>();
	made->broken = group_.broken;
	auto work = c10::make_intrusive<Work>(c10d::OpType::UNKNOWN, name_ + ":reconfigure", Tensors{}, made, 0, limit);
	made->arrive(DDP_OK);
	return work;
}
#endif

} // namespace slurm_ddp
