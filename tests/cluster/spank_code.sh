#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# seconds: 200
# srun's status is the first failed rank's, and a step is ended once: the controller
# gets one request or two, however many nodes the step has.
. "$source/tests/cluster/lib.sh"

fail_with() { capture as_user srun --ddp -N2 --ntasks-per-node=2 "$@"; }
fails='ulimit -c 0; if [ $RANK = 2 ]; then sleep 0.3; '

fail_with sh -c "$fails exit 1; fi; exec sleep 60"
status_is 1 "a rank exits with 1, such as an exception of Python: srun exits with 1"
fail_with sh -c 'trap "exit 9" TERM; [ $RANK != 2 ] || exit 4; sleep 60'
status_is 4 "another one's higher code does not hide it"
fail_with true
status_is 0 "a step that succeeds is none the worse"
# The others go on until srun has said it.
capture as_user sh -c 'cd "$0"
	srun --ddp=on-failure=continue -N2 --ntasks-per-node=2 sh -c "[ \$RANK != 1 ] || exit 2
		until grep -q ddp: told; do sleep 0.05; done; exit \$RANK" 2>told' "$work"
status_is 2 "on-failure=continue: the first code, too"
capture as_user srun -N2 --ntasks-per-node=2 sh -c 'exit $SLURM_PROCID'
status_is 3 "without --ddp it is Slurm's, the highest"
capture as_user srun --ddp -N1 -n1 sh -c 'sleep 60' : -N1 -n1 sh -c 'sleep 0.3; exit 5'
status_is 5 "a step of several components: the first code"

cat >"$work/batch" <<'END'
#!/bin/bash
#SBATCH --ddp -N2 --ntasks-per-node=2
srun sh -c 'if [ $RANK = 3 ]; then sleep 0.3; exit 6; fi; exec sleep 60'
echo "code $?"
END
chmod 755 "$work/batch"
mkdir -m 777 "$work/out"
capture batch_job -D "$work/out" -o out "$work/batch"
output=$(cat "$work/out/out")
prints '^code 6$' "and in a batch script"

# The user's own word on it.
went_on='if [ $RANK = 1 ]; then exit 3; fi; sleep 1; echo done'
capture as_user srun -K0 --ddp -N2 --ntasks-per-node=2 sh -c "$went_on"
prints_times 3 '^done$' "-K0 lets the others go on"
prints_times 1 'ddp: rank 1 of 4' "after the report"
capture as_user env SLURM_KILL_BAD_EXIT=0 srun --ddp -N2 --ntasks-per-node=2 sh -c "$went_on"
prints_times 3 '^done$' "so does SLURM_KILL_BAD_EXIT=0"
ended='if [ $RANK = 1 ]; then exit 3; fi; sleep 30 && echo done'
capture as_user srun -K0 --ddp=on-failure=kill -N2 --ntasks-per-node=2 sh -c "$ended"
prints_not '^done$' "on-failure=kill counts more"
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c "$ended" -K0
prints_not '^done$' "and a program's own -K0 counts nothing"

# Slurm's own ways to end a step, by the user's word and by the site's: the plugin's is
# the only one. srun alone reads KillOnBadExit and WaitTime.
{ cat "$cluster/slurm.conf"; echo KillOnBadExit=1; echo WaitTime=1; } >"$work/ends.conf"
site=(env SLURM_CONF="$work/ends.conf" srun)
fails_as_1='if [ $RANK = 1 ]; then sleep 0.3; exit 7; fi; exec sleep 60'
# named NAME: rank 1 is named, once, and its code is srun's
named() { same "7 1" "$status $(grep -cE 'ddp: rank 1 of [234] on n[01] exited with code 7' <<<"$output")" "$1"; }
for ends in 'srun -K1' 'env SLURM_KILL_BAD_EXIT=1 srun' "${site[*]}"; do
	read -ra words <<<"$ends"
	capture as_user "${words[@]}" --ddp -N2 --ntasks-per-node=2 sh -c "$fails_as_1"
	named "${ends%% SLURM_CONF*}: the first failure and its code are told"
done
capture as_user "${site[@]}" --ddp -N1 -n2 sh -c "$fails_as_1"
named "by the site's KillOnBadExit, on one node, too"
capture as_user "${site[@]}" --ddp -N1 -n1 sh -c 'exec sleep 60' : -N1 -n1 sh -c "$fails_as_1"
named "and of several components"
capture as_user "${site[@]}" --ddp=launcher -N2 --ntasks-per-node=1 sh -c '[ $PET_NODE_RANK != 1 ] || { sleep 0.3; exit 7; }; exec sleep 60'
prints 'ddp: launcher on node 1 of 2 \(n1\) exited with code 7' "and of launchers"
status_is 7 "with its code"
went_on='if [ $RANK = 1 ]; then exit 3; fi; sleep 2; echo done'
for ends in 'srun -K1' "${site[*]}"; do
	read -ra words <<<"$ends"
	capture as_user "${words[@]}" --ddp=on-failure=continue -N2 --ntasks-per-node=2 sh -c "$went_on"
	prints_times 3 '^done$' "${ends%% SLURM_CONF*}: on-failure=continue counts more, and than WaitTime"
