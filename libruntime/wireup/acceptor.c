/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/acceptor.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "wireup/socket.h"

enum {
	ACCEPT_BATCH = 64,
	EVENTS = 64,
	REFUSALS_TOLD = 3,      /* each; then only how many more there were, once a minute */
	UNPROVEN_MIN = 16,      /* at once, where descriptors are scarce */
	DESCRIPTORS_SPARE = 64  /* which the rest of the process may open meanwhile */
};

/* How long a connection may take to prove itself. */
static const uint64_t proof_timeout_ns = 10000000000u;

struct ddp_newcomer {
	struct ddp_newcomer *next, *previous;
	int fd;
	uint64_t since_ns;
	ddp_challenge challenge;
	ddp_hello hello;
	size_t hello_used;
};

/* ---- the log ---------------------------------------------------------------------------- */

static void tell_further_refusals(ddp_acceptor *a)
{
	if (a->refused == a->refusals_told)
		return;
	ddp_log(DDP_LOG_WARN, "%s refused %d more connections, the last from %s: they do not hold the step's key",
	        a->who, a->refused - a->refusals_told, a->last_refused);
	a->refusals_told = a->refused;
	a->told_ns = ddp_now_ns();
}

/* However many come, the log stays short. */
static void tell_refusal(ddp_acceptor *a)
{
	if (a->refused <= REFUSALS_TOLD) {
		ddp_log(DDP_LOG_WARN, "%s refused a connection from %s: it does not hold the step's key", a->who,
		        a->last_refused);
		a->refusals_told = a->refused;
		a->told_ns = ddp_now_ns();
	} else if (ddp_seconds_since(a->told_ns) > 60) {
		tell_further_refusals(a);
	}
}

static void tell_drop(ddp_acceptor *a, int fd, const char *why)
{
	char peer[80];

	ddp_log_limited(&a->drops, DDP_LOG_DEBUG, "%s dropped a connection from %s: %s", a->who,
	                ddp_socket_peer(fd, peer, sizeof(peer)), why);
}

/* ---- one that is unproven ---------------------------------------------------------------- */

static void unlink_newcomer(ddp_acceptor *a, struct ddp_newcomer *n)
{
	if (n->previous != NULL)
		n->previous->next = n->next;
	else
		a->unproven = n->next;
	if (n->next != NULL)
		n->next->previous = n->previous;
	else
		a->last_unproven = n->previous;
	a->unproven_count--;
	/* A descriptor that a child shares would stay in epoll after close(). */
	epoll_ctl(a->epoll, EPOLL_CTL_DEL, n->fd, NULL);
}

static void end_newcomer(ddp_acceptor *a, struct ddp_newcomer *n)
{
	unlink_newcomer(a, n);
	ddp_descriptor_close(n->fd);
	free(n);
}

static void drop(ddp_acceptor *a, struct ddp_newcomer *n, const char *why)
{
	tell_drop(a, n->fd, why);
	end_newcomer(a, n);
}

