/* SPDX-License-Identifier: Apache-2.0 */
/* A handle of a process: a descriptor (pidfd_open(2)), which never comes to belong to another process, as a number does
   once the process was reaped. */
#ifndef SPANK_HANDLE_H
#define SPANK_HANDLE_H

#include <stdbool.h>
#include <sys/types.h>

/* Gives what is readable as soon as the process has ended, for close(2). -1, with errno: the kernel has no such thing
   (ENOSYS), or there is no such process. */
int handle_open(pid_t pid);

/* Sends a signal. False, with errno: ENOSYS: the kernel cannot do that. */
bool handle_signal(int handle, int number);

#endif
