/* SPDX-License-Identifier: Apache-2.0 */
#include "live_group.h"

#include <map>

namespace slurm_ddp {

namespace {

struct Live {
	std::mutex mutex;
	std::map<const LiveGroup *, std::weak_ptr<LiveGroup>> groups;
	uint64_t forks = 0;
};

/* The groups that the end of the process closes. A forked child begins with none. */
Live &live()
{
	static Live *now = new Live;

	if (now->forks != count_forks()) {
		now = new Live;
		now->forks = count_forks();
	}
	return *now;
}

/* They live as long as the caller has them, also if their process groups end meanwhile. */
std::vector<std::shared_ptr<LiveGroup>> all_groups()
{
	std::lock_guard<std::mutex> lock(live().mutex);
	std::vector<std::shared_ptr<LiveGroup>> groups;

	for (const auto &[key, weak] : live().groups)
		if (auto group = weak.lock())
			groups.push_back(std::move(group));
	return groups;
}

} // namespace

LiveGroup::~LiveGroup()
{
	/* A forked child does not have the thread. */
	if (is_forked() && beside_ != nullptr)
		new std::shared_ptr<Beside>(std::move(beside_));
}

void LiveGroup::set_beside(std::shared_ptr<Beside> beside)
{
	std::lock_guard<std::mutex> lock(state_);

	beside_ = std::move(beside);
}

void LiveGroup::refuse_fork(const char *operation) const
{
	TORCH_CHECK(!is_forked(), "ddp: ", operation,
	            " in a forked child, on a process group of its parent; the child can make one of its own");
}

void LiveGroup::abort()
{
	if (is_forked())
		return;
	std::shared_ptr<Beside> beside;
	with([&](const Group &group) {
		beside = beside_;
		if (group.comm != nullptr)
			(void)ddp_comm_abort(group.comm.get(), "abort() of the process group was called");
	});
	if (beside != nullptr)
		beside->abort();
}

void LiveGroup::leave(const std::string &reason)
{
	if (is_forked())
		return;
	with([&](const Group &group) {
		if (group.is_part)
			(void)ddp_comm_abort(group.comm.get(), ("it left: " + reason).c_str());
		else if (group.context != nullptr)
			group.context->leave(reason);
	});
}

void LiveGroup::stop_beside()
{
	std::shared_ptr<Beside> beside;

	with([&](const Group &) { beside = beside_; });
	if (beside != nullptr)
		beside->stop();
}

Group LiveGroup::exchange(Group group)
{
	std::lock_guard<std::mutex> issuing(issue);
	std::lock_guard<std::mutex> lock(state_);

	beside_.reset();
	return std::exchange(group_, std::move(group));
}

void LiveGroup::close()
{
	if (is_forked())
		return;
	stop_beside();
	exchange(Group()).close();
}

void LiveGroup::replace(Group group)
{
	abort();
	stop_beside();
	exchange(std::move(group)).close();
}

void remember(const std::shared_ptr<LiveGroup> &group)
{
	std::lock_guard<std::mutex> lock(live().mutex);

	live().groups[group.get()] = group;
}

void forget(const LiveGroup *group)
{
	std::lock_guard<std::mutex> lock(live().mutex);

	live().groups.erase(group);
}

void leave_all(const std::string &reason)
{
	for (const auto &group : all_groups())
		group->leave(reason);
}

void close_all(const std::string &reason)
{
	if (!reason.empty())
		leave_all(reason);
	for (const auto &group : all_groups())
		group->close();
	stop_finisher();
}

} // namespace slurm_ddp
