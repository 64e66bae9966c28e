/* SPDX-License-Identifier: Apache-2.0 */
/* The name of a process that was forked from slurmstepd and that goes on as one of the plugin's own. libc only. */
#ifndef SPANK_TITLE_H
#define SPANK_TITLE_H

/*
 * Gives the process this name, and the title that ps shows, in place of slurmstepd's, so that nobody who wants to end a
 * slurmstepd finds this process.
 */
void title_take(const char *name);

#endif
