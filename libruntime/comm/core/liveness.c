/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

/* State and start time from /proc/PID/stat; false if there is no process, or
   this one lacks a descriptor to look. */
static bool process_stat(int64_t pid, char *state, uint64_t *start)
{
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	/* The second field, the name in parentheses, may hold anything. */
	char *field = strrchr(text, ')');
	if (field == NULL || field[1] == '\0')
		return false;
	field += 2;
	*state = *field;
	for (int i = 3; i < 22; i++) {
		field = strchr(field, ' ');
		if (field == NULL)
			return false;
		field++;
	}
	*start = strtoull(field, NULL, 10);
	return true;
}

uint64_t ddp_process_start(int64_t pid)
{
	uint64_t start = 0;
	char state;

	return process_stat(pid, &state, &start) ? start : 0;
}

static bool alive_by_stat(const ddp_peer *peer)
{
	uint64_t start;
	char state;

	if (!process_stat(peer->pid, &state, &start))
		return kill((pid_t)peer->pid, 0) == 0 || errno != ESRCH;
	return start == peer->pid_start && state != 'Z' && state != 'X';
}

void ddp_peer_watch(ddp_peer *peer)
{
#ifdef SYS_pidfd_open
	peer->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0);
#endif
	/* Checked after the open: a reused pid has another start time. */
	if (peer->pidfd >= 0 && !alive_by_stat(peer)) {
		close(peer->pidfd);
		peer->pidfd = -1;
	}
}

bool ddp_peer_alive(const ddp_peer *peer)
{
	struct pollfd poller = { .fd = peer->pidfd, .events = POLLIN };

	if (peer->pidfd < 0)
		return alive_by_stat(peer);
	return poll(&poller, 1, 0) <= 0;
}

static const ddp_peer *local_peer(const ddp_comm *comm, int i)
{
	return &comm->roster->peers[comm->topology.world_ranks[comm->node.ranks[i]]];
}

ddp_status ddp_node_watch(ddp_comm *comm)
{
	ddp_node *node = &comm->node;

	node->watched = calloc((size_t)node->size, sizeof(*node->watched));
	if (node->watched == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to watch %d ranks", node->size);
	for (int i = 0; i < node->size; i++)
		node->watched[i] = (struct pollfd){ .fd = local_peer(comm, i)->pidfd, .events = POLLIN };
	return DDP_OK;
}

void ddp_node_look(ddp_comm *comm)
{
	ddp_node *node = &comm->node;

	/* It fails where there are more ranks than a process may have descriptors. */
	const bool all = poll(node->watched, (nfds_t)node->size, 0) >= 0;
	for (int i = 0; i < node->size; i++) {
		if ((!all || node->watched[i].fd < 0) && i != node->self)
			node->watched[i].revents = ddp_peer_alive(local_peer(comm, i)) ? 0 : POLLIN;
	}
}

bool ddp_node_ended(const ddp_comm *comm, int i)
{
	return comm->node.watched[i].revents != 0;
}
