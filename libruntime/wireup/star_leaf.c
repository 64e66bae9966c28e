#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "wireup/auth.h"
#include "wireup/frame.h"
#include "wireup/star.h"

/* Rank 0 knows who is missing; a leaf waits a little longer for its word. */
static const uint64_t grace_ns = 2000000000u;
/* One address that swallows packets must not keep the next from being tried. */
static const uint64_t connect_timeout_ns = 5000000000u;
static const uint64_t first_pause_ns = 5000000u, longest_pause_ns = 500000000u;

struct leaf {
	ddp_wireup base;
	int fd;
	uint32_t sequence;
	char centre_host[DDP_AUTH_HOST_BYTES];
};

static void pause_until(uint64_t pause_ns, uint64_t deadline_ns)
{
	uint64_t now = ddp_now_ns();
	uint64_t left = now < deadline_ns ? deadline_ns - now : 0;

	if (pause_ns > left)
		pause_ns = left;
	const struct timespec pause = {
		.tv_sec = (time_t)(pause_ns / 1000000000u), .tv_nsec = (long)(pause_ns % 1000000000u),
	};
	nanosleep(&pause, NULL);
}

static ddp_status refused(const ddp_rendezvous *rendezvous)
{
	return ddp_fail(DDP_ERR_AUTH, "rank 0 at %s did not accept this rank's key: DDP_KEY must be the "
	                "same on all ranks of a step", rendezvous->where);
}

/* DDP_ERR_PEER if the connection ended early, so that a new one may do. */
static ddp_status shake_hands(struct leaf *leaf, const ddp_key *key, const ddp_rendezvous *rendezvous,
                              uint64_t deadline_ns)
{
	ddp_challenge challenge;
	ddp_hello hello;
	ddp_verdict verdict;

	ddp_status status = ddp_socket_read(leaf->fd, &challenge, sizeof(challenge), deadline_ns);
	if (status != DDP_OK)
		return status;
	if (!ddp_challenge_is_ours(&challenge))
		return ddp_fail(DDP_ERR_AUTH, "what answers at %s is not rank 0 of a libddp job: another "
		                "program holds the port; choose another MASTER_PORT (srun --ddp=port=N)",
		                rendezvous->where);
	status = ddp_hello_make(key, &challenge, leaf->base.job, &hello);
	if (status == DDP_OK)
		status = ddp_socket_write(leaf->fd, &hello, sizeof(hello), deadline_ns);
	if (status == DDP_OK)
		status = ddp_socket_read(leaf->fd, &verdict, sizeof(verdict), deadline_ns);
	if (status != DDP_OK)
		return status;
	if (ddp_verdict_is_refusal(&verdict))
		return refused(rendezvous);
	if (ddp_verdict_check(key, &hello, &verdict) != DDP_OK)
		return ddp_fail(DDP_ERR_AUTH, "what answers at %s does not hold this step's key: it is not "
		                "rank 0 of this step", rendezvous->where);
	verdict.host[sizeof(verdict.host) - 1] = '\0';
	snprintf(leaf->centre_host, sizeof(leaf->centre_host), "%s", verdict.host);
	return DDP_OK;
}

static ddp_status try_to_join(struct leaf *leaf, const ddp_key *key, const ddp_rendezvous *rendezvous,
                              uint64_t deadline_ns)
{
	ddp_status status = ddp_rendezvous_connect(rendezvous, connect_timeout_ns, deadline_ns, &leaf->fd);

	if (status != DDP_OK)
		return status;
	status = shake_hands(leaf, key, rendezvous, deadline_ns);
	if (status != DDP_OK) {
		close(leaf->fd);
		leaf->fd = -1;
	}
	return status;
}

static ddp_status join(struct leaf *leaf, const ddp_key *key, const ddp_rendezvous *rendezvous,
                       uint64_t deadline_ns)
{
	uint64_t start_ns = ddp_now_ns(), pause_ns = first_pause_ns;
	ddp_status status;

	/* Rank 0 may start later than we do. */
	while ((status = try_to_join(leaf, key, rendezvous, deadline_ns)) == DDP_ERR_PEER &&
	       ddp_now_ns() < deadline_ns) {
		pause_until(pause_ns, deadline_ns);
		pause_ns = pause_ns * 2 < longest_pause_ns ? pause_ns * 2 : longest_pause_ns;
	}
	if (status != DDP_ERR_PEER && status != DDP_ERR_TIMEOUT)
		return status;
	return ddp_fail(DDP_ERR_TIMEOUT, "rank %d on %s: rank 0 did not come to %s within %.1f s: %s; %s",
	                leaf->base.job->rank, leaf->base.job->hostname, rendezvous->where,
	                ddp_seconds_since(start_ns), ddp_last_error(), rendezvous->addresses[0].ss_family == AF_UNIX
	                ? "did rank 0 call ddp_init() as often as this rank? Each ddp_init() is one of all ranks"
	                : "did rank 0 start, and does a firewall stand between?");
}

