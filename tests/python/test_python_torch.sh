#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# The c10d backend compiles against the PyTorch that is there, and its own tests pass, with fewer failures of ranks and
# fewer operations than by make check-python, which also runs PyTorch's tests of backends.
# TEST_PYTHON: interpreters to try first, with colons between them.
set -u -o pipefail
source=$(cd "${0%/*}/../.." && pwd) || exit 1
tests=$source/libruntime/python/torch/tests
# Each rank may wait for a core for long.
export CFLAGS='-O0 -g0' DDP_TORCH_FAILURES=${DDP_TORCH_FAILURES:-3} DDP_TORCH_OPERATIONS=${DDP_TORCH_OPERATIONS:-60} \
	DDP_TORCH_SECONDS=${DDP_TORCH_SECONDS:-90} OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

IFS=: read -r -a candidates <<<"${TEST_PYTHON-}"
for python in "${candidates[@]}" /usr/bin/python3; do
	said=$("$tests/build.sh" "$PWD" "$python" 2>&1)
	status=$?
	[ "$status" = 77 ] || break
done
if [ "$status" = 77 ]; then
	echo "1..0 # SKIP ${said#SKIP: }"
	exit 0
fi
echo 1..5
number=1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
package=${said##*$'\n'} # if it could be built
# if_built COMMAND...
if_built()
{
	[ -e "$package/built" ] || return
	said=$("$@" 2>&1)
	status=$?
}
# tell NAME: of what has just ended
tell()
{
	if [ "$status" = 0 ]; then echo "ok $number - $1"; else echo "not ok $number - $1"; fi
	[ "$status" = 0 ] || printf '%s\n' "$said" | tail -n 60 | sed 's/^/# /'
	number=$((number + 1))
}
tell "the backend compiles for $("$python" -c 'import torch; print("torch", torch.__version__)')"
# pass NAME...: in one process, as to import torch takes a second and a half
pass()
{
	if_built env PYTHONPATH="$package:$tests" TMPDIR="$work" "$python" -m unittest -v "${@/#/test_}"
	tell "tests of $* pass"
}
pass operations training failures
# What these have left in their process is not in one that forks or ends.
pass ends forks
if_built ls -A "$work"
[ -z "$said" ] || status=1
tell "they leave no files"
if_built env DDP_TORCH_PACKAGE="$package" "$python" "$source/tests/python/test_python_doc.py" Backend
tell "the programs of doc/python.md run"
