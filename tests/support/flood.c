/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/flood.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/ranks.h"

/* Does not wait: a full listener lets a connection wait for a second and more. */
static int begin_connection(const struct sockaddr_in *to)
{
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	CHECK(fd >= 0);
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) != 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	return fd;
}

static void await_connection(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };

	while (poll(&ready, 1, 1000) == 0)
		continue;
}

static void say_a_byte(int *fd, const struct sockaddr_in *to)
{
	if (*fd >= 0 && (send(*fd, "x", 1, MSG_NOSIGNAL) == 1 || errno == EAGAIN))
		return;
	if (*fd >= 0)
		close(*fd);
	*fd = begin_connection(to);
}

static void be_flood(const struct sockaddr_in *to, flood_kind kind, int count, int ready)
{
	int *fds = malloc((size_t)count * sizeof(*fds));

	CHECK(fds != NULL);
	for (int i = 0; i < count; i++) {
		fds[i] = begin_connection(to);
		if (fds[i] >= 0 && kind == FLOOD_IDLE)
			await_connection(fds[i]);
	}
	CHECK(write(ready, "", 1) == 1);
	for (int i = 0; kind != FLOOD_IDLE; i = (i + 1) % count) {
		if (kind == FLOOD_SLOW) {
			say_a_byte(&fds[i], to);
			usleep(20);
			continue;
		}
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = begin_connection(to);
	}
	for (;;)
		pause();
}

pid_t flood_start(const struct sockaddr_in *to, flood_kind kind, int count)
{
	int ready[2];
	char byte;

	CHECK(pipe(ready) == 0);
	fflush(NULL);
	const pid_t parent = getpid(), flood = fork();
	CHECK(flood >= 0);
	if (flood == 0) {
		struct rlimit limit;
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent);
		CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
		limit.rlim_cur = limit.rlim_max;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		be_flood(to, kind, count, ready[1]);
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	return flood;
}

void flood_end(pid_t flood)
{
	kill(flood, SIGKILL);
	waitpid(flood, NULL, 0);
}
