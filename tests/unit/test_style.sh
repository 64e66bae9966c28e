#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# What CONTRIBUTING.md says of the lengths of lines, files and titles. The sources have some lines that are too long from
# before; `long_lines` is how many may be left. Lower it when there are fewer.
set -u
source=$(cd "${0%/*}/../.." && pwd) || exit 1
readonly longest_line=120 long_lines=63 longest_file=620 longest_title=70
readonly long_files='libruntime/wireup/by_store.c'

work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT || exit 1
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"

cd "$source" || exit 1
mapfile -t files < <(find spank libruntime kernels examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
LC_ALL=C.UTF-8 awk -v most=$longest_line 'length($0) > most { print FILENAME ":" FNR }' "${files[@]}" >"$work/out"
check "at most $long_lines lines of the sources are longer than $longest_line characters" \
	test "$(wc -l <"$work/out")" -le $long_lines
wc -l "${files[@]}" | awk -v most=$longest_file '$1 > most && $2 != "total" { print $2 }' | grep -vxF -- "$long_files" >"$work/out"
check "no source has more than $longest_file lines" test ! -s "$work/out"
git log -1 --no-merges --format=%s 2>/dev/null | awk -v most=$longest_title 'length($0) > most' >"$work/out"
check "the last commit's title has at most $longest_title characters" test ! -s "$work/out"
echo "1..$count"
