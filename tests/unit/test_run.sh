#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# tests/run itself, on a tree of a few scripts, where the checker of scripts fails
# as often as the test says; and tap, which ends a test that hangs.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/checks.sh
. "$here/tests/support/checks.sh"

# same_lines FILE LINE...
same_lines() { [ "$(cat "$1")" = "$(printf '%s\n' "${@:2}")" ]; }
tree=$work/tree
export XDG_CACHE_HOME=$work/cache
mkdir -p "$tree/tests"/{unit,ranks,python,bench} "$tree/slurm" "$tree/.ci" "$tree/examples" "$work/bin" "$work/tmp"
cp -r "$here/tests/run" "$here/tests/support" "$tree/tests/"
for file in unit/test_a.sh ranks/test_b.sh python/test_c.py bench/test_harness readme.sh; do
	echo '# runs: unit' >"$tree/tests/$file"
done
printf '#!/bin/sh\n' | tee "$tree/slurm/good" "$tree/slurm/bad" >"$tree/configure"
chmod 755 "$tree/configure" "$tree/tests/run"
# Fails for slurm/bad until it was asked $FAILURES times.
cat >"$work/bin/shellcheck" <<'END'
#!/bin/sh
case $* in --version) exit ;; *slurm/bad*) ;; *) exit 0 ;; esac
echo x >>"$ASKED"
echo "bad indeed"
[ "$(wc -l <"$ASKED")" -gt "$FAILURES" ]
END
chmod 755 "$work/bin/shellcheck"

# again FAILURES ARGUMENT...: another run with the cache of the last one
again() { FAILURES=$1 ASKED=$work/asked TMPDIR=$work/tmp PATH=$work/bin:$PATH call "$tree/tests/run" --no-install "${@:2}"; }
# run FAILURES ARGUMENT...
run()
{
	rm -rf "$work/asked" "$XDG_CACHE_HOME"
	again "$@"
}
run 0 lint/slurm/good lint/slurm/bad
check "tests that pass are counted" closes_with '2 passed, 0 failed'
check "and the status is 0" status_is 0
check "nothing is left of them" test -z "$(ls "$work/tmp")"
run 1 lint/slurm/good lint/slurm/bad
check "one failure is one, without --repeat-failed" closes_with '1 passed, 1 failed'
check "and the status is 1" status_is 1
check "it is named" prints '^  lint/slurm/bad: '
check "the folder with its log is named" prints '^What failed left its logs in /'
check "and holds it" grep -qr 'bad indeed' "$(sed -n 's/^What failed left its logs in //p' "$work/out")"
run 1 --repeat-failed 2 lint
check "a test that passes by itself counts as passed" prints '^[0-9]+ passed, 0 failed$'
check "after a line that calls it flaky" prints '^flaky: lint/slurm/bad$'
check "its folder is kept" test -d "$(sed -n 's/^What failed left its logs in //p' "$work/out")/lint"
check "and the status is 0" status_is 0
echo '. slurm/own.sh' >>"$tree/slurm/good"
echo : >"$tree/slurm/own.sh"
again 0 lint
check "a script that was right is not read again, whatever another one sources" test "$(wc -l <"$work/asked")" = 2
echo 'if true; then . slurm/own.sh; fi' >>"$tree/slurm/bad"
again 9 lint
check "but when it has changed" prints '^  lint/slurm/bad: '
again 0 lint/slurm/bad
echo true >"$tree/slurm/own.sh"
rm "$work/asked"
again 0 lint/slurm/bad
check "or a file that it sources" same_lines "$work/asked" x
run 3 --repeat-failed 2 lint/slurm/bad
check "a test that fails each time has failed" closes_with '0 passed, 1 failed'
check "and is not flaky" prints_not flaky
run 2 --times 5 lint/slurm/bad
check "--times says how often a test failed" prints '^lint/slurm/bad: 2 of 5 runs failed'
check "and counts each run" closes_with '3 passed, 2 failed'
check "the status is 1" status_is 1
run 0 lint/slurm/none
check "a test that does not exist is a wrong usage" status_is 2
check "which says how to find those that do" prints 'tests/run --list lint'
run 0 --times 0 lint
check "and so is a number that is none" status_is 2

# Of the tree itself, what tests say of themselves
names() { "$here/tests/run" --list "$@" | sort; }
suites=(unit asan tsan bare no-ucx no-pmix no-blas)
names "${suites[@]}" >"$work/short"
names --all "${suites[@]}" >"$work/out"
check "--all leaves out nothing that runs without it" test -z "$(comm -23 "$work/short" "$work/out")"
"$here/tests/support/tags" >"$work/tags"
awk -F '\t' '$2 == "" { sub(/.*\//, "", $1); sub(/\.c$/, "", $1); print $1 }' "$work/tags" >"$work/long"
once() { sed 's|.*/||' "$1" | grep -vxF -f "$work/long" | sort -u | md5sum; }
check "each test runs in one suite at least, also without --all, except those that say so" \
	test "$(once "$work/short")" = "$(once "$work/out")"
(cd "$here" && ls tests/unit/test_*.* tests/ranks/test_*.* tests/python/test_*.*) | grep -vxF -f <(cut -f 1 "$work/tags") >"$work/out"
check "each test has a line that says where it runs" same_lines "$work/out" tests/unit/test_optimizers_queue.c
cut -f 2,3 "$work/tags" | tr -s '\t ' '\n' | sort -u | grep -vxF -f <(printf '%s\n' '' "${suites[@]}") >"$work/out"
check "which names suites that there are" test ! -s "$work/out"
"$here/tests/support/tags" --make | diff - "$here/tests/programs.mk" >"$work/out"
check "and is what the makefiles were made of (else ./autogen.sh is due)" test ! -s "$work/out"
(cd "$here/tests" && grep -lE __SANITIZE_ADDRESS__ {unit,ranks}/test_*.c && grep -lE '_asan|sanitizer|check_again|gpu/train\.sh|from libddp import' ./*.sh {unit,ranks,python}/*.{sh,py}) |
	sed 's|.*/|unit/|; s|\.c$||' | sort | comm -23 - "$work/short" |
	grep -vxF -f <(sed 's|^|unit/|' "$work/long") >"$work/out"
check "unit runs those of which asan leaves out cases" test ! -s "$work/out"

# The checker's parent is timeout, whose parent is the lane.
install -m 755 "$tree/slurm/good" "$tree/slurm/kills"
cat >"$work/bin/shellcheck" <<'END'
#!/bin/sh
case $* in *slurm/kills*) kill -KILL "$(ps -o ppid= -p $PPID | tr -d ' ')" ;; esac
END
run 0 lint/slurm/good lint/slurm/kills lint/slurm/bad
check "tests of a lane that dies are missed" closes_with '1 passed, 2 failed'
check "each by its name" prints '^  lint/slurm/bad: left no result'

printf '#!/bin/sh\necho "ok 1 - begun"\nexec sleep 1000\n' >"$work/hangs"
chmod 755 "$work/hangs"
status=0
"$here/tests/support/tap" 1 "$work/hangs" >"$work/out" 2>/dev/null || status=$?
check "a test that hangs fails" status_is 137
check "when its time is up" prints '^Bail out! its time was up after [0-9]+ s'
check "after a look at its processes" prints '^# process [0-9]+: sleep 1000 , state S'
check "with the time that it took" prints '^# took [0-9.]+ s, [0-9.]+ s of CPU$'
echo "1..$count"
