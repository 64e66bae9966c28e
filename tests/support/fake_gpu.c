/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/fake_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/device/nccl_standin.h"
#include "tests/support/ranks.h"

bool test_on_gpu(void)
{
	return getenv("DDP_TEST_GPU") != NULL;
}

static void *find(const char *symbol)
{
	void *module = dlopen("tests/device/.libs/libddp_fake_gpu.so", RTLD_NOW | RTLD_LOCAL);

	if (module == NULL)
		fprintf(stderr, "# %s\n", dlerror());
	CHECK(module != NULL && dlsym(module, symbol) != NULL);
	return dlsym(module, symbol);
}

fake_gpu_switches *test_fake_gpu(void)
{
	return find("fake_gpu");
}

nccl_standin_switches *test_nccl_standin(void)
{
	return find("nccl_standin");
}

void test_nccl_hide(void)
{
	setenv("DDP_NCCL", "/nowhere", 1);
}
