/* SPDX-License-Identifier: Apache-2.0 */
/* The wire-up of a world of one: there is nobody to wait for. */
#include <string.h>

#include "base/error.h"
#include "wireup/open.h"

static ddp_status self_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	(void)wireup;
	(void)deadline_ns;
	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	blobs[0] = malloc(bytes > 0 ? bytes : 1);
	if (blobs[0] == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %zu bytes", bytes);
	if (bytes > 0)
		memcpy(blobs[0], blob, bytes);
	sizes[0] = bytes;
	return DDP_OK;
}

static void self_close(ddp_wireup *wireup)
{
	free(wireup);
}

static const ddp_wireup_ops self_ops = { .name = "self", .exchange = self_exchange, .close = self_close };

ddp_status ddp_self_open(const ddp_job *job, ddp_wireup **wireup)
{
	ddp_wireup *self = malloc(sizeof(*self));

	if (self == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	self->ops = &self_ops;
	self->job = job;
	*wireup = self;
	return DDP_OK;
}
