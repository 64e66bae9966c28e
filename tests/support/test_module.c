/* SPDX-License-Identifier: Apache-2.0 */
/* Names the module of the asynchronous test device (tests/device), so that libddp finds it, and takes it for NCCL,
   too, unless there is a GPU. Tests run in the build folder. */
#include <limits.h>
#include <stdlib.h>

__attribute__((constructor)) static void name_module(void)
{
	char path[PATH_MAX];

	if (realpath("tests/device/.libs/libddp_test.so", path) == NULL)
		return;
	setenv("DDP_TEST_MODULE", path, 0);
	if (getenv("DDP_CUDA_MODULE") == NULL)
		setenv("DDP_NCCL", path, 0);
}
