/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of UCX's own: how it writes data from where they lie into a TCP socket, and what
   it says while it makes a connection.

   UCX up to 1.22 completes such a send twice if the write fails (uct_tcp_ep_sendv() does what
   uct_tcp_ep_purge() has done), and the process aborts where UCX was built with assertions, as
   in Debian and Ubuntu: in about one of ten deaths of a peer with which large messages were on
   their way in both directions. Here a socket whose peer has gone takes nothing, as a full one;
   UCX then finds the same error where it reads the socket, and ends the connection once.

   UCX up to 1.22 also asserts (tcp_ep.c, uct_tcp_ep_destroy_progress()) if it takes the socket of a
   peer for an endpoint of its own, and the peer has died just then: the write fails, UCX has the
   endpoint destroyed, and goes on making it. Here such a socket swallows what is written. */
#include "comm/net/ucx_sendv.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucs/type/status.h>

#include "comm/net/calls.h"

static bool peer_has_gone(int error)
{
	return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ENOTCONN ||
		error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

static ucs_status_t send_some(int fd, struct iovec *iov, size_t iov_cnt, size_t *length_p)
{
	const struct msghdr message = { .msg_iov = iov, .msg_iovlen = iov_cnt };
	const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);

	*length_p = sent > 0 ? (size_t)sent : 0;
	if (sent >= 0)
		return UCS_OK;
	if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK || peer_has_gone(errno))
		return UCS_ERR_NO_PROGRESS;
	return UCS_ERR_IO_ERROR;
}

/* Like UCX's own function, this one waits until the socket has taken all. */
static ucs_status_t send_all(int fd, const void *data, size_t length)
{
	const char *at = data;
	size_t left = length;

	while (left > 0) {
		const ssize_t sent = send(fd, at, left, MSG_NOSIGNAL);
		if (sent >= 0) {
			at += sent;
			left -= (size_t)sent;
		} else if (peer_has_gone(errno)) {
			return UCS_OK;
		} else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
			return UCS_ERR_IO_ERROR;
		}
	}
	return UCS_OK;
}

const char *ddp_sendv_replace(void *ucp)
{
	const ddp_call calls[] = {
		{ .name = "ucs_socket_sendv_nb", .ours = (void *)send_some },
		{ .name = "ucs_socket_send", .ours = (void *)send_all },
	};

	return ddp_calls_replace(ucp, "uct_iface_open", calls, sizeof(calls) / sizeof(calls[0]));
}
