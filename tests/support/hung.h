/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that does not end: whether it hangs or the machine is busy, and where. */
#pragma once

#include <sys/types.h>

/* How much longer than on an idle machine a computation takes just now, from 1 to 20:
   limits that end what hangs grow by it, as those of tests/support/slowness.sh. */
int test_slowness(void);

/* Prints the stacks of a process to stderr as comments of TAP, if there is gdb. */
void test_show_stacks(pid_t pid);
