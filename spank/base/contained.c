/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/contained.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "spank/base/handle.h"

static pid_t slurmstepd; /* 0: not noted */

void contained_note_slurmstepd(void)
{
	slurmstepd = getpid();
}

bool contained_here(void)
{
	return slurmstepd != 0 && getpid() != slurmstepd;
}

bool contained_sees_end(pid_t pid)
{
	struct pollfd process = { .fd = handle_open(pid), .events = POLLIN };

	if (process.fd >= 0) {
		bool ended = poll(&process, 1, 0) == 1;
		close(process.fd);
		return ended;
	}
	return kill(pid, 0) != 0 && errno == ESRCH;
}
