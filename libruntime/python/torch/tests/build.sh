#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh BUILD PYTHON [FOLDER]: compiles the c10d backend for PYTHON's torch and the libddp of the folder BUILD, and puts
# the package into FOLDER, unless it is there already. Without FOLDER it is one in BUILD, which tests share. Prints the
# folder. Ends with 77 and says why if PYTHON cannot compile it.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd -P)
build=$(cd "$1" && pwd) python=$2
folder=${3:-$build/libruntime/python/torch/built/$(printf '%s' "$(command -v "$python")" | tr -c 'A-Za-z0-9' _)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

exec 9>"$folder/lock"
flock 9 # two tests may want it at the same time
if [ -e "$folder/built" ] && [ -z "$(find "$here/csrc" "$here/setup.py" "$here/slurm_ddp_torch" -newer "$folder/built" ! -name __pycache__)" ]; then
	echo "$folder"
	exit 0
fi
reason=$("$here/tests/can_build" "$python") || {
	echo "SKIP: $python cannot compile the backend: $reason"
	exit 77
}

# Names in the source tree are relative, and the system's are not, so ccache finds what another checkout has compiled, also
# if its path has more folders. tests/run has another base, for builds outside the tree.
if [ -z "${CXX-}" ] && command -v ccache >/dev/null; then
	export CC='ccache gcc' CXX='ccache g++' CCACHE_NOHASHDIR=1 CCACHE_BASEDIR="${here%/*/*/*}"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/pkgconfig"
cat >"$work/pkgconfig/libddp.pc" <<-END
	libdir=$build/libruntime/.libs
	Name: libddp
	Description: libddp of a build
	Version: 0
	Libs: -L$build/libruntime/.libs -lddp
	Cflags: -I$here/../../include
END
export PKG_CONFIG_PATH="$work/pkgconfig" CFLAGS="${CFLAGS:--O1 -g0} -fstack-protector-strong -Wformat -Werror=format-security"
(cd "$work" && "$python" "$here/setup.py" --quiet egg_info --egg-base "$folder" \
	build_ext --build-lib "$folder" --build-temp "$folder.objects") >"$folder/compile.log" 2>&1 || {
	cat "$folder/compile.log"
	exit 1
}
cp "$here"/slurm_ddp_torch/*.py "$folder/slurm_ddp_torch"
: >"$folder/built"
echo "$folder"
