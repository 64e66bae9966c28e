/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc, and closes descriptors that it lists. It takes no lock and no memory. libc only. */
#ifndef SPANK_PROC_H
#define SPANK_PROC_H

#include <stdint.h>
#include <sys/types.h>

/* Calls `visit` with each name in the folder that is a number. The folder may change meanwhile. */
void proc_visit(const char *folder, void (*visit)(const char *number, void *about), void *about);

/*
 * In a process that slurmstepd has forked, and that does not become a program: closes all pipes and stream sockets that
 * execve(2) would close. Their other ends wait for that. Files stay, and so do sockets of datagrams: slurmstepd's code
 * goes on to write its log to those numbers.
 */
void proc_close_channels(void);

/* The signals for which the process has handlers: bit i is signal i + 1. */
uint64_t proc_caught(pid_t pid);

#endif
