/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/offsets.h"

#include <stdlib.h>

#include "base/error.h"

static void add_up(const size_t *counts, int size, size_t *offsets)
{
	offsets[0] = 0;
	for (int r = 0; r < size; r++)
		offsets[r + 1] = offsets[r] + counts[r];
}

ddp_status ddp_offsets_make(ddp_comm *comm)
{
	const ddp_operation *c = comm->run.operation;
	ddp_running *run = &comm->run;
	const size_t each = (size_t)comm->size + 1;

	if (c->counts == NULL)
		return DDP_OK;
	if (run->offsets == NULL) {
		run->offsets = malloc(2 * each * sizeof(*run->offsets));
		if (run->offsets == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the blocks of %d ranks", comm->size);
		run->recv_offsets = run->offsets + each;
	}
	add_up(c->counts, comm->size, run->offsets);
	if (c->recv_counts != NULL)
		add_up(c->recv_counts, comm->size, run->recv_offsets);
	return DDP_OK;
}

void ddp_offsets_free(ddp_comm *comm)
{
	free(comm->run.offsets);
}
