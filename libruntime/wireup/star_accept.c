/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/star_accept.h"

#include <endian.h>
#include <string.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/log.h"
#include "job/environment.h"
#include "wireup/torchrun.h"

/* Holds the key, but its identity is wrong, so nothing can go on: it is told
   why together with the others. */
static ddp_status reject(struct ddp_centre *centre, struct ddp_link *link)
{
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
	ddp_link_free(link);
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
	link->rank = (int)rank;
	centre->ranks[rank] = link;
	centre->joined++;
	return ddp_link_watch(centre, link, EPOLLRDHUP);
}

/* Takes over the descriptor. */
static ddp_status take_proven(struct ddp_centre *centre, int fd, const ddp_hello *hello)
{
	struct ddp_link *link = calloc(1, sizeof(*link));

	if (link == NULL) {
		ddp_descriptor_close(fd);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a connection");
	}
	ddp_silence_ask(fd);
	link->fd = fd;
	link->rank = -1;
	link->hello = *hello;
	link->reader.world_size = centre->base.job->world_size;
	return take_rank(centre, link);
}

static ddp_status accept_some(struct ddp_centre *centre)
{
	const ddp_job *job = centre->base.job;
	ddp_hello hello;
	ddp_status status;
	int fd;

	do {
		status = ddp_acceptor_next(&centre->acceptor, &fd, &hello);
		if (status == DDP_ERR_NOMEM)
			status = ddp_fail_context(status, "rank 0 on %s, after %d of %d ranks (see ulimit -Hn)",
			                          job->hostname, centre->joined + 1, job->world_size);
		else if (status == DDP_OK && fd >= 0)
			status = take_proven(centre, fd, &hello);
	} while (status == DDP_OK && fd >= 0);
	return status;
}

static ddp_status too_late(const struct ddp_centre *centre, uint64_t start_ns)
{
	const ddp_job *job = centre->base.job;
	char list[DDP_MISSING_BYTES];

	ddp_centre_missing(centre, false, list, sizeof(list));
	if (centre->acceptor.misled[0] != '\0')
		return ddp_fail(DDP_ERR_AUTH, "%s did not come to rank 0 on %s (%s) within %.1f s; %s (man 3 libddp, "
		                "SECURITY)", list, job->hostname, centre->where, ddp_seconds_since(start_ns),
		                centre->acceptor.misled);
	if (centre->acceptor.refused > 0)
		return ddp_fail(DDP_ERR_AUTH, "%s did not come to rank 0 on %s (%s) within %.1f s, and %d "
		                "connections did not hold the step's key, the last from %s: DDP_KEY must be "
		                "the same on all ranks", list, job->hostname, centre->where,
		                ddp_seconds_since(start_ns), centre->acceptor.refused, centre->acceptor.last_refused);
	ddp_fail(DDP_ERR_TIMEOUT, "%s did not come to rank 0 on %s (%s) within %.1f s: did every "
	         "task start, and does a firewall stand between?", list, job->hostname, centre->where,
	         ddp_seconds_since(start_ns));
	return ddp_centre_about_missing(centre, false, DDP_ERR_TIMEOUT);
}

ddp_status ddp_accept_ranks(struct ddp_centre *centre, uint64_t deadline_ns)
{
	const uint64_t start_ns = ddp_now_ns();
	const pid_t agent = ddp_torchrun_agent();
	struct epoll_event events[DDP_EVENTS];
	int count;

	while (centre->joined < centre->base.job->world_size - 1) {
		ddp_status status = ddp_centre_events(centre, deadline_ns, events, &count);
		if (status == DDP_OK)
			status = ddp_torchrun_check(centre->base.job, agent);
		for (int i = 0; i < count && status == DDP_OK; i++) {
			if (events[i].data.ptr != NULL)
				status = ddp_centre_lost(centre, events[i].data.ptr, false, "its connection was closed");
		}
		if (status == DDP_OK)
			status = accept_some(centre);
		if (status != DDP_OK)
			return status;
		if (ddp_now_ns() >= deadline_ns && centre->joined < centre->base.job->world_size - 1)
			return too_late(centre, start_ns);
	}
	return DDP_OK;
}
