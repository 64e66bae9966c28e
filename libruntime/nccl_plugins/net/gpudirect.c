/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/gpudirect.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_plugins/net/abi.h"

/* Users may have NCCL use GPUDirect wherever it can. */
static bool wanted_always(void)
{
	const char *level = getenv("NCCL_NET_GDR_LEVEL");

	return level != NULL && strcmp(level, "SYS") == 0;
}

/* Is a module of the kernel there by which cards reach a GPU's memory? UCX looks for the same files. */
static bool has_peer_memory(const char *sys)
{
	static const char *const files[] = {
		"module/nvidia_peermem/version", "module/nv_peer_mem/version",
		"kernel/mm/memory_peers/nv_mem/version",
	};
	bool found = false;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && !found; i++) {
		char path[4096];
		snprintf(path, sizeof(path), "%s/%s", sys, files[i]);
		found = access(path, F_OK) == 0;
	}
	return found;
}

/* Without such a module there is the dmabuf only, which NCCL asks the GPU's driver for. */
int net_gpudirect(bool rdma, const char *sys)
{
	if (wanted_always())
		return NET_CUDA | NET_DMABUF;
	if (!rdma)
		return 0;
	return has_peer_memory(sys) ? NET_CUDA | NET_DMABUF : NET_DMABUF;
}
