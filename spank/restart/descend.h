/* SPDX-License-Identifier: Apache-2.0 */
/* Kills the children of the calling process, which has one thread. It takes no lock and no memory. libc only. */
#ifndef SPANK_DESCEND_H
#define SPANK_DESCEND_H

/*
 * Sends SIGKILL to each child that the process has now, dead ones included. A child that a dying process leaves
 * to the caller meanwhile may be missed: the caller calls again until wait(2) finds no child.
 */
void descend_kill_children(void);

#endif
