/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/owner.h"

#include <grp.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_user(uid_t user)
{
	uid_t real, effective, saved;

	return getresuid(&real, &effective, &saved) == 0 && real == user && effective == user && saved == user;
}

static bool is_group(gid_t group)
{
	gid_t real, effective, saved;

	return getresgid(&real, &effective, &saved) == 0 && real == group && effective == group && saved == group;
}

/* In some of its callbacks slurmstepd is the user by its effective id, and root by its real and saved ids. */
bool owner_become(const struct owner *owner)
{
	if (owner->user == 0 || is_user(owner->user))
		return is_user(owner->user);
	return seteuid(0) == 0 && setgroups((size_t)owner->group_count, owner->groups) == 0 &&
	       setresgid(owner->group, owner->group, owner->group) == 0 &&
	       setresuid(owner->user, owner->user, owner->user) == 0 && is_user(owner->user) && is_group(owner->group);
}

void owner_close_files(int first)
{
	long count = sysconf(_SC_OPEN_MAX);

#ifdef SYS_close_range
	if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
		return;
#endif
	for (long fd = first; fd < (count > 0 ? count : 1024); fd++)
		close((int)fd);
}
