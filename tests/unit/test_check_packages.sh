#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# The part `user` of make check-packages, with an archive of some lines: what is left after a failure or after USER_SECONDS
# runs at the next call, and nothing else. The parts `rpm` and `easybuild`, with programs that only say how they were called.
# Prints TAP.
# shellcheck disable=SC2016 # make and the scripts expand it
set -u
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
# The user nobody can reach it, wherever the source and TMPDIR are.
umask 022
work=$(mktemp -d /tmp/slurm-ddp-check.XXXXXX) && chmod 755 "$work" || exit 1
folder=
trap 'chmod -R u+w "$work" ${folder:+"$folder"} 2>/dev/null; rm -rf "$work" ${folder:+"$folder"}' EXIT
unset USER_TESTS USER_SECONDS USER_FOLDER
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"

mkdir -p "$work/thing-1" "$work/build"
install -m 755 "$source/tests/support/check-packages" "$work/check-packages"
printf '#!/bin/sh\necho "%s"\n' "'--some' '--option=a b'" >"$work/build/config.status"
# The file `tests/mode` says what tests/second does.
cat >"$work/thing-1/configure" <<'END'
#!/bin/sh
echo "options: $*"
mkdir tests && chmod 777 tests && cat >Makefile <<'MAKEFILE'
TESTS = tests/first tests/second
all:
print-tests:
	@for test in $(TESTS); do echo $$test; done
check:
	@recheck=no; for test in $(TESTS); do echo "ran $$test"; recheck=no; \
		if [ $$test = tests/second ]; then case `cat tests/mode 2>/dev/null` in \
			hang) sleep 1000 ;; pass) ;; *) recheck=yes ;; esac; fi; \
		echo ":recheck: $$recheck" >$$test.trs; done; [ $$recheck = no ]
MAKEFILE
END
chmod +x "$work/build/config.status" "$work/thing-1/configure"
tar -C "$work" -czf "$work/thing-1.tar.gz" thing-1
# run VARIABLE=VALUE...: the part
run() { call env -C "$work/build" "$@" ../check-packages .. ../thing-1.tar.gz user; }

run CHECK_JOBS=1
folder=$(sed -n 's|^check-packages: user: in \(/tmp/slurm-ddp-packages\.[A-Za-z0-9]*\)/.*|\1|p' "$work/out")
check "configure gets the options of this build" prints '^options: --quiet --some --option=a b$'
check "a test that fails makes the part fail" status_is 2
check "it is named, with the folder to go on in" prints "USER_FOLDER=$folder goes on\. These tests have not passed: tests/second $"
check "the folder is there" [ -n "$folder" -a -d "$folder/thing-1/build" ]
echo hang >"$folder/thing-1/build/tests/mode"
run USER_FOLDER="$folder" USER_SECONDS=1
check "with USER_SECONDS, a test that hangs is left" prints 'not passed: tests/second $'
check "and makes the part fail" status_is 2
check "what has passed does not run again" prints_not 'ran tests/first|options:'
echo pass >"$folder/thing-1/build/tests/mode"
run USER_FOLDER="$folder"
check "when all have passed, the part succeeds" status_is 0
check "after the test that was left" prints '^ran tests/second$'
check "and its folder is gone" [ ! -e "$folder" ]
if [ "$(id -u)" = 0 ]; then
	run setpriv --reuid=65534 --regid=65534 --clear-groups
	check "an ordinary user does the same" prints "^ran tests/second$"
	check "with a source that cannot be written" prints 'These tests have not passed: tests/second $'
	folder=$(sed -n 's|^check-packages: user: in \(/tmp/slurm-ddp-packages\.[A-Za-z0-9]*\)/.*|\1|p' "$work/out")
	[ -z "$folder" ] || { chmod -R u+w "$folder" && rm -rf "$folder"; }
fi
run USER_FOLDER="$work"
check "a folder of something else is refused" prints "^check-packages: USER_FOLDER=$work has no thing-1/build$"

