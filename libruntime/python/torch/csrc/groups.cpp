/* SPDX-License-Identifier: Apache-2.0 */
/* groups: process groups that are made of another one: its parts, and what goes on after ranks have failed. */
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend.h"
#include "gil.h"

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
	live_->refuse_fork("split()");
	const WithoutGil guard;
	const Group group = live_->now();
	TORCH_CHECK(group.context != nullptr, "ddp: split() was called on a process group that is closed");
	return c10::make_intrusive<Backend>(name_, store, static_cast<int>(own - ranks.begin()),
	                                    static_cast<int>(ranks.size()), options->timeout, open_part(group, ranks, part));
}

intrusive_ptr<Base> Backend::merge(const intrusive_ptr<c10d::Store> &store, const intrusive_ptr<Options> &options,
                                   const int &rank, const int &size)
{
	const WithoutGil guard;

	return c10::make_intrusive<Backend>(name_, store, rank, size, options->timeout,
	                                    open_alone(store, rank, size, options->timeout, false));
}

c10d::ErrorType Backend::getError()
{
	const bool broken = live_->is_forked() || live_->with([](const Group &group) { return group.broken->load(); });

	return broken ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}
#endif

#if DDP_TORCH_FAULTS
/* A part of the group, or no group: it has failed, or fails now. */
static Group part_of_whole(const Group &group, const std::vector<int> &ranks, const std::string &name)
{
	if (*group.broken)
		return Group();
	try {
		return open_part(group, ranks, name);
	} catch (const c10::Error &) {
		return Group();
	}
}

/* Whether all ranks say yes. Each one waits for all others, so all get the same answer, or all throw. */
static bool all_say(c10d::Store &store, int rank, int size, bool yes, milliseconds limit)
{
	const auto end = end_of(limit);
	bool all = true;

	store.set("says " + std::to_string(rank), std::vector<uint8_t>{ yes });
	for (int other = 0; other < size; other++) {
		const std::string key = "says " + std::to_string(other);
		if (!came(store, key, end))
			std::rethrow_exception(error_of(DDP_ERR_TIMEOUT, c10::str("shrink(): rank ", other, " of the ", size, " that are left "
			                                                          "did not come within ", limit.count(), " ms")));
		all = all && store.get(key) == std::vector<uint8_t>{ true };
	}
	return all;
}

/* Whether all ranks have the group. Otherwise it is aborted, so that nobody waits for the others in order to free it. */
static bool formed_by_all(c10d::Store &store, int rank, int size, const Group &group, milliseconds limit)
{
	const auto give_up = [&group] {
		if (group.comm != nullptr)
			(void)ddp_comm_abort(group.comm.get(), "another rank could not form the group");
	};

	try {
		if (all_say(store, rank, size, group.context != nullptr, limit))
			return true;
	} catch (...) {
		give_up();
		throw;
	}
	give_up();
	return false;
}

/*
 * The remaining ranks use a part of the group if all of them got it. A rank may die while the part is made, and then
 * some ranks have it and others do not, so they tell each other in the store. Otherwise they meet in the store.
 * ddp_comm_shrink() would need no store, but it waits for each rank that lives, also for those that the program
 * excludes because they hang.
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
	TORCH_CHECK_VALUE(own != rest.end(), "ddp: shrink() excludes rank ", rank_, ", which called it");
	live_->refuse_fork("shrink()");
	const WithoutGil guard;
	const Group whole = live_->now();
	TORCH_CHECK(whole.context != nullptr, "ddp: shrink() was called on a process group that is closed");
	if (flags != 0)
		abort();
	const auto store = c10::make_intrusive<c10d::PrefixStore>(name, first_store_);
	Group group = flags == 0 ? part_of_whole(whole, rest, name) : Group();
	if (!formed_by_all(*store, rank, size, group, limit))
		group = open_alone(store, rank, size, limit, false);
	group.is_world = whole.is_world;
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
	TORCH_CHECK_VALUE(own != handles.end(), "ddp: reconfigure() did not get the handle of this process, ", handle_);
	live_->refuse_fork("reconfigure()");
	const WithoutGil guard;
	const auto store = c10::make_intrusive<c10d::PrefixStore>("reconfigure " + std::to_string(options.uuid), first_store_);
	Group group = open_alone(store, rank, size, limit, live_->with([](const Group &group) { return group.is_world; }));
	auto made = std::make_shared<Operation>();

	made->broken = group.broken;
	/* All ranks of the new group have come, so they use the old one no more. */
	live_->replace(std::move(group));
	rank_ = rank;
	size_ = size;
	store_ = store;
	number_ = barriers_ = parts_ = shrinks_ = 0;
	opened_ = true;
	auto work = c10::make_intrusive<Work>(c10d::OpType::UNKNOWN, name_ + ":reconfigure", Tensors{}, made, 0, limit);
	made->arrive(DDP_OK);
	return work;
}
#endif

} // namespace slurm_ddp
