#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 400
# slurm/demo: it trains, works again, and leaves nothing behind.
. "$source/tests/cluster/lib.sh"

# The cluster's folder, by what a demo wrote; other demos may run beside ours.
folder_in() { sed -n 's|^cluster \(demo-[0-9]*\): .*up.*|/run/slurm-ddp/\1|p' | head -n 1; }
# gone FOLDER NAME: the folder was there, and is no more
gone()
{
	if [ -n "$1" ] && wait_until $((10 + took)) test ! -e "$1"; then ok "$2"; else not_ok "$2" "folder: ${1:-unknown}"; fi
}

# A text of which each byte tells the next one, and all are as frequent: ten steps learn more than frequencies.
yes "$(printf %s {a..z} {A..Z} {0..9})" | head -n 2000 >"$work/text"
demo=("$source/slurm/demo" --build "$build" --text "$work/text")

mkdir "$work/foreign" && chown nobody "$work/foreign"
capture "$source/slurm/demo" --build "$work/foreign"
status_is 1 "a folder of another user's is not built in"
prints 'foreign belongs to another user' "which is said"
mkfifo "$work/pipe"
capture timeout 20 "$source/slurm/demo" --build "$build" --text "$work/pipe"
status_is 1 "a pipe is no text"
prints "cannot read $work/pipe, or it is no regular file" "which is said, too"

for time in first second; do
	capture env NO_COLOR=1 "${demo[@]}" --steps 10
	status_is 0 "the $time run ends well"
	prints 'step +10/10 ' "the $time run trains to the end"
	prints '^trained 10 steps' "the $time run prints the summary"
	prints_not $'\e' "the $time run prints no colours"
	gone "$(folder_in <<<"$output")" "the $time run takes its cluster down"
done
# Until training begins: on a busy machine, a multiple of a whole run.
begin=$((60 + 3 * took))
check "it writes a checkpoint" test -s "$build/run/checkpoints/step-00000010.safetensors"
check "it writes a trace for each rank" test -s "$build/run/trace/rank-3.json"
same 10 "$(wc -l <"$build/run/metrics.jsonl")" "it writes a line of metrics for each step"

# interrupted SIGNAL: in the middle of training; as from a terminal, to the group
interrupted()
{
	local demo_pid
	rm -f "$build/run/metrics.jsonl"
	setsid env --default-signal=INT "${demo[@]}" --steps 100000 >"$work/$1.log" 2>&1 </dev/null &
	demo_pid=$!
	wait_until $begin test -s "$build/run/metrics.jsonl" || { not_ok "$1: training begins" "$(tail "$work/$1.log")"; return; }
	kill "-$1" -- -$demo_pid
	if wait_until $((30 + took)) sh -c '! kill -0 "$0"' $demo_pid; then ok "$1 ends it"; else not_ok "$1 ends it"; kill -KILL -- -$demo_pid; fi
	gone "$(folder_in <"$work/$1.log")" "$1 leaves no cluster"
}
interrupted TERM
interrupted INT
[ -z "$all" ] || interrupted HUP
mkdir "$work/bin" && printf '#!/bin/sh\nkill -HUP "$PPID"\n' >"$work/bin/make" && chmod 755 "$work/bin/make"
capture env --default-signal=HUP PATH="$work/bin:$PATH" "${demo[@]}"
status_is 143 "HUP while it builds ends it as TERM does"

# Killed outright: the cluster sees that its owner is gone.
rm -f "$build/run/metrics.jsonl"
"${demo[@]}" --steps 100000 >"$work/kill.log" 2>&1 </dev/null &
wait_until $begin test -s "$build/run/metrics.jsonl"
kill -KILL $!
no_daemons() { ! grep -qsF "demo-$!" /proc/[0-9]*/cmdline; }
if wait_until $((20 + took)) no_daemons; then ok "killed outright, its cluster ends by itself"; else not_ok "killed outright, its cluster ends by itself"; fi
gone "$(folder_in <"$work/kill.log")" "and removes its folder"

capture "$source/slurm/demo" --steps none
status_is 2 "a wrong number is a wrong usage"
capture "$source/slurm/demo" --text "$work/not-there"
status_is 1 "a text that is not there is an error"
prints 'not-there' "which names it"

done_testing
