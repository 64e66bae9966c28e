#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 180
# The throw-away cluster itself: starting, stopping, dying, and what is left.
. "$source/tests/cluster/lib.sh"

tool=$source/slurm/cluster
one=/run/slurm-ddp/life-$$-a
two=/run/slurm-ddp/life-$$-b
trap '"$tool" stop --dir $one >/dev/null 2>&1; "$tool" stop --dir $two >/dev/null 2>&1' EXIT

# What a cluster could leave on this machine.
remains()
{
	local dir commands=(/proc/[0-9]*/cmdline)
	for dir; do
		[ ! -e "$dir" ] || echo "folder $dir"
		grep -F "$dir" /proc/mounts
		# Whatever serves the cluster has its folder among its arguments.
		grep -lsF --file=- "${commands[@]}" <<<"$dir"
	done
	ip -o link | grep -E ': (ddp0|n[0-9]+)[:@]'
}
leaves_nothing()
{
	local left end=$((SECONDS + deadline))
	output=''
	until left=$(remains $one $two); [ -z "$left" ] || ((SECONDS >= end)); do sleep 0.1; done
	if [ -z "$left" ]; then ok "$1"; else not_ok "$1" "$left"; fi
}

for number in 08 010 00 1e1 ''; do
	capture "$tool" start --dir $one --nodes "$number" --no-plugin
	status_is 2 "--nodes '$number' is refused"
	prints "^slurm/cluster: --nodes takes a number from 1 to 64, .*not '$number'" "which says what it takes"
done

