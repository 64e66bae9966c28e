/* SPDX-License-Identifier: Apache-2.0 */
/* live_group: the communicator of a process group, which other threads may abort or close at any time. */
#pragma once

#include "context.h"

namespace slurm_ddp {

/* Runs beside the group's operations, and ends with the group. */
class Beside {
 public:
	virtual ~Beside() = default;
	virtual void abort() = 0;
	/* Waits for its end. */
	virtual void stop() = 0;
};

class LiveGroup {
 public:
	explicit LiveGroup(Group group) : group_(std::move(group)) {}
	~LiveGroup();
	LiveGroup(const LiveGroup &) = delete;
	LiveGroup &operator=(const LiveGroup &) = delete;

	/* The thread that issues collectives holds this lock, so that one thread at a time does. */
	std::mutex issue;
	/* For the thread that holds `issue`. */
	const Group &group() const { return group_; }
	std::shared_ptr<Beside> beside() const { return beside_; }
	void set_beside(std::shared_ptr<Beside> beside);

	/* Calls `use` with the group, which nobody closes meanwhile. `use` must not wait for other ranks. */
	template <class Use> auto with(Use use)
	{
		std::lock_guard<std::mutex> lock(state_);
		return use(static_cast<const Group &>(group_));
	}
	/* A copy, which keeps the communicator until it is gone. It may then be the last one, which waits for other ranks. */
	Group now()
	{
		return with([](const Group &group) { return group; });
	}
	/* Throws in a child of fork(). A thread of the parent may have had the locks at the fork. */
	void refuse_fork(const char *operation) const;
	bool is_forked() const { return forks_ != count_forks(); }
	void abort();
	/* Other ranks hear that this one leaves because of an error. */
	void leave(const std::string &reason);
	/* Waits for what runs beside the group. */
	void stop_beside();
	/* Waits for operations, and for other ranks. */
	void close();
	/* The same, after an abort, and goes on with another group. */
	void replace(Group group);

 private:
	Group exchange(Group group);

	std::mutex state_; /* held for a short time only */
	/* Both are written with both locks, so a thread with one of them may read. */
	Group group_;
	std::shared_ptr<Beside> beside_;
	uint64_t forks_ = count_forks();
};

/* The end of the process closes the group, unless it is gone by then. */
void remember(const std::shared_ptr<LiveGroup> &group);
void forget(const LiveGroup *group);
/* Tells other ranks of all groups that this process ends because of an error. */
void leave_all(const std::string &reason);
/*
 * Closes all groups of the process, the newest first: between nodes, each rank waits for the others to close the same
 * group. `reason`, if it is not empty, is why the process ends; other ranks get it.
 */
void close_all(const std::string &reason);

} // namespace slurm_ddp
