# SPDX-License-Identifier: Apache-2.0
# slowness.sh: how much longer than on an idle machine things take just now.
# shellcheck shell=bash

# How many times the time that a computation needs passes until it is done, as a
# whole number: 1 on a machine with a core to spare, more where processes wait for
# one, and 20 at most, so that what hangs ends.
slowness()
{
	local TIMEFORMAT='%R %U %S'
	{ time awk 'BEGIN { for (i = 0; i < 2000000; i++) sum += i }' 2>/dev/null; } 2>&1 |
		awk '{ times = $1 / ($2 + $3 + 0.01); print (times < 1 ? 1 : times > 20 ? 20 : int(times + 0.5)) }'
}
