/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fence.h"
#include "comm/core/comm.h"
#include "comm/core/lines.h"
#include "comm/core/roster.h"

/* ---- the pipe ----------------------------------------------------------------------- */

void ddp_doorbell_init(ddp_doorbell *bell)
{
	*bell = (ddp_doorbell){ .pipe = { -1, -1 }, .attention_fd = -1, .ends_fd = -1 };
}

ddp_status ddp_doorbell_open(ddp_doorbell *bell)
{
	if (bell->pipe[0] < 0 && pipe2(bell->pipe, O_CLOEXEC | O_NONBLOCK) != 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a pipe (see ulimit -n)");
	if (bell->attention_fd < 0)
		bell->attention_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (bell->attention_fd >= 0 && bell->ends_fd < 0)
		bell->ends_fd = epoll_create1(EPOLL_CLOEXEC);
	return bell->ends_fd >= 0 ? DDP_OK
		: ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make an eventfd and an epoll instance (see ulimit -n)");
}

/* A process tells its end once. If it cannot be watched, sleepers look for its end themselves, after a while. */
static void watch_end(const ddp_doorbell *bell, int pidfd)
{
	struct epoll_event end = { .events = EPOLLIN | EPOLLONESHOT };

	if (pidfd >= 0)
		(void)epoll_ctl(bell->ends_fd, EPOLL_CTL_ADD, pidfd, &end);
}

ddp_status ddp_doorbell_open_peers(ddp_comm *comm, const int *fds)
{
	char path[64];

	/* The pipe is opened for reading, too. So it always has a reader, and a write to the pipe of a dead rank
	   causes no SIGPIPE. */
	for (int i = 0; i < comm->node.size; i++) {
		const int rank = comm->node.ranks[i];
		ddp_peer *peer = &comm->roster->peers[comm->topology.world_ranks[rank]];
		snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)peer->pid, fds[rank]);
		peer->bell = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
		if (peer->bell < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open the doorbell of rank %d on %s", rank,
			                      peer->host);
		watch_end(&comm->roster->doorbell, peer->pidfd);
	}
	return DDP_OK;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void ddp_doorbell_close(ddp_doorbell *bell)
{
	close_fd(&bell->pipe[0]);
	close_fd(&bell->pipe[1]);
	close_fd(&bell->attention_fd);
	close_fd(&bell->ends_fd);
}

/* If the pipe is full, it wakes the sleeper anyway. */
static void write_to(int fd)
{
	ssize_t ignored = write(fd, "", 1);

	(void)ignored;
}

void ddp_doorbell_notify_own(ddp_doorbell *bell)
{
	if (atomic_load(&bell->sleepers) > 0)
		write_to(bell->pipe[1]);
}

void ddp_doorbell_notify_attention(ddp_doorbell *bell)
{
	const uint64_t one = 1;
	ssize_t ignored = write(bell->attention_fd, &one, sizeof(one));

	(void)ignored;
}

/* True if there was something. */
static bool drain(const ddp_doorbell *bell)
{
	char notifications[64];
	ssize_t length = read(bell->pipe[0], notifications, sizeof(notifications));
	bool some = length > 0;

	while (length == (ssize_t)sizeof(notifications))
		length = read(bell->pipe[0], notifications, sizeof(notifications));
	return some;
}

/* ---- sleeping -------------------------------------------------------------------------- */

uint32_t ddp_doorbell_begin(ddp_doorbell *bell)
{
	atomic_fetch_add(&bell->sleepers, 1);
	return atomic_load(&bell->turn);
}

/* Each end that is taken wakes nobody any more. */
static void take_ends(ddp_doorbell *bell)
{
	struct epoll_event ends[16];

	if (epoll_wait(bell->ends_fd, ends, sizeof(ends) / sizeof(ends[0]), 0) > 0)
		atomic_fetch_add(&bell->ends, 1);
}

/* Empties the pipe, as the one thread that polls it, and lets the others look. The
   turn changes before another thread can be the one that polls: it sees that what it
   was to be told may be gone. `own`: how many of the sleepers the caller is. */
static void take_notifications(ddp_doorbell *bell, int own)
{
	bool some = drain(bell);

	atomic_fetch_add(&bell->turn, 1);
	atomic_store(&bell->polled, false);
	if (atomic_load(&bell->sleepers) > own)
		ddp_futex_wake_all(&bell->turn);
	if (some && atomic_load(&bell->attended))
		ddp_doorbell_notify_attention(bell);
}

