#!/bin/bash
# nodes: 4
# seconds: 200
# srun's status is the first failed rank's, and a step is ended once: the controller
# gets one request or two, however many nodes the step has.
. "$source/tests/cluster/lib.sh"

fail_with() { capture as_user srun --ddp -N2 --ntasks-per-node=2 "$@"; }
fails='ulimit -c 0; if [ $RANK = 2 ]; then sleep 0.3; '

fail_with sh -c "$fails exit 1; fi; exec sleep 60"
status_is 1 "a rank exits with 1, such as an exception of Python: srun exits with 1"
fail_with sh -c "$fails exit 7; fi; exec sleep 60"
status_is 7 "a rank exits with 7: srun exits with 7"
fail_with sh -c "$fails kill -9 \$\$; fi; exec sleep 60"
status_is 137 "a rank is killed: 128 + 9"
fail_with sh -c "$fails kill -SEGV \$\$; fi; exec sleep 60"
status_is 139 "a rank crashes: 128 + 11"
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

capture as_user srun --ddp=launcher -N2 --ntasks-per-node=1 sh -c '[ $PET_NODE_RANK != 1 ] || exit 5; sleep 60'
prints 'ddp: launcher on node 1 of 2 \(n1\) exited with code 5' "a launcher is called one"

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
