/*
 * Rank 0 accepts connections: who comes gets a challenge; who proves the step's key becomes
 * a rank; who does not is sent away, and the waiting goes on.
 */
#include "wireup/star_centre.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "job/environment.h"

enum {
	ACCEPT_BATCH = 64,
	REFUSALS_TOLD = 3 /* each; then only how many more there were, once a minute */
};

/* How long a connection may take to prove itself. */
static const uint64_t proof_timeout_ns = 10000000000u;

static void unlink_unproven(struct ddp_centre *centre, struct ddp_link *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
	centre->unproven_count--;
}

static void drop_unproven(struct ddp_centre *centre, struct ddp_link *link, const char *why)
{
	char peer[80];

	ddp_log_limited(&centre->drops, DDP_LOG_DEBUG, "wire-up: a connection from %s was dropped: %s",
	                ddp_socket_peer(link->fd, peer, sizeof(peer)), why);
	unlink_unproven(centre, link);
	ddp_link_free(link);
}

static ddp_status welcome(struct ddp_centre *centre, int fd)
{
	struct ddp_link *new = calloc(1, sizeof(*new));
	int one = 1;

	if (new == NULL) {
		close(fd);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
	}
	new->fd = fd;
	new->rank = -1;
	new->since_ns = ddp_now_ns();
	new->reader.world_size = centre->base.job->world_size;
	/* Not there on local sockets, and no loss. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	new->next = &centre->unproven;
	new->previous = centre->unproven.previous;
	new->previous->next = new;
	centre->unproven.previous = new;
	centre->unproven_count++;
	ddp_status status = ddp_challenge_make(&new->challenge);
	if (status == DDP_OK)
		status = ddp_link_watch(centre, new, EPOLLIN);
	if (status == DDP_OK)
		ddp_link_say(new, &new->challenge, sizeof(new->challenge));
	return status;
}

static ddp_status accept_some(struct ddp_centre *centre)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(centre->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0 && centre->same_user && !ddp_socket_is_same_user(fd)) {
			ddp_log_limited(&centre->drops, DDP_LOG_DEBUG, "wire-up: rank 0 on %s refused a connection "
			                "from another user's process", centre->base.job->hostname);
			close(fd);
			continue;
		}
		if (fd >= 0) {
			ddp_status status = welcome(centre, fd);
			if (status != DDP_OK)
				return status;
			continue;
		}
		if (errno == EMFILE || errno == ENFILE) {
			centre->need_descriptors = true;
			return DDP_OK;
		}
		if (errno == EAGAIN)
			return DDP_OK;
		if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == ENOMEM)
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot accept at %s", centre->where);
		/* The rest concerns the one connection that was not made. */
	}
	return DDP_OK;
}

/* Not within a batch of events, which may still name a dropped link. */
static ddp_status trim_unproven(struct ddp_centre *centre)
{
	uint64_t now = ddp_now_ns();

	if (centre->need_descriptors && centre->unproven_count == 0)
		return ddp_fail(DDP_ERR_NOMEM, "rank 0 on %s is out of descriptors after %d of %d ranks "
		                "(see ulimit -Hn)", centre->base.job->hostname, centre->joined + 1,
		                centre->base.job->world_size);
	while (centre->unproven_count > 0) {
		struct ddp_link *oldest = centre->unproven.next;
		if (centre->need_descriptors ||
		    centre->unproven_count > centre->base.job->world_size + DDP_UNPROVEN_SPARE)
			drop_unproven(centre, oldest, "too many at once");
		else if (now - oldest->since_ns > proof_timeout_ns)
			drop_unproven(centre, oldest, "no proof of the step's key in time");
		else
			break;
		centre->need_descriptors = false;
	}
	return DDP_OK;
}

static void tell_further_refusals(struct ddp_centre *centre)
{
	if (centre->refused == centre->refusals_told)
		return;
	ddp_log(DDP_LOG_WARN, "wire-up: rank 0 on %s refused %d more connections, the last from %s: they do "
	        "not hold the step's key", centre->base.job->hostname,
	        centre->refused - centre->refusals_told, centre->last_refused);
	centre->refusals_told = centre->refused;
	centre->told_ns = ddp_now_ns();
}

/* However many come, the log stays short. */
static void tell_refusal(struct ddp_centre *centre)
{
	if (centre->refused <= REFUSALS_TOLD) {
		ddp_log(DDP_LOG_WARN, "wire-up: rank 0 on %s refused a connection from %s: it does not hold "
		        "the step's key", centre->base.job->hostname, centre->last_refused);
		centre->refusals_told = centre->refused;
		centre->told_ns = ddp_now_ns();
	} else if (ddp_seconds_since(centre->told_ns) > 60) {
		tell_further_refusals(centre);
	}
}

static void refuse(struct ddp_centre *centre, struct ddp_link *link)
{
	static const ddp_verdict refusal;

	centre->refused++;
	ddp_socket_peer(link->fd, centre->last_refused, sizeof(centre->last_refused));
	tell_refusal(centre);
	ddp_link_say(link, &refusal, sizeof(refusal));
	drop_unproven(centre, link, "wrong key");
}

/* Holds the key, but its identity is wrong, so nothing can go on: it is told
   why together with the others. */
static ddp_status reject(struct ddp_centre *centre, struct ddp_link *link)
{
	unlink_unproven(centre, link);
	centre->misfit = link;
	return DDP_ERR_JOB;
}

/* All generations of a torchrun share its key. A worker whose agent was killed may still look for
   rank 0, and must not end the generation that it finds. */
