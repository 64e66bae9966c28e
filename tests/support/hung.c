/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/hung.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

static uint64_t computed_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int test_slowness(void)
{
	uint64_t start_ns = ddp_now_ns(), start_cpu_ns = computed_ns(), cpu_ns;

	do {
		cpu_ns = computed_ns() - start_cpu_ns;
	} while (cpu_ns < 100000000);
	uint64_t times = (ddp_now_ns() - start_ns + cpu_ns / 2) / cpu_ns;
	return times < 1 ? 1 : times > 20 ? 20 : (int)times;
}

void test_show_stacks(pid_t pid)
{
	char command[256];

	snprintf(command, sizeof(command),
	         "command -v gdb >/dev/null && timeout -k 5 30 gdb -nx -batch -p %d "
	         "-ex 'set pagination off' -ex 'thread apply all backtrace' 2>&1 | sed 's/^/# /' >&2",
	         (int)pid);
	fflush(NULL);
	if (system(command) != 0)
		fprintf(stderr, "# the stacks of process %d cannot be shown\n", (int)pid);
}
