#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# cluster: --conf KillOnBadExit=1 --conf WaitTime=1
# seconds: 240
# The end of a step: who failed first, once, and the rest ended in time.
. "$source/tests/cluster/lib.sh"

# timed COMMAND...: as capture, and $took is how long it ran, in ms, from the
# moment that a rank wrote to $work/failed_at
timed()
{
	rm -rf "$work/failed_at" "$work/up"
	mkdir -m 1777 "$work/up"
	capture "$@"
	took=$((($(date +%s%N) - $(cat "$work/failed_at" 2>/dev/null || echo 0)) / 1000000))
}
# within MS NAME: of an idle machine's time
within()
{
	if is_within "$took" "$1"; then ok "$2"; else not_ok "$2" "it took $took ms"; fi
}
# What a rank does before it fails: it waits until all of its step run.
cat >"$work/together" <<END
: >$work/up/\$RANK
until set -- $work/up/* && [ \$# -ge \$WORLD_SIZE ]; do sleep 0.05; done
END
chmod 644 "$work/together"
together=". $work/together;"
# How a rank notes the time of its failure.
now="date +%s%N >$work/failed_at;"
report='ddp: rank [0-9]+ of [0-9]+ on n[0-9] (exited|was killed)'

timed as_user srun --ddp -N2 --ntasks-per-node=2 \
	sh -c "$together"'if [ $RANK = 3 ]; then '"$now"' exit 7; fi; sleep 60'
status_is 7 "a rank that exits with 7 fails the step, with its code"
within 2000 "the step ends within 2 s of it"
prints 'ddp: rank 3 of 4 on n[0-9] exited with code 7 after [0-9.]+ s$' "the report names rank, node, code and time"
prints_times 1 "$report" "once"

timed as_user srun --ddp -N3 --ntasks-per-node=2 \
	sh -c "$together"'if [ $RANK = 2 ]; then '"$now"' kill -9 $$; fi; sleep 60'
within 2000 "a rank killed among others ends the step"
prints 'ddp: rank 2 of 6 on n1 was killed by signal 9 \(SIGKILL\)' "and is named with its signal"
status_is 137 "which is srun's code"
prints_times 1 "$report" "once"

timed as_user srun --ddp -N3 --ntasks-per-node=1 \
	sh -c "$together"'if [ $RANK = 2 ]; then '"$now"' kill -9 $$; fi; sleep 60'
within 2000 "a rank killed alone on its node ends the step"
prints 'ddp: rank 2 of 3 on n2 was killed by signal 9 \(SIGKILL\)' "and is named with its signal"
prints_times 1 "$report" "once"

printf 'n0\nn0\nn0\nn1\nn2\nn2\n' >"$work/hosts"
timed as_user env SLURM_HOSTFILE="$work/hosts" srun --ddp -n6 -m arbitrary \
	sh -c "$together"'if [ $RANK = 2 ]; then '"$now"' exit 9; fi; exec sleep 60'
within 2000 "uneven nodes: the step ends"
prints_times 1 "$report" "with one report, although a node lost its only task to it"

timed as_user srun --ddp -N2 --ntasks-per-node=2 \
	sh -c 'ulimit -c 0; '"$together"'if [ $RANK = 0 ]; then '"$now"' kill -SEGV $$; fi; sleep 60'
within 2000 "a crash of rank 0 ends the step"
prints 'ddp: rank 0 of 4 on n[0-9] was killed by signal 11 \(SIGSEGV\)' "and is named"
status_is 139 "with its signal in srun's code"

timed as_user srun --ddp -N2 --ntasks-per-node=2 \
	sh -c 'trap "" TERM INT; '"$together"'if [ $RANK = 1 ]; then '"$now"' exit 3; fi; while :; do sleep 1; done'
within 2000 "ranks that ignore signals are ended, too"

# In a heterogeneous job each component is a job and a step of its own. srun and
# the controller wait up to a second for the others to end.
for failing in 1 3; do
	timed as_user srun --ddp \
		-N1 -n2 sh -c "$together if [ \$RANK = $failing ]; then $now exit 7; fi; sleep 60" : \
		-N2 -n2 sh -c "$together if [ \$RANK = $failing ]; then $now exit 7; fi; sleep 60"
	within 2000 "a failure in component $((failing / 2)) of a heterogeneous step ends them all"
	prints "ddp: rank $failing of 4 on n$((failing - 1)) exited with code 7" "and is named"
	prints_times 1 "$report" "once"
done
# srun starts the components in threads, and tells the plugin of the first one.
if gcc -D_GNU_SOURCE -shared -fPIC "$source/tests/cluster/late_threads.c" -o "$work/late_threads.so"; then
	timed as_user env LD_PRELOAD="$work/late_threads.so" srun --ddp -N1 -n2 sh -c "$together sleep 60" : \
		-N2 -n2 sh -c "$together if [ \$RANK = 3 ]; then $now exit 7; fi; sleep 60"
	within 2000 "a failure ends them all whichever component starts first"
else
	not_ok "gcc makes late_threads.so"
fi
timed as_user salloc -N2 -n4 srun --ddp -N1 -n2 sh -c "$together sleep 60" : \
	-N1 -n1 sh -c "$together $now exit 7"
within 2000 "so does one of a step of several commands in a plain job"
# A step of one component alone leaves the other's alone.
cat >"$work/alone" <<'END'
#!/bin/bash
#SBATCH --ddp -N1 -n2
#SBATCH hetjob
#SBATCH -N1 -n2
srun --het-group=0 --ddp=off sh -c ': >up$SLURM_PROCID; until [ -e code ]; do sleep 0.1; done; echo whole' >whole &
until [ -e up0 ] && [ -e up1 ]; do sleep 0.1; done
srun --het-group=1 sh -c 'exit 3'
status=$?
# For as long as a wrong end of the other component may take to come.
sleep 1
echo "code $status" >code
wait
END
mkdir -m 777 "$work/batch"
chmod 755 "$work/alone"
capture batch_job -D "$work/batch" -o out "$work/alone"
output=$(cat "$work"/batch/*)
prints '^code 3$' "a step of one component fails"
prints_times 2 '^whole$' "and the other component's step goes on"

timed as_user srun --ddp -N3 --ntasks-per-node=2 true
status_is 0 "a step without a failure succeeds"
prints_not 'ddp:' "and nothing is said"

# cancelled TASKS_PER_NODE: once all tasks of three nodes run
cancelled()
{
	timed as_user sh -c 'srun --ddp -N3 --ntasks-per-node=$2 sh -c ". $0; exec sleep 60" &
		until [ "$(ls "$1" | wc -l)" = $((3 * $2)) ]; do sleep 0.05; done; scancel --user 65534; wait' \
		"$work/together" "$work/up" "$1"
}
cancelled 2
prints_not "$report" "a cancelled step is not reported as a failure"
cancelled 1
prints_not "$report" "nor with one task to a node"

# Once for the step: all nodes see a failure in the same moment, and srun says one.
# at_once COMMAND TASKS_PER_NODE: what each rank does as soon as all run
at_once() { timed as_user srun --ddp -N3 --ntasks-per-node="$2" sh -c "$together$1"; }
lines=''
for end in 'exit 3 2' 'exit 3 1' 'kill -9 $$ 1'; do
	at_once "${end% *}" "${end##* }"
	lines+=$(grep -cE "$report" <<<"$output")
done
same 111 "$lines" "three nodes that fail at once give one report, three times"
at_once 'trap "" TERM; [ $RANK != 2 ] || exit 5; sleep 60' 1
prints_times 1 "$report" "a node's only task that ignores SIGTERM adds none"
prints 'ddp: rank 2 of 3 on n2 exited with code 5' "to the one that failed"
capture as_user srun --ddp=launcher -N3 --ntasks-per-node=2 true
prints_times 1 'ddp: launcher is for one torchrun per node' "what is wrong with all tasks is said once"

# They learn of it, by a lock that is given back, 40 ms after it.
timed as_user srun --ddp -N3 --ntasks-per-node=2 \
	sh -c 'if [ $RANK = 1 ]; then exec 9>'"$work/alive"'; flock 9; fi; '"$together"'
		if [ $RANK = 1 ]; then '"$now"' kill -9 $$; fi
		flock '"$work/alive"' sleep 0; sleep 0.04; exit 1'
prints 'ddp: rank 1 of 6 on n0 was killed by signal 9' "a killed rank is named before those that it takes with it"
prints_times 1 "$report" "also where they leave nobody on its node"

# An srun that is kept from running answers nobody, until n1's log has the line. Each
# slurmstepd tells it first that its tasks have started, and waits for its answer.
spoken() { grep -c 'ddp: rank 1 of 2 on n1 exited with code 7' "$cluster/log/n1.slurmd.log"; }
before=$(spoken)
says_more() { [ "$(spoken)" -gt "$before" ]; }
(wait_until 40 says_more; : >"$work/spoken") &
timed as_user sh -c "$answered"'cd "$0"
	srun -vvvv --ddp -N2 --ntasks-per-node=1 sh -c ". ./together; until [ -e stopped ]; do sleep 0.02; done; [ \$RANK != 1 ] || exit 7; exec sleep 60" 2>told &
	answered told 2
	kill -STOP $!; : >stopped; until [ -e spoken ]; do sleep 0.05; done; kill -CONT $!; wait; cat told' "$work"
wait
prints '^(slurmstepd[^ ]*:|\[[-0-9T:.]+\]) error: ddp: rank 1 of 2 on n[0-9] exited with code 7' "the node speaks if srun does not answer"
prints_times 1 "$report" "and srun does not repeat it"

# Such a node of a heterogeneous step ends all components, by one request.
rm -f "$work/stopped" "$work/spoken" "$work/told"
gone() { [ -e "$work/stopped" ] && ! on_node n0 pgrep -fx 'sleep 6161' >/dev/null; }
(wait_until 40 gone && : >"$work/gone"; : >"$work/spoken") &
timed as_user sh -c "$answered"'cd "$0"
	srun -vvvv --ddp -N1 -n1 sh -c ". ./together; exec sleep 6161" : \
		-N1 -n1 sh -c ". ./together; until [ -e stopped ]; do sleep 0.02; done; exit 7" 2>told &
	answered told 2
	kill -STOP $!; : >stopped; until [ -e spoken ]; do sleep 0.05; done; kill -CONT $!; wait; cat told' "$work"
wait
check "a node of one component ends the other, too, if srun does not answer" test -e "$work/gone"

# A site that lets srun have some ports only. The user's listeners on the head:
{ cat "$cluster/slurm.conf"; echo "SrunPortRange=61100-61199"; } >"$work/slurm.conf"
cat >"$work/listeners" <<'END'
rm -f "$0.on" "$0.read"
srun $1 -N1 -n1 sh -c "touch $0.on; until [ -e $0.read ]; do sleep 0.05; done" &
until [ -e "$0.on" ]; do sleep 0.05; done
awk -v uid="$(id -u)" '$4 == "0A" && $8 == uid { sub(/.*:/, "", $2); print "0x" $2 }' /proc/net/tcp /proc/net/tcp6 |
	while read -r port; do echo "port $((port))"; done
touch "$0.read"
wait
END
capture as_user env SLURM_CONF="$work/slurm.conf" bash "$work/listeners"
ports=$(grep -c '^port' <<<"$output")
capture as_user env SLURM_CONF="$work/slurm.conf" bash "$work/listeners" --ddp
prints_times $((ports + 1)) '^port 611[0-9][0-9]$' "srun listens on one port more, in SrunPortRange"
prints_times $((ports + 1)) '^port' "and nowhere else"

# The progress page: what the rank was doing when it died.
cat >"$work/page.py" <<'END'
import mmap, os, struct, time
fd = int(os.environ["DDP_PROGRESS_FD"])
rank = int(os.environ["LOCAL_RANK"])
page = mmap.mmap(fd, 4096, offset=4096 * rank)
status = int(os.environ.get("PAGE_STATUS", 0))
body = struct.pack("<IIqQiiQ64s256sI", 0x31706464, 3, 12, time.monotonic_ns(), 2, 9, 45,
                   b"all_reduce f32[262144] sum", b"an \x1b[31merror", status)
page[:len(body)] = body
open(os.environ["UP"] + "/" + os.environ["RANK"], "w").close()
while len(os.listdir(os.environ["UP"])) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.02)
os.kill(os.getpid(), 11) if os.environ["RANK"] == "1" else time.sleep(60)
END
chmod 644 "$work/page.py"
timed as_user env UP="$work/up" srun --ddp -N1 -n2 /usr/bin/python3 "$work/page.py"
prints 'ddp: rank 1 of 2 on n[0-9] was killed by signal 11 \(SIGSEGV\) after [0-9.]+ s, in backward of step 12 for [0-9.]+ s, bucket 3 of 9, collective #45 all_reduce f32\[262144\] sum: an \?\[31merror$' \
	"the report says what the rank was doing, in printable bytes"

# Ranks that gave up because of another (DDP_ERR_PEER is 9) do not bury it.
cat >"$work/peers.sh" <<END
[ \$RANK = 1 ] || PAGE_STATUS=9 exec /usr/bin/python3 "\$0.py"
$together $now exit 7
END
# They learn of it a tenth of a second after it.
sed '/^os.kill/d' "$work/page.py" >"$work/peers.sh.py"
cat >>"$work/peers.sh.py" <<END
while not os.path.exists("$work/failed_at"):
    time.sleep(0.02)
time.sleep(0.1)
os._exit(1)
END
chmod 644 "$work"/peers.sh*
timed as_user env UP="$work/up" srun --ddp -N3 --ntasks-per-node=1 sh "$work/peers.sh"
prints 'ddp: rank 1 of 3 on n1 exited with code 7' "a rank that fails is named before those that follow"
prints_not 'ddp: rank [02] ' "and of those that follow, none is"

capture as_user srun --ddp -N1 -n1 sh -c 'truncate -s 0 /proc/self/fd/$DDP_PROGRESS_FD; exit 5'
prints 'rank 0 of 1 on n[0-9] exited with code 5' "a task that tampers with the page changes nothing"

# A node that Slurm takes for down. It is idle again as soon as its slurmd answers.
down='until [ "$(ls up | wc -l)" = 3 ]; do sleep 0.05; done; : >fail'
fails_n1() { wait_until 30 test -e "$work/fail" && on_node n0 scontrol update nodename=n1 state=down reason=test; }
for keeps in '' --no-kill; do
	rm -f "$work/fail" "$work/told"
	fails_n1 &
	# A step that goes on does so until srun has told of the node.
	timed as_user sh -c 'cd "$0"; srun $1 --ddp -N3 --ntasks-per-node=1 sh -c ". ./together
		until grep -qs ddp: told; do sleep 0.05; done; echo whole" >told 2>&1 & '"$down"'; wait $!; cat told' "$work" "$keeps"
	wait
	if [ -n "$keeps" ]; then
		prints 'ddp: node n1 has failed, says SLURM: rank 1 of 3 on n1 was killed by signal 9 .*; the step goes on \(--no-kill\)$' \
			"--no-kill: a node that fails is named as that"
		prints_times 2 '^whole$' "and the step goes on"
	else
		prints 'ddp: (node n1|a node of the job) has failed, and SLURM has ended the job for it$' "a node that fails is told as that"
	fi
	prints_times 1 'ddp:' "in one line"
	wait_until 30 sh -c '! "$0" run --dir "$1" -- sinfo -hN -o %T | grep -v idle' "$source/slurm/cluster" "$cluster" ||
		on_cluster scontrol update nodename=n1 state=idle
done

# The controller is told once the step is over.
if wait_until 20 sh -c 'test -z "$("$0" run --dir "$1" -- squeue -h)"' "$source/slurm/cluster" "$cluster"
then ok "no job is left behind"; else output=$(on_cluster squeue); not_ok "no job is left behind"; fi
capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
