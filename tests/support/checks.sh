# SPDX-License-Identifier: Apache-2.0
# checks.sh: TAP of a script. Commands' output is in `work`, a folder of the script's own.
# shellcheck shell=bash
# shellcheck disable=SC2154 # work
# shellcheck source=tests/support/slowness.sh
. "$(dirname "${BASH_SOURCE[0]}")/slowness.sh"
count=0 failed=0 status=0 took=0

# call COMMAND...: its output in $work/out, status and seconds
call()
{
	local started=$SECONDS
	status=0
	"$@" >"$work/out" 2>&1 </dev/null || status=$?
	took=$((SECONDS - started))
}

# check NAME COMMAND...: the command's success is the test's
check()
{
	local name=$1
	shift
	count=$((count + 1))
	if "$@"; then echo "ok $count - $name"; else
		echo "not ok $count - $name"
		sed 's/^/# /' "$work/out" "$work/err" 2>/dev/null | tail -n 40
		failed=$((failed + 1))
	fi
}

# nothing TEXT NAME: passes if there is no text
nothing()
{
	count=$((count + 1))
	if [ -z "$1" ]; then echo "ok $count - $2"; else
		echo "not ok $count - $2"
		printf '%s\n' "$1" | sed 's/^/# /'
	fi
}
prints() { grep -qE -- "$1" "$work/out"; }
prints_not() { ! prints "$1"; }
closes_with() { [ "$(tail -n 1 "$work/out")" = "$1" ]; }
status_is() { [ "$status" = "$1" ]; }
# within FROM TO: took the last call so many seconds? TO is an idle machine's.
within() { [ "$took" -ge "$1" ] && { [ "$took" -le "$2" ] || [ "$took" -le $(($2 * $(slowness))) ]; }; }