# A folder of another user's that looks like a cluster's, and names a process of root's.
fake=$(mktemp -d -u /tmp/ddp-XXXXXX)
sleep 1000 &
victim=$!
for owner in nobody root; do
	mkdir "$fake" && ln -s "throw-away cluster of slurm-ddp in $fake" "$fake/mark"
	read -r stat </proc/$victim/stat
	# shellcheck disable=SC2086 # fields are wanted
	set -- ${stat##*) }
	echo "$victim ${20}" >"$fake/pid"
	printf 'touch %q\n' "$fake/ran" >"$fake/settings"
	if [ $owner = root ]; then chmod 777 "$fake"; else chown -R $owner "$fake"; fi
	for command in stop status start run; do
		words=()
		[ $command != run ] || words=(true)
		capture "$tool" $command --dir "$fake" "${words[@]}"
		status_is 1 "$command: a folder that another user may write to is refused"
		prints "$fake belongs to another user|others may write to it" "which says so"
	done
	check "no process of root's is ended" kill -0 $victim
	[ ! -e "$fake/ran" ] || not_ok "nothing in the folder is run" "$fake/ran is there"
	rm -rf "$fake"
done
kill $victim

umask 077
check "a cluster starts, whatever the umask" "$tool" start --dir $one --nodes 2 --no-plugin
# For what happens by itself: a multiple of what this machine needs to start a cluster.
deadline=$((10 + 10 * took))
namespaces=$(for node in head n0 n1; do "$tool" run --dir $one --node $node -- readlink /proc/self/ns/net; done)
capture "$tool" start --dir $one --nodes 2 --no-plugin
status_is 1 "starting it again is an error"
prints 'already running' "which says so"
check "the first one still works, for an ordinary user" "$tool" run --dir $one --user nobody -- srun -N2 true
umask 022
capture "$tool" start --name second --dir $two --nodes 3 --no-plugin
status_is 0 "a second one starts beside it"
prints '^cluster second: ' "by the name that it was given"
capture "$tool" run --dir $two -- scontrol show config
prints 'ClusterName += second$' "which Slurm knows, too"
capture "$tool" run --dir $two -- srun -N3 hostname
prints_times 3 '^n[012]$' "the second one has three nodes"
check "the first one still works beside it" "$tool" run --dir $one -- srun -N2 true
capture "$tool" stop --dir $two
status_is 0 "the second one stops"
check "the first one works after that" "$tool" run --dir $one -- srun -N2 true
"$tool" run --dir $one -- srun -N2 sleep 1000 &
cluster=$one
wait_until $deadline sh -c '"$0" run --dir "$1" -- squeue -h -t R -o %i | grep -q .' "$tool" $one
check "it stops although a job runs" "$tool" stop --dir $one
wait $!
same 3 "$(wc -l <<<"$namespaces")" "head and nodes had a network namespace each"
same '' "$(readlink /proc/[0-9]*/ns/net | grep -xF "$namespaces")" "no process is left in them"
leaves_nothing "nothing is left after stop"
capture "$tool" stop --dir $one
status_is 3 "stopping what does not run says so by its status"
capture "$tool" run --dir $one -- true
status_is 3 "and so does running something on it"

# The tool killed while it starts the cluster, as soon as this or that is there.
# ended_at SIGNAL FILE
ended_at()
{
	"$tool" start --dir $one --nodes 2 --no-plugin >"$work/start" 2>&1 &
	starting=$!
	until [ -e "$2" ] || [ -L "$2" ] || ! kill -0 $starting 2>/dev/null; do :; done
	kill "-$1" $starting
	wait $starting 2>/dev/null
	status=$?
	output=$(cat "$work/start")
}
for moment in '' /mark /settings /pid /head.pid /n1.pid; do
	ended_at KILL $one$moment
	"$tool" stop --dir $one >/dev/null 2>&1
	leaves_nothing "nothing is left after kill -9 of start at FOLDER$moment, and stop"
done
for moment in '' /mark /settings /log /pid /head.pid /n1.pid; do
	ended_at TERM $one$moment
	status_is 143 "start ends by SIGTERM at FOLDER$moment"
	leaves_nothing "and cleans up"
done
# The cluster's first process outlives the one above it, as if that had died before the first one asked to be killed then.
# This cluster does not come up.
mkdir "$work/bin"
printf '#!/bin/bash\nexec %q "${@/#--kill-child/--fork}"\n' "$(command -v unshare)" >"$work/bin/unshare"
printf '#!/bin/sh\nexec sleep 1000\n' >"$work/bin/slurmctld"
chmod 755 "$work/bin"/*
PATH=$work/bin:$PATH ended_at TERM $one/head.pid
status_is 143 "start ends by SIGTERM although nothing ends the cluster's first process with the one above"
leaves_nothing "and cleans up"
# Somebody still makes files there while it is removed.
(until [ -d $one/log ]; do :; done; for ((i = 0; i < 8000; i++)); do : >$one/log/$i || exit; done) 2>/dev/null &
filling=$!
PATH=$work/bin:$PATH ended_at TERM $one/log/100
kill $filling 2>/dev/null
wait $filling 2>/dev/null
status_is 143 "start ends by SIGTERM although its folder fills"
leaves_nothing "and cleans up"

# The folder of clusters vanishes when the last one does, though another start
# waits for it.
mkdir $two && exec 7<$two && flock 7
"$tool" start --dir $two/c --nodes 1 --no-plugin >"$work/start.log" 2>&1 7<&- &
starting=$!
wait_until $deadline pgrep -P $starting -x flock
rmdir $two
exec 7<&-
wait $starting
status=$? output=$(<"$work/start.log")
status_is 0 "a start outlives the end of the cluster that it waited for"
"$tool" stop --dir $two/c >/dev/null
rmdir $two
leaves_nothing "and stops"

# Its first process killed.
"$tool" start --dir $one --nodes 2 --no-plugin >/dev/null
kill -KILL "$(cut -d' ' -f1 $one/pid)"
wait_until $deadline sh -c '! "$0" status --dir "$1"' "$tool" $one
capture "$tool" status --dir $one
status_is 3 "a cluster whose first process was killed does not run"
check "it can be started again" "$tool" start --dir $one --nodes 2 --no-plugin
check "and works" "$tool" run --dir $one -- srun -N2 true
"$tool" stop --dir $one >/dev/null
leaves_nothing "nothing is left after that"

# For the time of another process.
sleep 1000 &
owner=$!
"$tool" start --dir $one --nodes 1 --no-plugin --for $owner >/dev/null
kill $owner
if wait_until $deadline sh -c '! "$0" status --dir "$1"' "$tool" $one; then
	ok "a cluster started --for a process ends with it"
else
	not_ok "a cluster started --for a process ends with it"
fi
leaves_nothing "nothing is left then, without stop"

# A deadline on the caller's side.
"$tool" start --dir $one --no-plugin >/dev/null
capture timeout 3 "$tool" run --dir $one --user nobody -- srun -N2 sleep 1000
status_is 124 "a command can be given a deadline"
if wait_until $deadline sh -c 'jobs=$("$0" run --dir "$1" -- squeue -h) && test -z "$jobs"' "$tool" $one; then
	ok "its job ends then"
else
	not_ok "its job ends then"
fi
"$tool" stop --dir $one >/dev/null

# What goes wrong is said.
capture "$tool" start --dir $one --no-plugin --conf 'SelectType=select/nonsense'
status_is 1 "a cluster whose daemons end does not start"
prints '(slurmctld|slurmd of n0) ended' "which daemon ended is said"
prints 'nonsense' "the end of its log is shown"
leaves_nothing "nothing is left of it"
capture "$tool" start --dir $one --plugin /nowhere.so
status_is 1 "a plugin that is not there is an error"
prints "/nowhere.so" "which names it"
capture "$tool" start --dir $one --nodes many
status_is 2 "a number that is none is a wrong usage"
prints "--nodes" "which names the option"
mkdir "$work/mine" && touch "$work/mine/file"
capture "$tool" start --dir "$work/mine" --no-plugin
status_is_not 0 "a folder of somebody's is refused"
check "and left as it was" test -e "$work/mine/file"
# Short paths, which a cluster could have.
mkdir -p "$two" && touch "$two/settings" "$two/pid"
for command in 'start --no-plugin' stop; do
	# shellcheck disable=SC2086 # a command and its option
	capture "$tool" $command --dir "$two"
	status_is 1 "${command% *}: a folder that has but a file of the name is refused"
	prints "$two is not a cluster's folder" "which says so"
done
ln -s "throw-away cluster of slurm-ddp in $one" "$two/mark"
capture "$tool" stop --dir "$two"
status_is 1 "and a copy of a cluster's folder"
check "both stay as they were" test -e "$two/settings"
rm -r "$two"

done_testing