static ddp_status send_orphan_away(struct ddp_centre *centre, struct ddp_link *link)
{
	unsigned char news[DDP_FRAME_ERROR_MAX];
	const size_t bytes = ddp_frame_pack_error(centre->sequence, DDP_ERR_JOB, news);

	ddp_log(DDP_LOG_WARN, "wire-up: %s: rank 0 takes it for a worker of an earlier start of this torchrun, "
	        "and goes on without it", ddp_last_error());
	ddp_link_say(link, news, bytes);
	drop_unproven(centre, link, "another world");
	return DDP_OK;
}

static ddp_status take_rank(struct ddp_centre *centre, struct ddp_link *link)
{
	const ddp_job *job = centre->base.job;
	uint32_t rank = le32toh(link->hello.rank), size = le32toh(link->hello.world_size);
	char peer[80];

	link->hello.host[sizeof(link->hello.host) - 1] = '\0';
	ddp_socket_peer(link->fd, peer, sizeof(peer));
	if (size != (uint32_t)job->world_size) {
		ddp_fail(DDP_ERR_JOB, "rank %u on %s (%s) says that the world has %u ranks, rank 0 on %s "
		         "says %d", rank, link->hello.host, peer, size, job->hostname, job->world_size);
		return ddp_environment("TORCHELASTIC_RUN_ID") != NULL ? send_orphan_away(centre, link)
		                                                      : reject(centre, link);
	}
	if (rank == 0 || rank >= size || centre->ranks[rank] != NULL) {
		const char *other = rank > 0 && rank < size ? centre->ranks[rank]->hello.host : job->hostname;
		ddp_fail(DDP_ERR_JOB, "two processes say that they are rank %u: one on %s and one on %s (%s)",
		         rank, other, link->hello.host, peer);
		return reject(centre, link);
	}
	unlink_unproven(centre, link);
	link->rank = (int)rank;
	centre->ranks[rank] = link;
	centre->joined++;
	return ddp_link_watch(centre, link, EPOLLRDHUP);
}

static ddp_status hear_unproven(struct ddp_centre *centre, struct ddp_link *link)
{
	ddp_verdict verdict;

	while (link->hello_used < sizeof(link->hello)) {
		ssize_t got = recv(link->fd, (char *)&link->hello + link->hello_used,
		                   sizeof(link->hello) - link->hello_used, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return DDP_OK;
		if (got <= 0) {
			drop_unproven(centre, link, got == 0 ? "it hung up" : ddp_reason(errno));
			return DDP_OK;
		}
		link->hello_used += (size_t)got;
	}
	ddp_status status = ddp_hello_check(&centre->key, &link->challenge, &link->hello);
	if (status == DDP_ERR_AUTH) {
		refuse(centre, link);
		return DDP_OK;
	}
	if (status == DDP_OK)
		status = ddp_verdict_make(&centre->key, &link->hello, centre->base.job->hostname, &verdict);
	if (status != DDP_OK)
		return status;
	ddp_link_say(link, &verdict, sizeof(verdict));
	return take_rank(centre, link);
}

static ddp_status too_late(const struct ddp_centre *centre, uint64_t start_ns)
{
	const ddp_job *job = centre->base.job;
	char list[200];

	ddp_centre_missing(centre, false, list, sizeof(list));
	if (centre->refused > 0)
		return ddp_fail(DDP_ERR_AUTH, "%s did not come to rank 0 on %s (%s) within %.1f s, and %d "
		                "connections did not hold the step's key, the last from %s: DDP_KEY must be "
		                "the same on all ranks", list, job->hostname, centre->where,
		                ddp_seconds_since(start_ns), centre->refused, centre->last_refused);
	return ddp_fail(DDP_ERR_TIMEOUT, "%s did not come to rank 0 on %s (%s) within %.1f s: did every "
	                "task start, and does a firewall stand between?", list, job->hostname,
	                centre->where, ddp_seconds_since(start_ns));
}

static ddp_status hear(struct ddp_centre *centre, struct ddp_link *link)
{
	if (link == NULL)
		return accept_some(centre);
	if (link->rank < 0)
		return hear_unproven(centre, link);
	return ddp_centre_lost(centre, link, false, "its connection was closed");
}

static ddp_status wait_for_ranks(struct ddp_centre *centre, uint64_t deadline_ns)
{
	uint64_t start_ns = ddp_now_ns();
	struct epoll_event events[DDP_EVENTS];
	int count;

	while (centre->joined < centre->base.job->world_size - 1) {
		ddp_status status = ddp_centre_events(centre, deadline_ns, events, &count);
		for (int i = 0; i < count && status == DDP_OK; i++)
			status = hear(centre, events[i].data.ptr);
		if (status == DDP_OK)
			status = trim_unproven(centre);
		if (status != DDP_OK)
			return status;
		if (ddp_now_ns() >= deadline_ns && centre->joined < centre->base.job->world_size - 1)
			return too_late(centre, start_ns);
	}
	return DDP_OK;
}

ddp_status ddp_accept_ranks(struct ddp_centre *centre, uint64_t deadline_ns)
{
	ddp_status status = wait_for_ranks(centre, deadline_ns);

	tell_further_refusals(centre);
	return status;
}

void ddp_drop_unproven(struct ddp_centre *centre, const char *why)
{
	while (centre->unproven_count > 0)
		drop_unproven(centre, centre->unproven.next, why);
	ddp_log_limit_end(&centre->drops, DDP_LOG_DEBUG, "wire-up: connections were dropped");
}
