# SPDX-License-Identifier: Apache-2.0
# lib.sh: what the tests in this folder share; tests/run runs them, in bash.
#
# A test is NAME.sh. Comments at its start say what it needs:
#   # nodes: 3                   the cluster's nodes (2); 0: it wants no cluster
#   # cluster: --gpus 2          more options of `slurm/cluster start`
#   # seconds: 60                its deadline (120): several times what it takes on a
#                                busy machine, as each of its commands has a limit
#   # takes: 400               its place among others, where longer ones begin first (its deadline)
# Tests that need the same cluster share one, one after the other.
#
# tests/run sets: source (the tree), build (the build), prefix (an installation:
# bin with the examples, lib, ...), work (a folder for this test that everybody
# may write to, the same on all nodes), cluster (the cluster's folder).
# shellcheck shell=bash disable=SC2154
set -u -o pipefail

tests_done=0
output='' status=0 took=0

# ---- TAP ---------------------------------------------------------------------

ok() { tests_done=$((tests_done + 1)); printf 'ok %d - %s\n' "$tests_done" "$1"; }

# not_ok NAME [LINE...]: the lines, and the last command's output, say more.
not_ok()
{
	tests_done=$((tests_done + 1))
	printf 'not ok %d - %s\n' "$tests_done" "$1"
	shift
	[ $# = 0 ] || printf '# %s\n' "$@"
	[ -z "$output" ] || printf '%s\n' "$output" | tail -n 30 | sed 's/^/#   /'
}

# skip NAME REASON
skip() { tests_done=$((tests_done + 1)); printf 'ok %d - %s # SKIP %s\n' "$tests_done" "$1" "$2"; }

# skip_all REASON: ends the test
skip_all() { printf '1..0 # SKIP %s\n' "$1"; exit 0; }

# The last line of every test.
done_testing() { printf '1..%d\n' "$tests_done"; }

# ---- running things ------------------------------------------------------------

# sleep SECONDS, without a process: programs of ranks, which are bash, begin with it where they wait in loops. Nobody writes
# to the pipe. A trap that returns must not use it.
# shellcheck disable=SC2016 # it is expanded later
readonly no_process='exec {never}<> <(:); sleep() { read -rt "$1" -u "$never" || :; }'
eval "$no_process"

# capture COMMAND...: runs it; $output is what it wrote, both streams, $status
# how it ended, $took how many seconds that took.
capture()
{
	local started=$SECONDS
	status=0
	output=$("$@" 2>&1 </dev/null) || status=$?
	took=$((SECONDS - started))
}

# on_cluster COMMAND...: on the head, as root. as_user: as an ordinary user.
# Both end the command after $limit seconds (60), stretched, with status 124, and
# leave what it hung in below $work/hung. They begin once no job is being cleaned
# up: a node that is completing one takes no other, so the next job would begin on
# n1 where a test expects n0. What starts no job does not wait for that.
on_cluster()
{
	case $1 in
	squeue|scancel) bounded run --dir "$cluster" -- "$@" ;;
	*) bounded run --dir "$cluster" -- sh -c "$settled" settled "$@" ;;
	esac
}
as_user() { bounded run --dir "$cluster" --user nobody -- sh -c "$settled" settled "$@"; }
# on_node NODE COMMAND...: as root, at once
on_node() { bounded run --dir "$cluster" --node "$1" -- "${@:2}"; }
readonly settled='i=0
	while [ -n "$(squeue -h -t CG -o %i)" ] && [ $i -lt 200 ]; do sleep 0.1; i=$((i + 1)); done
	exec "$@"'

# bounded ARGUMENT...: of slurm/cluster, in a process group of its own
bounded()
{
	local seconds command watcher='' state=0 over=$BASHPID.over
	seconds=$(stretched "${limit:-60}")
	setsid "$source/slurm/cluster" "$@" &
	command=$!
	# One that a test started in the background ends with its subshell.
	[ $BASHPID = $$ ] || trap 'kill $watcher; kill -TERM -- -$command; exit 143' TERM
	(
		sleep "$seconds"
		kill -0 $command || exit
		: >"$work/$over"
		keep_hung "$*"
		kill -TERM -- -$command
		sleep 5
		kill -KILL -- -$command
	) >/dev/null 2>&1 &
	watcher=$!
	wait $command || state=$?
	kill $watcher 2>/dev/null
	[ ! -e "$work/$over" ] || { rm -f "$work/$over"; state=124; }
	return $state
}

# keep_hung COMMAND: what the cluster's programs wait for
keep_hung()
{
	local folder
	[ -e "${cluster:-}/up" ] && mkdir -p "$work/hung" && folder=$(mktemp -d "$work/hung/XXXX") || return 0
	echo "$1" >"$folder/command"
	timeout -k 5 120 "$source/slurm/cluster" run --dir "$cluster" -- \
		bash -s "$folder" <"$source/tests/cluster/hung" >"$folder/log" 2>&1
}
# The test's own time is up.
trap 'keep_hung "the whole test"; exit 124' TERM

