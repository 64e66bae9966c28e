/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "wireup/frame.h"
#include "wireup/star.h"
#include "wireup/star_search.h"

/* Rank 0 knows who is missing; a leaf waits a little longer for its word. */
static const uint64_t grace_ns = 2000000000u;

struct leaf {
	ddp_wireup base;
	ddp_centre_found centre;
	uint32_t sequence;
};

/* The present error, with who lost whom; about rank 0 only if it is rank 0 that is missed. */
static ddp_status lost_centre(const struct leaf *leaf, ddp_status status, uint64_t start_ns)
{
	const ddp_job *job = leaf->base.job;

	if (status == DDP_ERR_TIMEOUT)
		ddp_fail(status, "rank %d on %s: rank 0 on %s has not gathered all ranks after %.1f s", job->rank,
		         job->hostname, leaf->centre.host, ddp_seconds_since(start_ns));
	else if (status == DDP_ERR_PEER)
		ddp_fail_context(status, "rank %d on %s lost rank 0 on %s during wire-up", job->rank, job->hostname,
		                 leaf->centre.host);
	else
		return ddp_fail_context(status, "rank %d on %s, during wire-up with rank 0 on %s", job->rank,
		                        job->hostname, leaf->centre.host);
	return ddp_error_about(status, 0);
}

static ddp_status read_frame(struct leaf *leaf, ddp_frame_reader *reader, uint64_t deadline_ns)
{
	bool complete = false;

	while (!complete) {
		void *at;
		size_t bytes;
		ddp_status status = ddp_frame_room(reader, &at, &bytes);
		if (status == DDP_OK)
			status = ddp_socket_await(leaf->centre.fd, deadline_ns, leaf->base.silence_ms);
		if (status == DDP_OK)
			status = ddp_socket_read_some(leaf->centre.fd, at, bytes, deadline_ns, &bytes);
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
	ddp_status status = ddp_socket_write(leaf->centre.fd, header, sizeof(header), deadline_ns);
	return status == DDP_OK ? ddp_socket_write(leaf->centre.fd, blob, bytes, deadline_ns) : status;
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

	if (leaf->centre.fd >= 0)
		close(leaf->centre.fd);
	free(leaf);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { .name = "tcp", .exchange = leaf_exchange, .close = leaf_close };
static const ddp_wireup_ops local_ops = { .name = "local", .exchange = leaf_exchange, .close = leaf_close };

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup)
{
	struct leaf *leaf = calloc(1, sizeof(*leaf));

	if (leaf == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	leaf->base.ops = local ? &local_ops : &tcp_ops;
	leaf->base.job = job;
	leaf->centre.fd = -1;
	ddp_status status = ddp_star_search(job, key, rendezvous, deadline_ns, &leaf->centre);
	if (status != DDP_OK) {
		leaf_close(&leaf->base);
		return status;
	}
	*wireup = &leaf->base;
	return DDP_OK;
}
