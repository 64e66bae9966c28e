# SPDX-License-Identifier: Apache-2.0
# results.sh: what tests/run keeps of each result, and what it says in the end.
# shellcheck shell=bash disable=SC2154 # tests/run sets results, evidence, logs, work

# A result is a line "PASS|FAIL|SKIP <tab> suite <tab> test <tab> text <tab> log".
# A step that is no test, such as a build, has no name of a test.
record() { printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$5" >>"$results"; }
# count KIND [SUITE [NAME]]
count()
{
	awk -F '\t' -v kind="$1" -v suite="${2-}" -v name="${3-}" '
		$1 == kind && (suite == "" || $2 == suite) && (name == "" || $3 == name) { n++ }
		END { print n + 0 }' "$results"
}

# ended SUITE NAME TIME: a line on a test that has ended
ended()
{
	say "$(awk -F '\t' -v suite="$1" -v name="$2" -v time="$3" '
		$2 == suite && $3 == name { n[$1]++ }
		END {
			printf "%-40s %d passed%s%s, %s", suite "/" name, n["PASS"],
				n["SKIP"] ? ", " n["SKIP"] " skipped" : "", n["FAIL"] ? ", " n["FAIL"] " FAILED" : "", time
		}' "$results")"
}

# from_tap SUITE NAME STATUS LOG: records the results of a test that prints TAP.
# No plan, another plan than results, or a bad exit status is a failure too.
from_tap()
{
	awk -v suite="$1" -v name="$2" -v status="$3" -v log_file="$4" '
		function result(kind, text) { printf "%s\t%s\t%s\t%s\t%s\n", kind, suite, name, text, log_file }
		/^(not )?ok( |$)/ {
			seen++
			text = $0
			sub(/^(not )?ok *[0-9]* *-? */, "", text)
			kind = /^not/ ? "FAIL" : (text ~ /# *SKIP/ ? "SKIP" : "PASS")
			if (kind == "FAIL") failed++
			result(kind, text)
		}
		/^1\.\.[0-9]+/ {
			planned = 1
			plan = substr($1, 4) + 0
			if (plan == 0) { result("SKIP", $0); skipped = 1 }
		}
		/^Bail out!/ { result("FAIL", $0); failed++; bailed = 1 }
		END {
			if (status == 124 || status == 137) result("FAIL", "ended, its time was up")
			else if (!bailed && !planned) result("FAIL", "ended without a plan, status " status)
			else if (!bailed && !skipped && plan != seen) result("FAIL", "planned " plan " tests, ran " seen + 0)
			else if (status != 0 && !failed) result("FAIL", "exit status " status)
		}' "$4" >>"$results"
}

# fresh_results COMMAND... [forgive]: runs the command with results of its own,
# then joins them to the others. With the last word "forgive", and if all passed, they take
# the place of what the same test left before. Fails if one failed.
fresh_results()
{
	local joined=$results forgive='' command=("$@") failed
	if [ "${command[-1]}" = forgive ]; then forgive=yes; unset 'command[-1]'; fi
	results=$work/results.one
	: >"$results"
	"${command[@]}"
	failed=$(count FAIL)
	[ "$(($(count PASS) + $(count SKIP)))" -gt 0 ] || failed=1
	if [ -n "$forgive" ] && [ "$failed" = 0 ]; then
		awk -F '\t' -v suite="$2" -v name="$3" '!($2 == suite && $3 == name)' "$joined" >"$joined.new" && mv "$joined.new" "$joined"
	fi
	if [ -z "$forgive" ] || [ "$failed" = 0 ]; then cat "$results" >>"$joined"; fi
	results=$joined
	[ "$failed" = 0 ]
}

# keep_evidence SUITE NAME [FILE...]: for a test that failed, copies of files and
# folders that tell why, in a folder of its own
keep_evidence()
{
	local folder=$evidence/$1/$2 attempt=1
	while [ -e "$folder" ]; do attempt=$((attempt + 1)) folder=$evidence/$1/$2.$attempt; done
	mkdir -p "$folder" || return
	shift 2
	while [ $# -gt 0 ]; do
		[ ! -e "$1" ] || cp -r -- "$1" "$folder/" 2>/dev/null
		shift
	done
}

# Which failed, with the ends of their logs, and then the closing line.
close_up()
{
	local log passed failed skipped
	passed=$(count PASS) failed=$(count FAIL) skipped=$(count SKIP)
	if [ "$skipped" != 0 ]; then
		echo; echo "Skipped, by what was missing:"
		awk -F '\t' '
			$1 == "SKIP" {
				reason = $4
				if (!sub(/.*# *SKIP */, "", reason)) sub(/^[0-9]+\.\.[0-9]+ *#? */, "", reason)
				test = $2 "/" $3
				n[reason]++
				if (!((reason, test) in seen)) tests[reason] = tests[reason] " " test
				seen[reason, test]
			}
			END { for (reason in n) printf "%5d  %s:%s\n", n[reason], reason, tests[reason] }' "$results" | sort -rn
	fi
	if [ "$failed" != 0 ]; then
		while read -r log; do
			[ -f "$log" ] || continue
			echo; echo "--- the end of $log"
			tail -n 25 "$log"
		done < <(awk -F '\t' '$1 == "FAIL" && !seen[$5]++ { print $5 }' "$results")
		echo; echo "Failed:"
		awk -F '\t' '$1 == "FAIL" { print "  " $2 ($3 == "" ? "" : "/") $3 ": " $4 }' "$results"
		keep=yes
	fi
	if [ -n "$(ls -A "$evidence")" ]; then
		echo; echo "What failed left its logs in $evidence"
		printf '%s' "$flaky"
	fi
	[ -z "$keep" ] || echo "Builds and logs are in $work"
	echo
	printf '%d passed, %d failed' "$passed" "$failed"
	[ "$skipped" = 0 ] || printf ', %d skipped' "$skipped"
	echo
	((failed == 0 && passed > 0))
}