# batch_job ARGUMENT...: of sbatch, as an ordinary user, until the job has ended, and
# with its exit status: the highest one of several tasks or components, 1 for a
# signal. sbatch --wait would look after 2, 6, 12, 20 and more seconds only.
batch_job() { as_user sh -c "$until_ended" batch_job "$@"; }
readonly until_ended='job=$(sbatch --parsable "$@") || exit
	job=${job%%;*}
	until left=$(squeue -h -j "$job" -o %i) && [ -z "$left" ]; do sleep 0.4; done
	code=$(scontrol -o show job "$job" | sed -n "s/.* ExitCode=\([0-9]*\):\([0-9]*\) .*/\1 \2/p" |
		awk "{ code = \$2 ? 1 : \$1; if (code > worst) worst = code } END { print NR ? worst + 0 : 1 }")
	exit "$code"'

# submit SCRIPT [SBATCH-OPTION...] [-- ARGUMENT...]: a script of slurm/batch, until
# its end, with a copy that any user can read, and a home; the job's output, and what sbatch
# says, are in $output.
submit()
{
	local script=$1 options=()
	shift
	while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
	install -m 755 "$source/slurm/batch/$script.sh" "$work/$script.sh"
	capture as_user env HOME="$work" sh -c "$until_ended" submit --chdir="$work" --output="$work/$script-%j.out" \
		--cpus-per-task=1 "${options[@]}" "$work/$script.sh" "${@:2}"
	output+=$'\n'$(cat "$work/$script"-*.out)
}

# runs_again JOB FILE LINE: releases a job that was requeued, which SLURM holds back
# for two minutes, until its output in FILE has a line that begins with LINE.
runs_again()
{
	wait_until 60 is_pending "$1" || return 1
	# In the second of its end, slurmd takes its new credential for a revoked one.
	sleep 1.1
	wait_until 60 releases "$@"
}
is_pending() { [ "$(on_cluster squeue -h -j "$1" -o %T)" = PENDING ]; }
releases()
{
	! grep -q "^$3" "$2" || return 0
	on_cluster scontrol update JobId="$1" StartTime=now
	return 1
}

