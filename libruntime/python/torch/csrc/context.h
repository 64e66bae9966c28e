/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context: contexts and communicators of libddp that process groups use, and memory that the node's ranks share.
 *
 * The process group of the world opens a context. Its ranks meet in the group's c10d::Store, so libddp reads no
 * variable of the environment and needs no port. Further groups get communicators of that context, which takes
 * neither threads nor descriptors. A group that has ranks outside of it opens a context of its own.
 */
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "operation.h"

namespace slurm_ddp {

/* Memory for tensors that the node's ranks share; it may outlive its context. */
class Memory;
std::shared_ptr<Memory> new_memory();
/* The context is about to be closed: its communicator frees no memory any more. */
void keep_memory(Memory &memory);
void close_memory(Memory &memory);

class Context : public std::enable_shared_from_this<Context> {
 public:
	Context(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout);
	/* Waits for the other ranks, except after an error. */
	~Context();
	Context(const Context &) = delete;
	Context &operator=(const Context &) = delete;

	ddp_comm *comm() const { return ddp_world(context_); }
	std::shared_ptr<std::atomic<bool>> broken = std::make_shared<std::atomic<bool>>(false);
	/* Operations end with `reason` on all ranks. */
	void leave(const std::string &reason) { (void)ddp_context_fail(context_, reason.c_str()); }
	/* A child of fork() has a copy that it must not use. */
	bool is_forked() const;
	Memory &memory() { return *memory_; }

 private:
	ddp_context *context_ = nullptr;
	std::shared_ptr<Memory> memory_ = new_memory();
	uint64_t forks_;
};

/* A communicator, and what must live as long as it. */
struct Group {
	std::shared_ptr<Context> context;
	/* The last reference to a part frees it. It then waits for the group's other ranks, except after an error. */
	std::shared_ptr<ddp_comm> comm;
	bool is_part = false;  /* of the context's ranks */
	bool is_world = false; /* further groups are parts of this one */
	std::shared_ptr<std::atomic<bool>> broken = std::make_shared<std::atomic<bool>>(false);

	/* Never throws. */
	void close();
};

/*
 * Opens a group. `ranks` are its ranks in the world, empty for the world itself. All members give the same
 * `name`, which other groups do not have.
 */
Group open_group(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout,
                 const std::string &name, const std::vector<int> &ranks);
/* Opens a group with a context of its own. */
Group open_alone(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout, bool is_world);
/* Opens a group of ranks of another one. */
Group open_part(const Group &of, const std::vector<int> &ranks, const std::string &name);

/* From now on, groups that open_group() opens are parts of this one. */
void become_world(const Group &group);

int limit_of(milliseconds timeout);
/*
 * Waits for a key by looking, so that other threads may use the store meanwhile. Returns false at the deadline.
 * Store::wait() would also log a warning after each timeout.
 */
bool came(c10d::Store &store, const std::string &key, std::chrono::steady_clock::time_point end);

} // namespace slurm_ddp
