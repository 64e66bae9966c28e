# SPDX-License-Identifier: Apache-2.0
# checks.sh: TAP of a script that looks at what commands print. `work` is a folder of the script's own.
# shellcheck shell=bash
# shellcheck disable=SC2154 # work
# shellcheck source=tests/support/slowness.sh
. "$(dirname "${BASH_SOURCE[0]}")/slowness.sh"
count=0 status=0 took=0

# call COMMAND...: its output in $work/out, status and seconds
call()
{
	local started=$SECONDS
	status=0
	"$@" >"$work/out" 2>&1 </dev/null || status=$?
	took=$((SECONDS - started))
}

# check NAME COMMAND...
check()
{
	local name=$1
	shift
	count=$((count + 1))
	if "$@"; then echo "ok $count - $name"; else
		echo "not ok $count - $name"
		sed 's/^/# /' "$work/out"
	fi
}
prints() { grep -qE -- "$1" "$work/out"; }
prints_not() { ! prints "$1"; }
closes_with() { [ "$(tail -n 1 "$work/out")" = "$1" ]; }
status_is() { [ "$status" = "$1" ]; }
# within FROM TO: took the last call so many seconds? TO is an idle machine's.
within() { [ "$took" -ge "$1" ] && { [ "$took" -le "$2" ] || [ "$took" -le $(($2 * $(slowness))) ]; }; }
