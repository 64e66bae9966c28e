/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/handle.h"

enum { LOOK_MS = 5 }; /* where the kernel has no handles, or somebody else has to reap the child first */

#define NS_PER_MS 1000000ull

bool child_runs(pid_t child)
{
	siginfo_t info = { .si_pid = 0 };

	return child > 0 && waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

bool child_signal(pid_t child, int number)
{
	const int handle = child > 0 ? handle_open(child) : -1, reason = errno;
	/* The handle was opened before. So if the child is there now, the handle is the child's. */
	bool sent = child_runs(child);

	if (sent && handle >= 0)
		sent = handle_signal(handle, number);
	else if (sent)
		sent = reason != ESRCH && kill(child, number) == 0;
	if (handle >= 0)
		close(handle);
	return sent;
}

/* True if the child is reaped. */
static bool take(pid_t child, int *wait_status)
{
	int status = -1;
	const pid_t reaped = waitpid(child, &status, WNOHANG);

	if (reaped == 0 || (reaped < 0 && errno == EINTR))
		return false;
	if (wait_status != NULL)
		*wait_status = reaped == child ? status : -1;
	return true;
}

bool child_reap(pid_t child, int wait_ms, int *wait_status)
{
	const uint64_t deadline_ns = ddp_now_ns() + (uint64_t)wait_ms * NS_PER_MS;
	/* Opened before the child is looked at, as above. */
	struct pollfd process = { .fd = wait_ms > 0 ? handle_open(child) : -1, .events = POLLIN };
	bool reaped, ended = false;

	while (!(reaped = take(child, wait_status))) {
		const uint64_t now_ns = ddp_now_ns();
		int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
		if (left_ms == 0)
			break;
		/* Its debugger has to reap it first, and no handle tells when that is done. */
		if (ended && process.fd >= 0) {
			close(process.fd);
			process.fd = -1;
		}
		ended = poll(&process, 1, process.fd >= 0 || left_ms < LOOK_MS ? left_ms : LOOK_MS) == 1;
	}
	if (process.fd >= 0)
		close(process.fd);
	return reaped;
}
