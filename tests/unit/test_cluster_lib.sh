#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# Tests on clusters take objects that are compiled already, and tell if one is missing.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/checks.sh
. "$here/tests/support/checks.sh"

# A tree of a plugin of three files, one of which asks for Slurm's release, and a core; and its build.
tree=$work/tree build=$work/build
mkdir -p "$tree/spank" "$build/spank/.libs"
cat >"$tree/spank/files.mk" <<'END'
spank_libspankcore_la_SOURCES = spank/core.c spank/core.h
spank_spank_ddp_la_SOURCES = spank/plugin.c \
	spank/one.c spank/one.h \
	spank/two.c spank/two.h
spank_status_SOURCES = spank/status/main.c
END
echo 'int core(void) { return 0; }' >"$tree/spank/core.c"
echo 'int one(void); int two(void); int core(void); int SPANK_PLUGIN(void) { return one() + two() + core(); }' >"$tree/spank/plugin.c"
echo 'int one(void) { return 1; }' >"$tree/spank/one.c"
echo 'int two(void) { return 2; }' >"$tree/spank/two.c"
echo '{ global: SPANK_PLUGIN; local: *; };' >"$tree/spank/spank_ddp.map"
: >"$build/config.h"
for name in one two; do
	gcc -fPIC -include "$build/config.h" -c "$tree/spank/$name.c" -o "$build/spank/.libs/spank_ddp_la-$name.o"
done
gcc -fPIC -c "$tree/spank/core.c" -o "$build/spank/.libs/core.o"
ar rc "$build/spank/.libs/libspankcore.a" "$build/spank/.libs/core.o"

# In a shell of its own: both have a check().
plugin()
{
	# shellcheck disable=SC2016 # that shell expands them
	call bash -c '. "$0"; . "$1"; plugin_of_release "$2" "$3"' /dev/null "$here/tests/cluster/lib.sh" /usr/include "$work/plugin.so"
}
export source=$tree build
plugin
check "a plugin for another release of Slurm is made of objects that are there" status_is 0
lacks_nothing() { nm -D --undefined-only "$work/plugin.so" >"$work/out" 2>&1 && ! grep -qwE 'one|two|core' "$work/out"; }
check "it lacks nothing" lacks_nothing
rm "$build/spank/.libs/spank_ddp_la-one.o"
plugin
check "if one is missing, there is no plugin" status_is 1
check "and it is named, with what to do" prints '/spank/\.libs/spank_ddp_la-one\.o is missing: build spank/spank_ddp\.la'

echo "1..$count"
