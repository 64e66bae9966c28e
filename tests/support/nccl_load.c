/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/test_device.h"
#include "tests/support/nccl_standin.h"
#include "tests/support/ranks.h"

#define LIBRARY "tests/support/.libs/nccl_standin.so"

nccl_standin_switches *test_nccl_load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		fprintf(stderr, "# %s\n", dlerror());
	CHECK(library != NULL);
	nccl_standin_switches *switches = dlsym(library, "nccl_standin");
	CHECK(switches != NULL);
	setenv("DDP_NCCL", LIBRARY, 1);
	return switches;
}

/* The module's ddp_test_device_within(), once libddp has loaded it. */
static bool (*within_of_module(void))(void)
{
	void *module = dlopen(getenv("DDP_TEST_MODULE"), RTLD_NOW | RTLD_NOLOAD);

	CHECK(module != NULL);
	bool (*within)(void) = (bool (*)(void))dlsym(module, "ddp_test_device_within");
	CHECK(within != NULL);
	return within;
}

nccl_standin_switches *test_nccl_standin(ddp_device *device)
{
	nccl_standin_switches *switches = test_nccl_load();

	switches->device = device;
	switches->launch = ddp_device_launch;
	switches->view = ddp_device_view;
	switches->alloc = ddp_device_alloc;
	switches->free = ddp_device_free;
	if (strcmp(ddp_device_describe(device)->kind, "test") == 0)
		switches->within = within_of_module();
	return switches;
}
