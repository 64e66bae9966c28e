/* SPDX-License-Identifier: Apache-2.0 */
/* Has libddp take the fake GPU (tests/device) for GPUs, their kernels and NCCL, unless tests are to run on a real
   one (make check-gpu). Tests run in the build folder. */
#include <limits.h>
#include <stdlib.h>

__attribute__((constructor)) static void name_modules(void)
{
	static const char *const names[] = { "DDP_CUDA_MODULE", "DDP_CUDA_KERNELS", "DDP_NCCL" };
	char path[PATH_MAX];

	if (getenv("DDP_TEST_GPU") != NULL || realpath("tests/device/.libs/libddp_fake_gpu.so", path) == NULL)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		setenv(names[i], path, 1);
}
