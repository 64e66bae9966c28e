/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/reap.h"

#include <errno.h>
#include <stddef.h>
#include <sys/wait.h>

#include "spank/base/pause.h"

enum { LOOK_MS = 5 };

bool reap(pid_t child, int wait_ms, int *wait_status)
{
	for (int waited_ms = 0; ; waited_ms += LOOK_MS) {
		int status = -1;
		const pid_t reaped = waitpid(child, &status, WNOHANG);
		if (reaped == child || (reaped < 0 && errno != EINTR)) {
			if (wait_status != NULL)
				*wait_status = reaped == child ? status : -1;
			return true;
		}
		if (waited_ms >= wait_ms)
			return false;
		pause_ms(LOOK_MS);
	}
}
