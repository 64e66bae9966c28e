#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD PYTHON [RANKS...]: compiles the c10d backend for PYTHON's torch and the libddp of the folder BUILD, and
# runs its tests. With RANKS it also runs PyTorch's own tests of backends, on so many ranks, beside gloo.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 python=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/build.sh" "$build" "$python" "$work/package" >"$work/log" || { status=$?; cat "$work/log"; exit $status; }
export PYTHONPATH="$work/package"
failed=
for test in operations training parallel frameworks recovery ends forks failures; do
	echo "== test_$test.py"
	"$python" "$here/test_$test.py" || failed="$failed test_$test.py"
done
if [ $# -gt 0 ] && ! "$python" -c 'import expecttest, torch.testing._internal.common_distributed' 2>"$work/log"; then
	echo "SKIP: PyTorch's own tests of backends: $(tail -n 1 "$work/log")"
	set --
fi
for ranks; do
	for name in gloo ddp; do
		"$python" "$here/suite.py" --ranks "$ranks" --backend $name >"$work/$name-$ranks.txt" 2>"$work/log" || true
	done
	"$python" "$here/suite.py" --compare "$work/gloo-$ranks.txt" "$work/ddp-$ranks.txt" || failed="$failed suite.py"
done
if [ -n "$failed" ]; then
	echo "failed:$failed"
	exit 1
fi
