/* SPDX-License-Identifier: Apache-2.0 */
#include "live_group.h"

#include <pthread.h>

#include <algorithm>

namespace slurm_ddp {

namespace {

struct Live {
	std::mutex mutex;
	std::vector<std::pair<const LiveGroup *, std::weak_ptr<LiveGroup>>> groups; /* the newest is the last one */
};

/* The groups that the end of the process closes. It is never freed: groups may end while the process exits. */
Live *live = new Live;

/* A forked child begins without groups. It is done before the child can have a second thread. */
void forget_groups()
{
	live = new Live;
}

const int groups_at_fork = pthread_atfork(nullptr, nullptr, forget_groups);

/* The newest comes first. They live as long as the caller has them, also if their process groups end meanwhile. */
std::vector<std::shared_ptr<LiveGroup>> all_groups()
{
	std::lock_guard<std::mutex> lock(live->mutex);
	std::vector<std::shared_ptr<LiveGroup>> groups;

	for (auto each = live->groups.rbegin(); each != live->groups.rend(); ++each)
		if (auto group = each->second.lock())
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
	TORCH_CHECK(!is_forked(), "ddp: a forked child cannot call ", operation,
	            " on a process group of its parent; the child can make a group of its own");
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
	std::lock_guard<std::mutex> lock(live->mutex);

	live->groups.emplace_back(group.get(), group);
}

void forget(const LiveGroup *group)
{
	std::lock_guard<std::mutex> lock(live->mutex);
	const auto is_group = [group](const auto &each) { return each.first == group; };

	live->groups.erase(std::remove_if(live->groups.begin(), live->groups.end(), is_group), live->groups.end());
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
	const auto groups = all_groups();
	/* What runs beside a group uses another one, which is newer. */
	for (const auto &group : groups)
		group->stop_beside();
	for (const auto &group : groups)
		group->close();
	stop_finisher();
}

} // namespace slurm_ddp
