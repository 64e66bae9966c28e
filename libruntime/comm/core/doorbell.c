#include "comm/core/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fence.h"
#include "comm/core/comm.h"
#include "comm/core/futex.h"
#include "comm/core/lines.h"
#include "comm/core/roster.h"

/* ---- the pipe ----------------------------------------------------------------------- */

ddp_status ddp_doorbell_open(ddp_comm *comm)
{
	ddp_doorbell *bell = &comm->doorbell;

	bell->peers = malloc((size_t)comm->node.size * sizeof(int));
	if (bell->peers == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	for (int i = 0; i < comm->node.size; i++)
		bell->peers[i] = -1;
	if (pipe2(bell->pipe, O_CLOEXEC | O_NONBLOCK) != 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a pipe");
	return DDP_OK;
}

ddp_status ddp_doorbell_open_peers(ddp_comm *comm, const int *fds)
{
	char path[64];

	/* For reading too: so there is always a reader, and writing to one that
	   has died is no SIGPIPE. */
	for (int i = 0; i < comm->node.size; i++) {
		int rank = comm->node.ranks[i];
		snprintf(path, sizeof(path), "/proc/%lld/fd/%d",
		         (long long)comm->roster->peers[comm->topology.world_ranks[rank]].pid, fds[rank]);
		comm->doorbell.peers[i] = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
		if (comm->doorbell.peers[i] < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open the doorbell of %s",
			                      ddp_rank_text(comm, rank));
	}
	return DDP_OK;
}

int ddp_doorbell_fd(const ddp_comm *comm)
{
	return comm->doorbell.pipe[1];
}

void ddp_doorbell_close(ddp_comm *comm)
{
	ddp_doorbell *bell = &comm->doorbell;

	for (int i = 0; i < comm->node.size && bell->peers != NULL; i++) {
		if (bell->peers[i] >= 0)
			close(bell->peers[i]);
	}
	free(bell->peers);
	bell->peers = NULL;
	for (int i = 0; i < 2; i++) {
		if (bell->pipe[i] >= 0)
			close(bell->pipe[i]);
		bell->pipe[i] = -1;
	}
}

void ddp_doorbell_notify_pipe(ddp_comm *comm, int i)
{
	/* If the pipe is full, it wakes the sleeper anyway. */
	ssize_t ignored = write(comm->doorbell.peers[i], "", 1);

	(void)ignored;
}

void ddp_doorbell_sleep(ddp_comm *comm, int fd, int timeout_ms)
{
	struct pollfd events[2] = { { .fd = fd, .events = POLLIN },
	                            { .fd = comm->doorbell.pipe[0], .events = POLLIN } };

	(void)poll(events, 2, timeout_ms);
}

void ddp_doorbell_rest(ddp_comm *comm, uint64_t ns)
{
	struct pollfd bell = { .fd = comm->doorbell.pipe[0], .events = POLLIN };
	const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	(void)ppoll(&bell, 1, &time, NULL);
}

void ddp_doorbell_drain(ddp_comm *comm)
{
	char notifications[64];

	while (read(comm->doorbell.pipe[0], notifications, sizeof(notifications)) ==
	       (ssize_t)sizeof(notifications))
		continue;
}

/* ---- waking --------------------------------------------------------------------------- */

void ddp_doorbell_notify(ddp_comm *comm, int i)
{
	ddp_node_rank *rank = &comm->node.shared->ranks[i];

	atomic_fetch_add(&rank->bell, 1);
	if (comm->doorbell.peers != NULL)
		ddp_doorbell_notify_pipe(comm, i);
	else
		ddp_futex_wake_all(&rank->bell);
}

void ddp_node_wake(ddp_comm *comm, uint32_t event)
{
	ddp_node_shared *shared = comm->node.shared;

	/* The caller's store came before, sequentially consistent like this look
	   at who sleeps; a sleeper does the reverse. */
	if (atomic_load(&shared->sleepers) == 0)
		return;
	for (int i = 0; i < comm->node.size; i++) {
		ddp_node_rank *rank = &shared->ranks[i];
		uint32_t sleeps_for = atomic_load(&rank->sleeps_for);
		if (i == comm->node.self || sleeps_for == DDP_AWAKE)
			continue;
		if (sleeps_for == DDP_SLEEPS_FOR_ANY ||
		    (sleeps_for == event &&
		     ddp_node_lagging(comm, event, atomic_load(&rank->sleeps_until)) == DDP_NOBODY))
			ddp_doorbell_notify(comm, i);
	}
}

void ddp_node_wake_late(ddp_comm *comm, uint32_t event)
{
	ddp_full_fence();
	ddp_node_wake(comm, event);
}

void ddp_node_wake_rank(ddp_comm *comm, int i)
{
	if (atomic_load(&comm->node.shared->ranks[i].sleeps_for) != DDP_AWAKE)
		ddp_doorbell_notify(comm, i);
}

void ddp_node_wake_all(ddp_comm *comm)
{
	for (int i = 0; i < comm->node.size; i++)
		ddp_doorbell_notify(comm, i);
}
