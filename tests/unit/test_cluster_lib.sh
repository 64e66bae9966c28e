#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# Tests on clusters take objects that are compiled already. They tell if one is missing, and take none that holds another
# build's folders.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/checks.sh
. "$here/tests/support/checks.sh"

# A tree of a plugin of three files, one of which asks for Slurm's release, and a core; and its build.
tree=$work/tree build=$work/build
mkdir -p "$tree/spank" "$tree/tests/cluster/package" "$tree/kernels" "$tree/libruntime" "$build/spank/.libs" "$build/kernels" "$build/libruntime"
cp "$here/tests/cluster/package/take_objects" "$tree/tests/cluster/package/"
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
echo 'int two(void) { return sizeof(MODULE_DIR) + sizeof(BIN_DIR); }' >"$tree/spank/two.c"
echo '{ global: SPANK_PLUGIN; local: *; };' >"$tree/spank/spank_ddp.map"
printf '#define %s "/usr/local"\n' MODULE_DIR BIN_DIR >"$build/config.h"
echo 'SANITIZER_CFLAGS = ' >"$build/Makefile"
for name in one two; do
	gcc -fPIC -include "$build/config.h" -c "$tree/spank/$name.c" -o "$build/spank/.libs/spank_ddp_la-$name.o"
	: >"$build/spank/spank_ddp_la-$name.lo"
done
gcc -fPIC -c "$tree/spank/core.c" -o "$build/spank/.libs/core.o"
ar rc "$build/spank/.libs/libspankcore.a" "$build/spank/.libs/core.o"
: >"$build/spank/.dirstamp"

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
gcc -fPIC -c "$tree/spank/one.c" -o "$build/spank/.libs/spank_ddp_la-one.o"

# take FOLDER: into a new build, which is configured for other folders
take()
{
	rm -rf "$work/new"
	mkdir "$work/new"
	printf '#define %s "/usr"\n' MODULE_DIR BIN_DIR >"$work/new/config.h"
	[ $# = 0 ] || echo "$1" >>"$work/new/config.h"
	(cd "$work/new" && call "$tree/tests/cluster/package/take_objects" "$build"; echo "$status" >"$work/status")
	status=$(cat "$work/status")
}
take
check "a package's build takes objects of another one" test -e "$work/new/spank/.libs/spank_ddp_la-one.o" -a -e "$work/new/spank/.dirstamp"
check "but not what names a folder" test ! -e "$work/new/spank/.libs/spank_ddp_la-two.o" -a ! -e "$work/new/spank/spank_ddp_la-two.lo"
check "which it tells" prints '^take_objects: took the objects of '
take '#define HAVE_UCX 1'
check "it takes none of a build with another configuration" test ! -e "$work/new/spank"
check "and tells why" prints 'differs from this build.s by more than folders'
echo '#define ROOM MODULE_DIR' >"$tree/spank/one.h"
take
check "nor if a header names a folder" test ! -e "$work/new/spank"
check "which it tells" prints 'spank/one\.h names a folder'
rm "$tree/spank/one.h"
echo 'SANITIZER_CFLAGS = -fsanitize=address' >"$build/Makefile"
take
check "nor those of a build with sanitizers" prints 'was built with sanitizers'

echo "1..$count"
