/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/pause.h"

#include <time.h>

void pause_ms(long ms)
{
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}
