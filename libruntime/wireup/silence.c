/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/silence.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

enum { LOOK_MS = 500, PROBES = 127 };

static void set(int fd, int level, int name, int value)
{
	/* A local socket does not know this option. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

void ddp_silence_ask(int fd)
{
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
	set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
}

static int silent_ms(int fd)
{
	struct tcp_info info;
	socklen_t length = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return 0;
	/* The process there reads nothing, and its kernel is asked less and less often. */
	if (length >= offsetof(struct tcp_info, tcpi_snd_wnd) + sizeof(info.tcpi_snd_wnd) && info.tcpi_snd_wnd == 0)
		return 0;
	return (int)(info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv : info.tcpi_last_data_recv);
}

int ddp_silence_look(ddp_silence_looks *looks, int fd, int limit_ms)
{
	const uint64_t now_ns = ddp_now_ns();

	if (limit_ms == 0 || now_ns < looks->next_ns)
		return 0;
	looks->next_ns = now_ns + (uint64_t)LOOK_MS * 1000000;
	const int ms = silent_ms(fd);
	looks->silent = ms >= limit_ms ? looks->silent + 1 : 0;
	return looks->silent >= 2 ? ms : 0;
}
