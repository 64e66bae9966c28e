/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_memory.h"

#include <stdlib.h>

void *ddp_ucx_memory(ddp_worker *worker, size_t bytes)
{
	void *memory = malloc(bytes);

	for (int i = 0; memory == NULL && bytes <= sizeof(worker->spares[0]) && i < DDP_NET_SPARES; i++) {
		if (worker->spares_used & UINT32_C(1) << i)
			continue;
		worker->spares_used |= UINT32_C(1) << i;
		memory = worker->spares[i];
	}
	return memory;
}

void ddp_ucx_memory_free(ddp_worker *worker, void *memory)
{
	const uintptr_t offset = (uintptr_t)memory - (uintptr_t)worker->spares;

	if (offset < sizeof(worker->spares))
		worker->spares_used &= ~(UINT32_C(1) << offset / sizeof(worker->spares[0]));
	else
		free(memory);
}
