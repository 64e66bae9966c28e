/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* By what ways NCCL is told that a device moves CUDA memory, on kernels with and without the modules for it. */
#include <stdio.h>
#include <stdlib.h>

#include "nccl_plugins/net/abi.h"
#include "nccl_plugins/net/gpudirect.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

/* The modules that are loaded are those of this file below /sys; NULL: none. */
static void load(const char *file)
{
	char command[256];

	assert_int_equal(folder_empty(NULL), 0);
	if (file == NULL)
		return;
	snprintf(command, sizeof(command), "mkdir -p %s/%s && touch %s/%s/version", test_folder, file, test_folder, file);
	assert_int_equal(system(command), 0);
}

TEST(a_network_card_takes_all_with_a_peer_memory_module)
{
	static const char *const modules[] = { "module/nvidia_peermem", "module/nv_peer_mem",
	                                       "kernel/mm/memory_peers/nv_mem" };

	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
		load(modules[i]);
		assert_int_equal(net_gpudirect(true, test_folder), NET_CUDA | NET_DMABUF);
	}
}

TEST(a_network_card_takes_dmabufs_without_one)
{
	load(NULL);
	assert_int_equal(net_gpudirect(true, test_folder), NET_DMABUF);
	load("module/nvidia");
	assert_int_equal(net_gpudirect(true, test_folder), NET_DMABUF);
}

TEST(a_socket_takes_none)
{
	load("module/nvidia_peermem");
	assert_int_equal(net_gpudirect(false, test_folder), 0);
}

TEST(any_device_takes_all_where_the_user_wants_it)
{
	load(NULL);
	assert_int_equal(setenv("NCCL_NET_GDR_LEVEL", "SYS", 1), 0);
	assert_int_equal(net_gpudirect(false, test_folder), NET_CUDA | NET_DMABUF);
	assert_int_equal(net_gpudirect(true, test_folder), NET_CUDA | NET_DMABUF);
	assert_int_equal(setenv("NCCL_NET_GDR_LEVEL", "PHB", 1), 0);
	assert_int_equal(net_gpudirect(false, test_folder), 0);
	assert_int_equal(net_gpudirect(true, test_folder), NET_DMABUF);
	assert_int_equal(unsetenv("NCCL_NET_GDR_LEVEL"), 0);
}

int main(void)
{
	unsetenv("NCCL_NET_GDR_LEVEL");
	return test_run(folder_make, folder_remove);
}