# A source of three programs.
mkdir -p "$work/source/tests" "$work/source/libruntime/python/torch/tests" "$work/source/slurm/packaging/easybuild" "$work/venv/bin"
printf '#!/bin/sh\necho "torch=$RPM_TORCH of $*"\n' >"$work/source/tests/run"
printf '#!/bin/sh\necho "there is no header"\n[ -e "$0.yes" ]\n' >"$work/source/libruntime/python/torch/tests/can_build"
: >"$work/source/slurm/packaging/easybuild/slurm-ddp-1.eb"
cp "$work/thing-1.tar.gz" "$work/slurm-ddp-1.tar.gz"
cat >"$work/venv/bin/eb" <<'END'
#!/bin/sh
echo "python: ${EB_PYTHON-}"
[ "$*" != "--some --version" ] || exit 0
for option; do case $option in --prefix=*) folder=${option#*=}/software/slurm-ddp/1 ;; esac; done
mkdir -p "$folder/lib/slurm" "$folder/include" "$folder/bin" && : >"$folder/lib/libddp.so.1" && : >"$folder/include/ddp.h"
[ ! -e "${0%/*}/whole" ] || : >"$folder/lib/slurm/spank_ddp.so"
for program in ddp-failures ddp-preflight ddp-report ddp-status; do
	printf '#!/bin/sh\necho "$0 $*"\n' >"$folder/bin/$program" && chmod +x "$folder/bin/$program"
done
END
printf '#!/bin/sh\n' >"$work/venv/bin/python3"
chmod +x "$work/source/tests/run" "$work/source/libruntime/python/torch/tests/can_build" "$work/venv/bin/eb" "$work/venv/bin/python3"
# part NAME VARIABLE=VALUE...
part() { local name=$1; shift; call env -C "$work/build" -u RPM_TORCH -u EB_PYTHON "$@" ../check-packages ../source ../slurm-ddp-1.tar.gz "$name"; }

part rpm
check "without torch's headers, the RPM packages are built without torch" prints '^torch=no of .*cluster/package-rpm$'
check "and what is missing is named" prints 'python3-slurm-ddp-torch is left out: there is no header$'
: >"$work/source/libruntime/python/torch/tests/can_build.yes"
part rpm
check "with them, they are built with torch" prints '^torch=yes of .*cluster/package-rpm$'
part rpm RPM_TORCH=no
check "RPM_TORCH=no leaves torch out" prints '^torch=no of .*cluster/package-rpm$'

part easybuild EB="$work/venv/bin/eb --some"
check "an eb of a virtual environment gets its python" prints "^python: $work/venv/bin/python3$"
check "a plugin that is not installed makes the part fail" status_is 2
folder=$(sed -n 's|^check-packages: easybuild: in \(/tmp/slurm-ddp-packages\.[A-Za-z0-9]*\)/.*|\1|p' "$work/out")
check "and the folder is there" [ -n "$folder" -a -d "$folder/home/prefix" ]
rm -rf "$folder"
: >"$work/venv/bin/whole"
part easybuild EB="$work/venv/bin/eb --some"
check "if all is installed, the part succeeds" status_is 0
check "after each program has run" prints '/bin/ddp-status --version$'
folder=$(sed -n 's|^check-packages: easybuild: in \(/tmp/slurm-ddp-packages\.[A-Za-z0-9]*\)/.*|\1|p' "$work/out")
check "and its folder is gone" [ -n "$folder" -a ! -e "$folder" ]
part easybuild EB="$work/venv/bin/eb --some" EB_PYTHON=other
check "EB_PYTHON names another python" prints '^python: other$'
chmod 700 "$work/venv"
if [ "$(id -u)" = 0 ]; then
	part easybuild EB="$work/venv/bin/eb --some"
	check "an eb that nobody cannot run is named" prints "easybuild: an ordinary user cannot run $work/venv/bin/eb --some$"
	check "and makes the part fail" status_is 2
fi

# Headers that a compiler without folders of its own finds, one by one.
mkdir -p "$work/site/torch/utils" "$work/headers/torch" "$work/headers/pybind11"
: >"$work/site/torch/__init__.py" && : >"$work/site/torch/distributed.py" && : >"$work/site/torch/utils/__init__.py"
echo "def include_paths(): return ['$work/headers']" >"$work/site/torch/utils/cpp_extension.py"
printf '#!/bin/sh\nPYTHONPATH=%s exec python3 "$@"\n' "$work/site" >"$work/python" && chmod +x "$work/python"
can_build() { call env CXX="${CXX:-g++} -nostdinc -nostdinc++" "$source/libruntime/python/torch/tests/can_build" "$work/python"; }
compiler=${CXX:-g++}
if command -v "${compiler%% *}" >/dev/null; then
	for header in torch/extension.h:libtorch-dev pybind11/pybind11.h:pybind11-dev; do
		can_build
		check "the backend cannot be compiled without ${header%:*}" status_is 1
		check "which is named, with its package" closes_with "there is no ${header%:*} (${header#*:})"
		: >"$work/headers/${header%:*}"
	done
	: >"$work/headers/Python.h"
	can_build
	check "with all headers it can be compiled" status_is 0
else
	count=$((count + 1))
	echo "ok $count # SKIP there is no C++ compiler (${compiler%% *})"
fi
CXX=no-compiler can_build
check "and not without a compiler" closes_with "there is no C++ compiler (g++)"
echo "1..$count"
