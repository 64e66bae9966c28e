/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's word on the threads of a process of the same user: a line for each. libc only. */
#ifndef SPANK_RECORD_THREADS_H
#define SPANK_RECORD_THREADS_H

#include <sys/types.h>

#include "spank/base/sink.h"

/* Adds "thread 123 (python) sleeps in futex_wait_queue" for each of the first threads; nothing if the process is
   gone. */
enum { THREADS_MAX = 256 };
void threads_add(struct sink *sink, pid_t pid);

#endif
