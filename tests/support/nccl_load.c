/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/device/nccl_standin.h"
#include "tests/support/ranks.h"

nccl_standin_switches *test_nccl_standin(void)
{
	const char *path = getenv("DDP_TEST_MODULE");
	void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (library == NULL)
		fprintf(stderr, "# %s\n", path != NULL ? dlerror() : "there is no test device");
	CHECK(library != NULL);
	nccl_standin_switches *switches = dlsym(library, "nccl_standin");
	CHECK(switches != NULL);
	setenv("DDP_NCCL", path, 1);
	return switches;
}

void test_nccl_hide(void)
{
	setenv("DDP_NCCL", "/nowhere", 1);
}
