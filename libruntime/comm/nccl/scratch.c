/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/scratch.h"

#include <stdlib.h>

#include "base/error.h"

ddp_status ddp_nccl_scratch_get(ddp_nccl_lane *lane, size_t bytes, void **memory)
{
	const size_t before = lane->scratch != NULL ? lane->scratch->bytes : 0;

	if (bytes > before) {
		ddp_nccl_scratch *made = calloc(1, sizeof(*made));
		if (made == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the record of %zu bytes on the device",
			                bytes);
		/* The size at least doubles. So all memory that was too small takes no more than this. */
		made->bytes = bytes > 2 * before ? bytes : 2 * before;
		const ddp_status status = ddp_device_alloc(lane->device, made->bytes, &made->memory);
		if (status != DDP_OK) {
			free(made);
			return status;
		}
		made->older = lane->scratch;
		lane->scratch = made;
	}
	*memory = lane->scratch->memory;
	return DDP_OK;
}

void ddp_nccl_scratch_free(ddp_nccl_lane *lane)
{
	while (lane->scratch != NULL) {
		ddp_nccl_scratch *last = lane->scratch;
		lane->scratch = last->older;
		(void)ddp_device_free(lane->device, last->memory);
		free(last);
	}
}
