/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/contained.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "spank/base/child.h"

static pid_t slurmstepd; /* 0: not noted */

void contained_note_slurmstepd(void)
{
	slurmstepd = getpid();
}

bool contained_here(void)
{
	return slurmstepd != 0 && getpid() != slurmstepd;
}

static bool has_ended(int handle)
{
	struct pollfd process = { .fd = handle, .events = POLLIN };

	return poll(&process, 1, 0) == 1;
}

bool contained_sees_end(pid_t pid)
{
	int handle = handle_open(pid);
	bool ended;

	if (handle < 0)
		return kill(pid, 0) != 0 && errno == ESRCH;
	ended = has_ended(handle);
	close(handle);
	return ended;
}

void contained_signal(pid_t pid, int number)
{
	int handle = handle_open(pid);

	if (handle < 0 && errno != ESRCH)
		(void)kill(pid, number);
	if (handle < 0)
		return;
	if (!has_ended(handle))
		(void)handle_signal(handle, number);
	close(handle);
}