done
capture as_user "${site[@]}" -K0 --ddp -N2 --ntasks-per-node=2 sh -c "$went_on"
prints_times 3 '^done$' "and so does -K0"
capture as_user srun --wait=1 --ddp=on-failure=continue -N2 --ntasks-per-node=2 sh -c "${went_on/sleep 2/sleep 30 || exit}"
prints 'ddp: srun ends the step 1 s after its first task has ended \(--wait or SLURM_WAIT\), in spite of on-failure=continue$' \
	"a user's --wait is followed, and what it contradicts is said"
prints_not '^done$' "the step ends by it"
# A pager that does not read what a rank floods it with: rank 0 notes until when it lived. SLURM's log waits 5 s for a reader,
# and slurmstepd takes a core meanwhile.
cat >"$work/flood" <<'END'
cd "$1" || exit 1
srun --ddp -N2 --ntasks-per-node=1 sh -c '
	if [ $RANK = 1 ]; then until [ -e lived ]; do sleep 0.05; done; sleep 1; date +%s%N >failed; exit 7; fi
	(trap "" PIPE; yes) & while :; do date +%s%N >lived; sleep 0.05; done' 2>&1 | {
	until [ -e failed ]; do sleep 0.1; done; sleep 7; grep -a ddp:; }
echo "code ${PIPESTATUS[0]}"
END
rm -f "$work/lived" "$work/failed"
capture as_user bash "$work/flood" "$work"
took=$((($(cat "$work/lived" || echo 0) - $(cat "$work/failed" || echo 0)) / 1000000))
if [ -s "$work/failed" ] && is_within $took 2000; then ok "a reader that does not read holds up no step's end"
else not_ok "a reader that does not read holds up no step's end" "rank 0 lived for $took ms"; fi
prints 'ddp: rank 1 of 2 on n1 exited with code 7' "it gets the line once it reads"
prints '^code 7$' "and srun has the code"

# What mpirun starts is none of the plugin's.
cp /bin/sh "$work/orted"
capture as_user "${site[@]}" --ddp -N2 --ntasks-per-node=1 "$work/orted" -c '[ $SLURM_PROCID != 1 ] || exit 7; exec sleep 60'
prints_not 'ddp:' "of an MPI launcher's daemons nothing is said"
prints 'task 0: (Terminated|Killed)$' "and Slurm ends them as without --ddp"
# An srun that keeps its options to itself.
if gcc -D_GNU_SOURCE -shared -fPIC "$source/tests/cluster/own_options.c" -o "$work/own_options.so"; then
	capture as_user "${site[@]}" --ddp -N1 -n2 env true
	prints_not 'ddp:' "nothing is said where Slurm does not end the step"
	capture as_user env LD_PRELOAD="$work/own_options.so" "${site[@]}" --ddp -N1 -n2 true
	prints 'ddp: srun ends the step 1 s after .*WaitTime in slurm.conf.*: srun --wait=0 does; srun itself sends SIGTERM .*: srun -K0 --ddp=on-failure=kill does' \
		"where the plugin cannot override Slurm, srun says so before the step starts"
	prints_times 1 'ddp:' "once"
	capture as_user env LD_PRELOAD="$work/own_options.so" "${site[@]}" -K0 --wait=0 --ddp=on-failure=kill -N2 --ntasks-per-node=2 \
		sh -c "$fails_as_1"
	named "and what it recommends, helps"
else
	not_ok "gcc makes own_options.so"
fi

# asked_by COMMAND...: how often the controller is asked to signal a step meanwhile
asked_by()
{
	local before
	before=$(requests)
	capture "$@"
	echo $(($(requests) - before))
}
for end in 'exit 3' 'kill -9 $$'; do
	counts=''
	for nodes in 2 3 4; do
		counts+=" $(asked_by as_user srun --ddp -N$nodes --ntasks-per-node=2 \
			sh -c "if [ \$RANK = 1 ]; then sleep 0.3; $end; fi; exec sleep 60")"
	done
	# srun's own of the plugin, and one that Slurm's srun adds, if it hears of it in time.
	echo "# requests on two, three and four nodes:$counts"
	case $counts in
	' '[12]' '[12]' '[12]) ok "$end: one request or two, on two, three and four nodes" ;;
	*) not_ok "$end: one request or two, on two, three and four nodes" "requests:$counts" ;;
	esac
done

# An srun that answers nobody: the nodes ask, one after the other.
# They have 3 s to do so (ALONE_SPREAD_MS).
count=$(asked_by as_user bash -c "$answered"'cd "$0"
	srun -vvvv --ddp -N4 --ntasks-per-node=2 sh -c "until [ -e stopped ]; do sleep 0.05; done; exit 3" 2>started &
	answered started 4
	kill -STOP $!; touch stopped; sleep $1; kill -CONT $!; wait' "$work" "$(stretched 4)")
if [ "$count" -le 3 ]; then ok "nodes on their own do not all ask"; else not_ok "nodes on their own do not all ask" "$count requests"; fi

done_testing
