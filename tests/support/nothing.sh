# SPDX-License-Identifier: Apache-2.0
# nothing.sh: for tests in shell whose results in TAP are that nothing was found.
# shellcheck shell=sh
number=0

# nothing TEXT NAME: passes if there is no text
nothing()
{
	number=$((number + 1))
	if [ -z "$1" ]; then
		echo "ok $number - $2"
	else
		echo "not ok $number - $2"
		printf '%s\n' "$1" | sed 's/^/# /'
	fi
}
