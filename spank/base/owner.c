/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/owner.h"

#include <grp.h>
#include <sys/syscall.h>
#include <unistd.h>

bool owner_become(const struct owner *owner)
{
	if (geteuid() != 0)
		return geteuid() == owner->user;
	if (owner->user == 0)
		return true;
	return setgroups((size_t)owner->group_count, owner->groups) == 0 &&
	       setresgid(owner->group, owner->group, owner->group) == 0 &&
	       setresuid(owner->user, owner->user, owner->user) == 0 && geteuid() == owner->user && getuid() == owner->user;
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