/* The buffer of a fresh connection holds these few bytes. */
static bool say(const struct ddp_newcomer *n, const void *message, size_t bytes)
{
	return send(n->fd, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static void refuse(ddp_acceptor *a, struct ddp_newcomer *n)
{
	static const ddp_verdict refusal;

	a->refused++;
	ddp_socket_peer(n->fd, a->last_refused, sizeof(a->last_refused));
	tell_refusal(a);
	(void)say(n, &refusal, sizeof(refusal));
	end_newcomer(a, n);
}

/* The hello is genuine, but somebody has passed it on. */
static void refuse_ends(ddp_acceptor *a, struct ddp_newcomer *n, const ddp_ends *ends)
{
	char told[DDP_ENDS_TEXT], seen[DDP_ENDS_TEXT];
	ddp_verdict refusal;

	n->hello.host[sizeof(n->hello.host) - 1] = '\0';
	snprintf(a->misled, sizeof(a->misled), "rank %u on %s says that it connected from %s, but its connection "
	         "here is from %s: a NAT, or a program that relays, stands between", le32toh(n->hello.rank),
	         n->hello.host, ddp_ends_show(&n->hello.ends, told), ddp_ends_show(ends, seen));
	ddp_log_limited(&a->misleads, DDP_LOG_WARN, "%s refused a connection: %s", a->who, a->misled);
	ddp_verdict_refuse_ends(&refusal);
	(void)say(n, &refusal, sizeof(refusal));
	end_newcomer(a, n);
}

static ddp_status judge(ddp_acceptor *a, struct ddp_newcomer *n)
{
	ddp_verdict verdict;
	ddp_status status = ddp_hello_check(a->key, &n->challenge, &n->hello);

	if (status == DDP_ERR_AUTH) {
		refuse(a, n);
		return DDP_OK;
	}
	const ddp_ends ends = ddp_ends_of(n->fd, true);
	if (status == DDP_OK && a->bound && !ddp_ends_are_same(&ends, &n->hello.ends)) {
		refuse_ends(a, n, &ends);
		return DDP_OK;
	}
	if (status == DDP_OK)
		status = ddp_verdict_make(a->key, &n->hello, a->host, &verdict);
	if (status != DDP_OK)
		return status;
	if (!say(n, &verdict, sizeof(verdict))) {
		drop(a, n, "it hung up");
		return DDP_OK;
	}
	unlink_newcomer(a, n);
	n->next = a->proven;
	a->proven = n;
	return DDP_OK;
}

/* Reads what has come. *waits: the connection is unproven still. */
static ddp_status hear(ddp_acceptor *a, struct ddp_newcomer *n, bool *waits)
{
	*waits = false;
	while (n->hello_used < sizeof(n->hello)) {
		const ssize_t got = recv(n->fd, (char *)&n->hello + n->hello_used,
		                         sizeof(n->hello) - n->hello_used, MSG_DONTWAIT);
		if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
			*waits = true;
			return DDP_OK;
		}
		if (got <= 0) {
			drop(a, n, got == 0 ? "it hung up" : ddp_reason(errno));
			return DDP_OK;
		}
		n->hello_used += (size_t)got;
	}
	return judge(a, n);
}

/* The proof may have come just now. */
static ddp_status drop_oldest(ddp_acceptor *a, const char *why)
{
	struct ddp_newcomer *oldest = a->unproven;
	bool waits;
	ddp_status status = hear(a, oldest, &waits);

	if (status == DDP_OK && waits)
		drop(a, oldest, why);
	return status;
}

/* ---- new ones ---------------------------------------------------------------------------- */

static ddp_status welcome(ddp_acceptor *a, int fd)
{
	ddp_status status = ddp_descriptor_keep(&fd);
	if (status != DDP_OK)
		return status;
	struct ddp_newcomer *n = calloc(1, sizeof(*n));
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = n };
	int one = 1;

	if (n == NULL) {
		ddp_descriptor_close(fd);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
	}
	n->fd = fd;
	n->since_ns = ddp_now_ns();
	n->previous = a->last_unproven;
	if (n->previous != NULL)
		n->previous->next = n;
	else
		a->unproven = n;
	a->last_unproven = n;
	a->unproven_count++;
	/* Local sockets do not have this option, which is no loss. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	status = ddp_challenge_make(&n->challenge);
	if (status == DDP_OK && epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "epoll_ctl");
	if (status == DDP_OK && !say(n, &n->challenge, sizeof(n->challenge)))
		drop(a, n, "it hung up");
	return status;
}

/* The lowest free descriptor is taken, so a high number tells that few are left. */
static void mind_descriptors(ddp_acceptor *a, int fd)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + DESCRIPTORS_SPARE >= limit.rlim_cur &&
	    a->unproven_count <= a->unproven_max && a->unproven_count > UNPROVEN_MIN)
		a->unproven_max = a->unproven_count - 1;
}