# make_together: the program $work/together NAME COUNT, by which tasks wait until
# COUNT of them, of any steps of one folder, have called it with NAME
make_together()
{
	cat >"$work/together" <<-'END'
	#!/bin/sh
	name=$1 count=$2
	: >"$name.$SLURM_STEP_ID.$SLURM_PROCID"
	until set -- "$name".* && [ $# -ge "$count" ]; do sleep 0.05; done
	END
	chmod 755 "$work/together"
}

# make_hold: with the words of $held before it, a training waits before it writes the checkpoint of step N while there is a
# file $work/hold/hold-N
make_hold()
{
	# shellcheck disable=SC2034 # for the tests
	held=(env LD_PRELOAD="$work/hold.so" HOLD="$work/hold")
	mkdir "$work/hold"
	gcc -D_GNU_SOURCE -shared -fPIC "$source/tests/cluster/hold_checkpoint.c" -o "$work/hold.so" || not_ok "gcc makes hold.so"
}

# requests: how often the controller was asked to signal a step, so far
requests() { on_cluster sdiag | awk '$1 == "REQUEST_CANCEL_JOB_STEP" { sub(/.*count:/, ""); found = $1 } END { print found + 0 }'; }

# has_pmix: Slurm has its plugin, which Debian testing's lacks, and libddp is built with it
has_pmix()
{
	grep -qs '^#define HAVE_PMIX 1' "$build/config.h" && [[ $(on_cluster srun --mpi=list 2>&1) == *pmix* ]]
}

# plugin_of_release INCLUDE FILE: the plugin as Slurm's headers in INCLUDE make it. Files that do not look at the release
# are compiled already.
plugin_of_release()
{
	local files sources=() objects=() file object
	mapfile -t files < <(sed -n '/^spank_spank_ddp_la_SOURCES/,/[^\]$/p' "$source/spank/files.mk" | grep -o 'spank/[a-z0-9_/]*\.c')
	for file in "${files[@]}"; do
		object=$build/${file%/*}/.libs/spank_ddp_la-$(basename "$file" .c).o
		if grep -q 'SLURM_VERSION\|SPANK_PLUGIN' "$source/$file"; then
			sources+=("$source/$file")
		elif [ -e "$object" ]; then
			objects+=("$object")
		else
			echo "$object is missing: build spank/spank_ddp.la first"
			return 1
		fi
	done
	gcc -std=gnu11 -shared -fPIC -fvisibility=hidden -include "$build/config.h" -I"$1" -I"$source/libruntime/include" \
		-I"$source/libruntime" -I"$source" "${sources[@]}" "${objects[@]}" "$build/spank/.libs/libspankcore.a" \
		-Wl,-z,nodelete -Wl,--version-script="$source/spank/spank_ddp.map" -o "$2"
}

# wait_until SECONDS COMMAND...: until it succeeds; fails when time is up. A look at the cluster starts nine programs,
# which other tests wait for, so that looking takes a quarter of the time at most.
wait_until()
{
	local deadline=$((SECONDS + $(stretched "$1"))) looked_us rest_ms
	shift
	while looked_us=${EPOCHREALTIME//[.,]/}; ! "$@" >/dev/null 2>&1; do
		((SECONDS < deadline)) || return 1
		rest_ms=$(((${EPOCHREALTIME//[.,]/} - looked_us) * 3 / 1000))
		((rest_ms > 100)) || rest_ms=100
		((rest_ms < 500)) || rest_ms=500
		sleep "0.$rest_ms"
	done
}

# ---- time ------------------------------------------------------------------------

# Limits of time are given for an idle machine of two cores, which needs 300 ms
# for a plain step on all nodes. Where such a step takes longer, by the machine or
# by what else runs there, limits grow as much.
readonly idle_ms=300

# measure: puts into a file how long a plain step takes now, in ms
measure()
{
	local nodes start_us=${EPOCHREALTIME//[.,]/}
	nodes=$(sed -n 's/^nodes=//p' "$cluster/settings")
	timeout 300 "$source/slurm/cluster" run --dir "$cluster" -- sh -c "$settled" settled \
		srun -N"$nodes" true >/dev/null 2>&1 || return 1
	echo $(((${EPOCHREALTIME//[.,]/} - start_us) / 1000)) >"$cluster/work/plain_step.$BASHPID" &&
		mv "$cluster/work/plain_step.$BASHPID" "$cluster/work/plain_step"
}
# stretched AMOUNT: of any unit of time, as much longer as the plain step was
stretched()
{
	local plain=0
	if [ -e "${cluster:-}/up" ]; then
		[ -s "$cluster/work/plain_step" ] || measure
		read -r plain 2>/dev/null <"$cluster/work/plain_step"
	fi
	if [ "${plain:-0}" -le $idle_ms ]; then echo "$1"; else echo $(($1 * plain / idle_ms)); fi
}
# is_within MS BOUND: the machine may have become busy since it was measured, so
# what took too long is held against a new measurement.
is_within()
{
	[ "$1" -lt "$(stretched "$2")" ] || { measure && [ "$1" -lt "$(stretched "$2")" ]; }
}

# For sh -c: answered FILE NODES waits until srun -vvvv, which writes to FILE, has heard that the
# tasks of so many nodes run, and has answered: it looks for the next message then. A
# slurmstepd without its answer asks again for up to a minute, and does not look after its tasks.
# shellcheck disable=SC2034 # tests put it into their commands
answered='answered() {
	until awk -v nodes="$2" "/tasks started/ { heard++; looks = 0 }
			/eio_message_socket_readable/ { looks = 1 }
			END { exit !(heard == nodes && looks) }" "$1"; do sleep 0.02; done
}; '

# ---- saying what should be -------------------------------------------------------

# check NAME COMMAND...: passes if the command succeeds
check()
{
	local name=$1
	shift
	capture "$@"
	if [ "$status" = 0 ]; then ok "$name"; else not_ok "$name" "status $status of: $*"; fi
}

# On what capture got. status_is STATUS NAME; status_is_not STATUS NAME.
status_is()
{
	if [ "$status" = "$1" ]; then ok "$2"; else not_ok "$2" "status $status, not $1"; fi
}
status_is_not()
{
	if [ "$status" != "$1" ]; then ok "$2"; else not_ok "$2" "status $status"; fi
}
# fails_without_hanging NAME: the command ended by itself, with an error
fails_without_hanging()
{
	if [ "$status" = 0 ]; then not_ok "$1" "it succeeded"
	elif [ "$status" = 124 ]; then not_ok "$1" "it had to be ended after $took s"
	else ok "$1"; fi
}
# prints REGEX NAME: a line of the output matches (grep -E)
prints()
{
	if grep -qE -- "$1" <<<"$output"; then ok "$2"; else not_ok "$2" "no line matches: $1"; fi
}
prints_not()
{
	if grep -qE -- "$1" <<<"$output"; then not_ok "$2" "a line matches: $1"; else ok "$2"; fi
}
# prints_times COUNT REGEX NAME
prints_times()
{
	local count
	count=$(grep -cE -- "$2" <<<"$output")
	if [ "$count" = "$1" ]; then ok "$3"; else not_ok "$3" "$count lines, not $1, match: $2"; fi
}
# same WANTED GOT NAME
same()
{
	if [ "$1" = "$2" ]; then ok "$3"; else not_ok "$3" "wanted: $1" "got: $2"; fi
}
