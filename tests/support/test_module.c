/* SPDX-License-Identifier: Apache-2.0 */
/* Names the module of the asynchronous test device (tests/device), so that libddp finds it. Tests run in the
   build folder. */
#include <limits.h>
#include <stdlib.h>

__attribute__((constructor)) static void name_module(void)
{
	char path[PATH_MAX];

	if (realpath("tests/device/.libs/libddp_test.so", path) != NULL)
		setenv("DDP_TEST_MODULE", path, 0);
}
