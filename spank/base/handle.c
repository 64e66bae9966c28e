/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/handle.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int handle_open(pid_t pid)
{
#ifdef SYS_pidfd_open
	return (int)syscall(SYS_pidfd_open, pid, 0u);
#else
	(void)pid;
	errno = ENOSYS;
	return -1;
#endif
}

bool handle_signal(int handle, int number)
{
#ifdef SYS_pidfd_send_signal
	return syscall(SYS_pidfd_send_signal, handle, number, NULL, 0u) == 0;
#else
	(void)handle;
	(void)number;
	errno = ENOSYS;
	return false;
#endif
}
