#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part `user` of make check-packages, with an archive of some lines: what is left after a failure or after USER_SECONDS
# runs at the next call, and nothing else. Prints TAP.
# shellcheck disable=SC2016 # make and the scripts expand it
set -u
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
folder=
trap 'chmod -R u+w "$work" ${folder:+"$folder"} 2>/dev/null; rm -rf "$work" ${folder:+"$folder"}' EXIT
unset USER_TESTS USER_SECONDS USER_FOLDER
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"

mkdir -p "$work/thing-1" "$work/build"
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
run() { call env -C "$work/build" "$@" "$source/tests/support/check-packages" "$source" ../thing-1.tar.gz user; }

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
run USER_FOLDER="$work"
check "a folder of something else is refused" prints "^check-packages: USER_FOLDER=$work has no thing-1/build$"
echo "1..$count"