void ddp_doorbell_sleep(ddp_doorbell *bell, uint32_t begun, int fd, uint64_t timeout_ns)
{
	struct pollfd events[3] = { { .fd = fd, .events = POLLIN }, { .fd = bell->pipe[0], .events = POLLIN },
	                            { .fd = bell->ends_fd, .events = POLLIN } };
	const struct timespec timeout = { .tv_sec = (time_t)(timeout_ns / 1000000000),
	                                  .tv_nsec = (long)(timeout_ns % 1000000000) };

	if (atomic_exchange(&bell->polled, true)) {
		ddp_futex_wait(&bell->turn, begun, timeout_ns);
		return;
	}
	if (atomic_load(&bell->turn) == begun)
		(void)ppoll(events, 3, &timeout, NULL);
	if (events[2].revents != 0)
		take_ends(bell);
	take_notifications(bell, 1);
}

void ddp_doorbell_end(ddp_doorbell *bell)
{
	atomic_fetch_sub(&bell->sleepers, 1);
}

/* Others may want to be woken by the network meanwhile: this thread does not poll in
   their place. */
void ddp_doorbell_rest(ddp_doorbell *bell, uint64_t ns)
{
	struct pollfd event = { .fd = bell->pipe[0], .events = POLLIN };
	const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	atomic_fetch_add(&bell->sleepers, 1);
	(void)ppoll(&event, 1, &time, NULL);
	if (event.revents != 0 && !atomic_exchange(&bell->polled, true))
		take_notifications(bell, 1);
	atomic_fetch_sub(&bell->sleepers, 1);
}

/* Events for a sleeper are left to it. */
void ddp_doorbell_attend(ddp_doorbell *bell, int fd)
{
	struct pollfd events[3] = { { .fd = fd, .events = POLLIN }, { .fd = bell->pipe[0], .events = POLLIN },
	                            { .fd = bell->attention_fd, .events = POLLIN } };
	uint64_t count;

	(void)poll(events, 3, -1);
	ssize_t ignored = read(bell->attention_fd, &count, sizeof(count));
	(void)ignored;
	if (events[1].revents == 0)
		return;
	if (atomic_load(&bell->sleepers) > 0) {
		sched_yield();
		return;
	}
	if (atomic_exchange(&bell->polled, true))
		return;
	take_notifications(bell, 0);
	/* It may have been for one that has begun meanwhile. */
	ddp_doorbell_notify_own(bell);
}

/* ---- waking --------------------------------------------------------------------------- */

/* Wakes the node's i-th rank, whatever it sleeps for. */
static void notify(ddp_comm *comm, int i)
{
	ddp_node_rank *rank = &comm->node.shared->ranks[i];

	atomic_fetch_add(&rank->bell, 1);
	if (comm->topology.nodes > 1)
		write_to(comm->roster->peers[comm->topology.world_ranks[comm->node.ranks[i]]].bell);
	else
		ddp_futex_wake_all(&rank->bell);
}

/* Many may see that a sleeper can go on; one of them wakes it. It may have begun another
   sleep since it was looked at: then it looks once more. */
static bool claim(ddp_node_rank *rank, uint32_t sleeps_for)
{
	return atomic_compare_exchange_strong(&rank->sleeps_for, &sleeps_for, DDP_AWAKE);
}

void ddp_node_wake(ddp_comm *comm, uint32_t event)
{
	ddp_node_shared *shared = comm->node.shared;
	uint64_t until = 0; /* what was looked for last: most sleep for the same */
	bool there = true;

	/* The caller's store came before, sequentially consistent like this look
	   at who sleeps; a sleeper does the reverse. */
	if (atomic_load(&shared->sleepers) == 0)
		return;
	for (int i = 0; i < comm->node.size; i++) {
		ddp_node_rank *rank = &shared->ranks[i];
		uint32_t sleeps_for = atomic_load(&rank->sleeps_for);
		if (i == comm->node.self || sleeps_for == DDP_AWAKE)
			continue;
		const uint64_t wants = atomic_load(&rank->sleeps_until);
		if (sleeps_for == event && wants != until) {
			until = wants;
			there = ddp_node_lagging(comm, event, until) == DDP_NOBODY;
		}
		if ((sleeps_for == DDP_SLEEPS_FOR_ANY || (sleeps_for == event && there)) && claim(rank, sleeps_for))
			notify(comm, i);
	}
}

void ddp_node_wake_late(ddp_comm *comm, uint32_t event)
{
	ddp_full_fence();
	ddp_node_wake(comm, event);
}

void ddp_node_wake_rank(ddp_comm *comm, int i)
{
	ddp_node_rank *rank = &comm->node.shared->ranks[i];
	const uint32_t sleeps_for = atomic_load(&rank->sleeps_for);

	if (sleeps_for != DDP_AWAKE && claim(rank, sleeps_for))
		notify(comm, i);
}

void ddp_node_wake_all(ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++)
		notify(comm, i);
}
