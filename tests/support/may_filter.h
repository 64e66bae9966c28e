/* SPDX-License-Identifier: Apache-2.0 */
/* Some kernels refuse filters of sockets to users without privileges. libddp then ends UCX's listening sockets when all
   ranks are connected, so that nobody can connect to them. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/net/listener.h"

static inline bool test_may_filter(void)
{
	const ddp_listeners one = { .count = 1, .fds = { socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) } };
	const int error = ddp_listeners_shut(&one);

	close(one.fds[0]);
	return error != EPERM;
}