static ddp_status take_in(ddp_acceptor *a, int fd)
{
	if (a->same_user && !ddp_socket_is_same_user(fd)) {
		tell_drop(a, fd, "it is another user's");
		close(fd);
		return DDP_OK;
	}
	ddp_status status = welcome(a, fd);
	mind_descriptors(a, fd);
	while (status == DDP_OK && a->unproven_count > a->unproven_max)
		status = drop_oldest(a, "it had not proven the step's key when others came");
	return status;
}

static ddp_status accept_some(ddp_acceptor *a)
{
	ddp_status status = DDP_OK;

	for (int i = 0; i < ACCEPT_BATCH && status == DDP_OK; i++) {
		const int fd = accept4(a->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			status = take_in(a, fd);
			continue;
		}
		switch (errno) {
		case EAGAIN:
			return DDP_OK;
		case EMFILE: case ENFILE: case ENOBUFS: case ENOMEM:
			if (a->unproven_count == 0)
				return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot accept a connection");
			status = drop_oldest(a, "no descriptor was left");
			break;
		case EBADF: case EINVAL: case ENOTSOCK:
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot accept a connection");
		default: /* The rest concerns the one connection that was not made. */
			break;
		}
	}
	return status;
}

/* ---- all of them ------------------------------------------------------------------------- */

ddp_status ddp_acceptor_open(ddp_acceptor *a)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };

	a->epoll = -1;
	ddp_status status = ddp_descriptor_keep(&a->listener);
	if (status == DDP_OK && (a->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "epoll_create1");
	if (status == DDP_OK)
		status = ddp_descriptor_keep(&a->epoll);
	if (status == DDP_OK && epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->listener, &event) < 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "epoll_ctl");
	if (status != DDP_OK)
		ddp_acceptor_close(a);
	return status;
}

/* Reads what has come before it drops anybody. */
static ddp_status move(ddp_acceptor *a)
{
	struct epoll_event events[EVENTS];
	const int count = epoll_wait(a->epoll, events, EVENTS, 0);
	ddp_status status = DDP_OK;
	bool come = false, waits;

	if (count < 0 && errno != EINTR)
		return ddp_fail_errno(DDP_ERR_IO, errno, "epoll_wait");
	for (int i = 0; i < count && status == DDP_OK; i++) {
		come |= events[i].data.ptr == NULL;
		if (events[i].data.ptr != NULL)
			status = hear(a, events[i].data.ptr, &waits);
	}
	if (status == DDP_OK && come)
		status = accept_some(a);
	while (status == DDP_OK && a->unproven != NULL && ddp_now_ns() - a->unproven->since_ns > proof_timeout_ns)
		status = drop_oldest(a, "it has not proven the step's key in time");
	return status;
}

ddp_status ddp_acceptor_next(ddp_acceptor *a, int *fd, ddp_hello *hello)
{
	ddp_status status = a->proven != NULL ? DDP_OK : move(a);
	struct ddp_newcomer *n = a->proven;

	*fd = -1;
	if (status != DDP_OK || n == NULL)
		return status;
	*fd = n->fd;
	*hello = n->hello;
	a->proven = n->next;
	free(n);
	return DDP_OK;
}

void ddp_acceptor_close(ddp_acceptor *a)
{
	while (a->unproven != NULL)
		drop(a, a->unproven, "no more connections are waited for");
	while (a->proven != NULL) {
		struct ddp_newcomer *n = a->proven;
		a->proven = n->next;
		ddp_descriptor_close(n->fd);
		free(n);
	}
	tell_further_refusals(a);
	ddp_log_limit_end(&a->drops, DDP_LOG_DEBUG, a->who);
	ddp_log_limit_end(&a->misleads, DDP_LOG_WARN, a->who);
	if (a->epoll >= 0 && a->listener >= 0)
		/* ddp_spawn()'s listener has another descriptor, so close() would leave it in epoll. */
		epoll_ctl(a->epoll, EPOLL_CTL_DEL, a->listener, NULL);
	ddp_descriptor_close(a->listener);
	ddp_descriptor_close(a->epoll);
	a->listener = a->epoll = -1;
}
