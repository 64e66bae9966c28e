#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# Programs of this suite pass in one that has called setlocale() for a language whose numbers have
# a comma. What they expect (messages, files, variables) is as it is without. Prints TAP.
programs="unit/test_error unit/test_store unit/test_watch unit/test_comm_nics
	ranks/test_checkpoint_load ranks/test_model_refusals"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

skip() { echo "1..0 # SKIP $1"; exit 0; }

[ -z "$sanitizer" ] || skip "a sanitizer wants to be loaded first"
localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" >"$work/log" 2>&1 || skip "localedef cannot make de_DE.UTF-8 (install locales)"
cat >"$work/german.c" <<'C'
#include <locale.h>
#include <stdlib.h>
__attribute__((constructor)) static void use_german(void)
{
	if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL)
		abort();
}
C
"${CC:-cc}" -shared -fPIC "$work/german.c" -o "$work/german.so" || skip "there is no compiler"

number=0
# shellcheck disable=SC2086
set -- $programs
echo "1..$#"
for program; do
	number=$((number + 1))
	if [ ! -x "tests/$program" ]; then
		echo "ok $number - $program # SKIP it is not built here"
	elif CMOCKA_MESSAGE_OUTPUT=STDOUT LOCPATH=$work LD_PRELOAD=$work/german.so "tests/$program" >"$work/log" 2>&1; then
		echo "ok $number - $program"
	else
		echo "not ok $number - $program"
		grep -E 'ERROR|FAILED|^# ' "$work/log" | sed 's/^/# /' | head -20
	fi
done
