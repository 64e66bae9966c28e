/* SPDX-License-Identifier: Apache-2.0 */
/* The user whose step it is, for processes of the plugin that slurmstepd forks and that work as the user. libc only. */
#ifndef SPANK_OWNER_H
#define SPANK_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

enum { OWNER_GROUPS_MAX = 64 };

struct owner {
	uid_t user;
	gid_t group;
	int group_count; /* further groups of the user */
	gid_t groups[OWNER_GROUPS_MAX];
};

/* Makes this process the owner's for good, by all its ids, if any of them is root's. False: it is not the owner's. */
bool owner_become(const struct owner *owner);

/* Closes all descriptors from `first` on. */
void owner_close_files(int first);

#endif
