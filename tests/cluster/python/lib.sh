# SPDX-License-Identifier: Apache-2.0
# python/lib.sh: what the tests of PyTorch and of other frameworks share; lib.sh comes before.
# TEST_PYTHON: interpreters to try first, with colons between them, such as those of virtual environments.
# shellcheck shell=bash disable=SC2154 # tests/run sets work and prefix

# shellcheck disable=SC2034 # tests give it to --ddp=python=
folder=$prefix/lib/slurm-ddp/python
mkdir -p "$work/bin"
export PATH=$work/bin:$PATH OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
# Debian 13's PyTorch lacks libuv, which its own default asks for.
export USE_LIBUV=0

readonly has_modules='
import importlib.metadata, importlib.util, re, sys
def release(name):
    return [int(number) for number in re.findall("[0-9]+", importlib.metadata.version(name))[:2]]
for wanted in sys.argv[1:]:
    name, _, least = wanted.partition(">=")
    if not importlib.util.find_spec(name) or (least and release(name) < [int(number) for number in least.split(".")]):
        sys.exit(1)'

# python_has MODULE[>=RELEASE]...: $python has the modules. It does not import them, which would take seconds.
python_has() { as_user "$python" -c "$has_modules" "$@" >/dev/null 2>&1; }

# find_python MODULE[>=RELEASE]...: the first interpreter that has them becomes $python, and the `python` of batch scripts.
find_python()
{
	local candidates=()
	IFS=: read -r -a candidates <<<"${TEST_PYTHON-}"
	for python in "${candidates[@]}" /usr/bin/python3 python3; do
		python_has "$@" || continue
		printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$work/bin/python"
		chmod 755 "$work/bin/python"
		return
	done
	return 1
}

# program NAME: the standard input becomes a program that any user can read
program() { cat >"$work/$1" && chmod 755 "$work/$1"; }
