#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD PYTHON [RANKS...]: compiles the c10d backend for PYTHON's torch and the libddp of the folder BUILD, and
# runs its tests. With RANKS it also runs PyTorch's own tests of backends, on so many ranks, beside gloo.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../../../.." && pwd)
build=$(cd "$1" && pwd) python=$2
shift 2
if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
	echo "SKIP: $python has no torch"
	exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/package/slurm_ddp_torch"
cat >"$work/libddp.pc" <<-END
	libdir=$build/libruntime/.libs
	Name: libddp
	Description: libddp of a build
	Version: 0
	Libs: -L$build/libruntime/.libs -lddp
	Cflags: -I$source/libruntime/include
END
cp -r "$here/.." "$work/torch"
(cd "$work/torch" && PKG_CONFIG_PATH=$work CFLAGS=${CFLAGS:--O1 -g0} "$python" setup.py --quiet build_ext \
	--build-lib "$work/package" --build-temp "$work/objects") >"$work/compile.log" 2>&1 || {
	cat "$work/compile.log"
	exit 1
}
cp "$here/../slurm_ddp_torch/__init__.py" "$work/package/slurm_ddp_torch"
export PYTHONPATH="$work/package"
for test in operations training failures; do
	echo "== test_$test.py"
	"$python" "$here/test_$test.py"
done
for ranks; do
	for name in gloo ddp; do
		"$python" "$here/suite.py" --ranks "$ranks" --backend $name >"$work/$name-$ranks.txt" 2>"$work/log" || true
	done
	"$python" "$here/suite.py" --compare "$work/gloo-$ranks.txt" "$work/ddp-$ranks.txt"
done
