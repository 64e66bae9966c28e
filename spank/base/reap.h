/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_REAP_H
#define SPANK_REAP_H

#include <stdbool.h>
#include <sys/types.h>

/* Reaps the child if it ends within so many milliseconds, and gives its wait status unless `wait_status` is NULL; -1 if
   somebody else has reaped it. False: the child has not ended. A child that waits for a device does not end by SIGKILL
   either, so nobody may wait for it without a limit. */
bool reap(pid_t child, int wait_ms, int *wait_status);

#endif
