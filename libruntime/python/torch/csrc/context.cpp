/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include <pthread.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <thread>

#include <c10/util/Logging.h>

#include "gil.h"

namespace slurm_ddp {

namespace {

struct Registry {
	std::mutex mutex;
	/* The world. */
	std::weak_ptr<Context> context;
	std::weak_ptr<ddp_comm> comm;
	std::shared_ptr<std::atomic<bool>> broken;
};

/* It is never freed: groups may be closed while the process exits. */
Registry *registry = new Registry;
std::atomic<uint64_t> forks{ 0 };

/* The child has none of the threads, and locks may be taken. */
void forget_all()
{
	forks++;
	registry = new Registry;
	forget_finisher();
}

const int at_fork = pthread_atfork(nullptr, nullptr, forget_all);

/* ---- the store, by which the ranks of ddp_init() meet ---- */

/* Exceptions must not pass through libddp. */
template <class Function> ddp_status guarded(Function function)
{
	try {
		return function();
	} catch (const c10::Error &e) {
		ddp_set_error("the store of the process group: %s", e.what_without_backtrace());
	} catch (const std::exception &e) {
		ddp_set_error("the store of the process group: %s", e.what());
	}
	return DDP_ERR_IO;
}

c10d::Store &store_of(void *user)
{
	return *static_cast<c10d::Store *>(user);
}

ddp_status set_value(void *user, const char *key, const void *value, size_t bytes)
{
	const uint8_t *begin = static_cast<const uint8_t *>(value);

	return guarded([&] {
		store_of(user).set(key, std::vector<uint8_t>(begin, begin + bytes));
		return DDP_OK;
	});
}

ddp_status get_value(void *user, const char *key, void *value, size_t room, size_t *bytes)
{
	return guarded([&] {
		const std::vector<uint8_t> found = store_of(user).get(key);
		*bytes = found.size();
		if (!found.empty() && found.size() <= room)
			memcpy(value, found.data(), found.size());
		return DDP_OK;
	});
}

ddp_status wait_for_value(void *user, const char *key, int timeout_ms)
{
	return guarded([&] {
		return came(store_of(user), key, end_of(milliseconds(timeout_ms))) ? DDP_OK : DDP_ERR_TIMEOUT;
	});
}

/* Members of a group agree on the number without a message. */
int tag_of(const std::string &name)
{
	uint32_t hash = 2166136261u;

	for (const char c : name)
		hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
	return static_cast<int>(hash % INT_MAX);
}

} // namespace

int limit_of(milliseconds timeout)
{
	return static_cast<int>(std::min<int64_t>(std::max<int64_t>(timeout.count(), 1), INT_MAX));
}

bool came(c10d::Store &store, const std::string &key, std::chrono::steady_clock::time_point end)
{
	auto pause = std::chrono::microseconds(50);

	while (!store.check({ key })) {
		if (std::chrono::steady_clock::now() >= end)
			return false;
		std::this_thread::sleep_for(pause);
		pause = std::min(pause * 2, std::chrono::microseconds(20000));
	}
	return true;
}

uint64_t count_forks()
{
	return forks;
}

Context::Context(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout)
	: forks_(count_forks())
{
	ddp_job job{};
	ddp_store meeting{};
	ddp_options options = DDP_OPTIONS;

	job.rank = rank;
	job.world_size = size;
	meeting.user = store.get();
	meeting.set = set_value;
	meeting.get = get_value;
	meeting.wait = wait_for_value;
	options.job = &job;
	options.store = &meeting;
	options.timeout_ms = limit_of(timeout);
	if (const ddp_status status = ddp_init(&options, &context_); status != DDP_OK)
		fail(status);
}

Context::~Context()
{
	if (is_forked())
		return;
	const WithoutGil guard;
	if (memory_ != nullptr)
		keep_memory(*memory_);
	if (ddp_finalize(context_) != DDP_OK && !ddp_last_error_is_told())
		LOG(WARNING) << "ddp: an error occurred while a process group was closed: "
		             << in_words_of_torch(ddp_last_error());
	if (memory_ != nullptr)
		close_memory(*memory_);
}

bool Context::is_forked() const
{
	return forks_ != count_forks();
}

void Group::close()
{
	if (is_world && comm != nullptr) {
		std::lock_guard<std::mutex> lock(registry->mutex);
		if (registry->comm.lock() == comm)
			registry->comm.reset();
	}
	comm.reset();
	context.reset();
}

void become_world(const Group &group)
{
	std::lock_guard<std::mutex> lock(registry->mutex);

	registry->context = group.context;
	registry->comm = group.comm;
	registry->broken = group.broken;
}

Group open_alone(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout, bool is_world)
{
	Group group;

	group.context = std::make_shared<Context>(store, rank, size, timeout);
	group.comm = std::shared_ptr<ddp_comm>(group.context, group.context->comm());
	group.broken = group.context->broken;
	group.is_world = is_world;
	if (is_world)
		become_world(group);
	return group;
}

static void close_part(const Context &context, ddp_comm *comm)
{
	if (context.is_forked())
		return;
	const WithoutGil guard;
	if (ddp_comm_free(comm) != DDP_OK && !ddp_last_error_is_told())
		LOG(WARNING) << "ddp: an error occurred while a process group was closed: "
		             << in_words_of_torch(ddp_last_error());
}

Group open_part(const Group &of, const std::vector<int> &ranks, const std::string &name)
{
	Group group;
	ddp_comm *made = nullptr;
	const ddp_status status = ddp_comm_create_group(of.comm.get(), ranks.data(), static_cast<int>(ranks.size()),
	                                                tag_of(name), &made);

	if (status != DDP_OK)
		fail(status);
	group.context = of.context;
	group.comm = std::shared_ptr<ddp_comm>(made, [context = of.context](ddp_comm *comm) { close_part(*context, comm); });
	group.is_part = true;
	return group;
}

Group open_group(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout,
                 const std::string &name, const std::vector<int> &ranks)
{
	Group world;

	{
		std::lock_guard<std::mutex> lock(registry->mutex);
		world.context = registry->context.lock();
		world.comm = registry->comm.lock();
		if (registry->broken != nullptr)
			world.broken = registry->broken;
	}
	/* After an error of the world, the survivors' groups stand alone. */
	if (ranks.empty() || world.context == nullptr || world.comm == nullptr || *world.broken)
		return open_alone(store, rank, size, timeout, ranks.empty());
	return open_part(world, ranks, name);
}

} // namespace slurm_ddp