/* The present error, with who lost whom. */
static ddp_status lost_centre(const struct leaf *leaf, ddp_status status, uint64_t start_ns)
{
	if (status == DDP_ERR_TIMEOUT)
		return ddp_fail(status, "rank %d on %s: rank 0 on %s has not gathered all ranks after %.1f s",
		                leaf->base.job->rank, leaf->base.job->hostname, leaf->centre_host,
		                ddp_seconds_since(start_ns));
	return ddp_fail_context(status, "rank %d on %s lost rank 0 on %s during wire-up",
	                        leaf->base.job->rank, leaf->base.job->hostname, leaf->centre_host);
}

static ddp_status read_frame(struct leaf *leaf, ddp_frame_reader *reader, uint64_t deadline_ns)
{
	bool complete = false;

	while (!complete) {
		void *at;
		size_t bytes;
		ddp_status status = ddp_frame_room(reader, &at, &bytes);
		if (status == DDP_OK)
			status = ddp_socket_read_some(leaf->fd, at, bytes, deadline_ns, &bytes);
		if (status == DDP_OK)
			status = ddp_frame_filled(reader, bytes, &complete);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static ddp_status send_blob(struct leaf *leaf, const void *blob, size_t bytes, uint64_t deadline_ns)
{
	unsigned char header[DDP_FRAME_HEADER_BYTES];

	ddp_frame_header(header, DDP_FRAME_BLOB, leaf->sequence, bytes);
	ddp_status status = ddp_socket_write(leaf->fd, header, sizeof(header), deadline_ns);
	return status == DDP_OK ? ddp_socket_write(leaf->fd, blob, bytes, deadline_ns) : status;
}

static ddp_status take_answer(struct leaf *leaf, const ddp_frame_reader *reader, void **blobs,
                              size_t *sizes)
{
	if (reader->kind == DDP_FRAME_ERROR)
		return ddp_frame_raise_error(reader->payload, reader->bytes);
	if (reader->kind != DDP_FRAME_ALL || reader->sequence != leaf->sequence)
		return ddp_fail(DDP_ERR_FORMAT, "rank 0 answers exchange %u with message %u of exchange %u",
		                leaf->sequence, reader->kind, reader->sequence);
	return ddp_frame_unpack_all(reader->payload, reader->bytes, leaf->base.job->world_size, blobs,
	                            sizes);
}

static ddp_status leaf_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	struct leaf *leaf = (struct leaf *)wireup;
	ddp_frame_reader reader = { .world_size = leaf->base.job->world_size };
	uint64_t start_ns = ddp_now_ns();

	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	leaf->sequence++;
	ddp_status status = send_blob(leaf, blob, bytes, deadline_ns);
	/* Rank 0 may have closed, but have said why before. */
	if (status == DDP_OK || status == DDP_ERR_PEER)
		status = read_frame(leaf, &reader, deadline_ns + grace_ns);
	status = status == DDP_OK ? take_answer(leaf, &reader, blobs, sizes)
	                          : lost_centre(leaf, status, start_ns);
	ddp_frame_reset(&reader);
	return status;
}

static void leaf_close(ddp_wireup *wireup)
{
	struct leaf *leaf = (struct leaf *)wireup;

	if (leaf->fd >= 0)
		close(leaf->fd);
	free(leaf);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { "tcp", leaf_exchange, leaf_close };
static const ddp_wireup_ops local_ops = { "local", leaf_exchange, leaf_close };

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup)
{
	struct leaf *leaf = calloc(1, sizeof(*leaf));

	if (leaf == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	leaf->base.ops = local ? &local_ops : &tcp_ops;
	leaf->base.job = job;
	leaf->fd = -1;
	ddp_status status = join(leaf, key, rendezvous, deadline_ns);
	if (status != DDP_OK) {
		leaf_close(&leaf->base);
		return status;
	}
	*wireup = &leaf->base;
	return DDP_OK;
}
