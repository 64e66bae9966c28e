#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# seconds: 240
# Who each task is, in every layout that Slurm makes, as an ordinary user.
. "$source/tests/cluster/lib.sh"

cat >"$work/who" <<'END'
#!/bin/sh
echo "who $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $NNODES $DDP_NODE_NAME $MASTER_ADDR $MASTER_PORT $SLURM_PROCID $DDP_KEY $GROUP_RANK $JAX_PROCESS_ID $(hostname)"
END
chmod 755 "$work/who"

# consistent WORLD NODES NAME: the lines of `who` in $output describe one step.
consistent()
{
	local complaint
	complaint=$(grep '^who ' <<<"$output" | awk -v world="$1" -v nodes="$2" '
		{
			if (NF != 15) wrong("a value is missing: " $0)
			if ($3 != world || $7 != nodes) wrong("sizes: " $0)
			if ($2 != $11 || $13 != $6 || $14 != $2) wrong("ranks differ: " $0)
			if ($8 != $15) wrong("node: " $0)
			if (rank[$2]++ || $2 >= world) wrong("rank: " $0)
			if (local[$8 " " $4]++ || $4 >= $5) wrong("local rank: " $0)
			if (locals[$8] == "") locals[$8] = $5
			if (locals[$8] != $5) wrong("local world size: " $0)
			on[$8]++
			if (node[$6] == "") node[$6] = $8
			if (node[$6] != $8 || $6 >= nodes) wrong("node rank: " $0)
			if ($2 == 0) zero = $8
			if ($12 !~ /^step:/ || length($12) != 69) wrong("key: " $0)
			common[$9 ":" $10 " " $12]++
			master = $9
		}
		function wrong(what) { if (!said++) print what }
		END {
			if (NR != world) wrong(NR " tasks, not " world)
			for (n in on) if (on[n] != locals[n]) wrong("node " n " has " on[n] " tasks")
			for (c in common) if (common[c] != world) wrong("master or key differ")
			if (master != zero) wrong("master is " master ", rank 0 is on " zero)
		}')
	if [ "$status" = 0 ] && [ -z "$complaint" ]; then ok "$3"; else not_ok "$3" "status $status" "$complaint"; fi
}
# placed NODES NAME: the tasks of $output, by rank, run on these nodes.
placed() { same "$1" "$(sort -nk2 <<<"$output" | awk '/^who / { printf "%s%s", sep, $8; sep = " " }')" "$2"; }
# laid_out WORLD NODES NAME SRUN-OPTION...
laid_out()
{
	local world=$1 nodes=$2 name=$3
	shift 3
	capture as_user srun --ddp "$@" "$work/who"
	consistent "$world" "$nodes" "$name"
}

laid_out 1 1 "one task is a world of one" -N1 -n1
laid_out 8 4 "even tasks per node" -N4 --ntasks-per-node=2
laid_out 7 3 "uneven tasks per node" --exclusive -N3 -n7
placed "n0 n0 n0 n1 n1 n2 n2" "in blocks"
laid_out 7 3 "cyclic distribution" --exclusive -N3 -n7 -m cyclic
placed "n0 n1 n2 n0 n1 n2 n0" "in turn"
laid_out 9 3 "plane distribution" --exclusive -N3 -n9 -m plane=2
placed "n0 n0 n1 n1 n2 n2 n0 n0 n1" "by planes of two"
laid_out 7 3 "a node with most of the tasks" -N3 -n7 --cpus-per-task=1
laid_out 2 2 "a part of the nodes, not the first" -w n2,n3

printf 'n2\nn0\nn2\nn1\n' >"$work/hosts"
capture as_user env SLURM_HOSTFILE="$work/hosts" srun --ddp -n4 -m arbitrary "$work/who"
consistent 4 3 "arbitrary distribution by SLURM_HOSTFILE"
prints '^who 0 4 0 2 2 3 n2 n2 ' "and rank 0 is on the file's first host"
placed "n2 n0 n2 n1" "and the others where it says"

capture as_user env SLURM_HOSTFILE="$work/hosts" srun --ddp -n4 "$work/who"
consistent 4 3 "the file alone says arbitrary"
placed "n2 n0 n2 n1" "and lays the tasks out"
capture as_user srun --ddp -n4 -m arbitrary -w "$work/hosts" "$work/who"
consistent 4 3 "arbitrary distribution by -w FILE"
placed "n2 n0 n2 n1" "in the file's order"
# With -w Slurm does not look at SLURM_HOSTFILE.
cat >"$work/named" <<'END'
#!/bin/sh
srun --ddp -n1 -w n0 "$1" && srun --ddp -n1 -vw n1 "$1" && srun --ddp -n2 -m arbitrary --nodelist=n0,n1 "$1"
SLURM_HOSTFILE=/nonexistent srun --ddp -n1 -wn2 "$1"
END
chmod 755 "$work/named"
printf 'n2\nn0\nn1\n' >"$work/once"
capture as_user env SLURM_HOSTFILE="$work/once" salloc -n3 -c2 "$work/named" "$work/who"
status_is 0 "steps with -w in a job with a SLURM_HOSTFILE run"
placed "n0 n1 n2 n0 n1" "where -w says"

capture as_user srun --ddp -n3 -m arbitrary -w n2,n0,n1 "$work/who"
fails_without_hanging "arbitrary distribution without the file is refused"
prints 'ddp: rank 0 (runs|does not run) on n[02].*SLURM_HOSTFILE' "and the message says what to do"

capture as_user env SLURM_HOSTFILE="$work/none" srun --ddp -n2 -m arbitrary "$work/who"
fails_without_hanging "a hostfile that is not there is an error"

capture as_user env RANK=9 WORLD_SIZE=99 MASTER_ADDR=elsewhere MASTER_PORT=1 LOCAL_RANK=5 \
	PET_NNODES=7 TORCHELASTIC_RUN_ID=old JAX_PROCESS_ID=8 DDP_KEY=stale srun --ddp=verbose -N2 -n2 \
	sh -c '"$0"; env | grep -E "^(PET_|TORCHEL)"' "$work/who"
status=0
consistent 2 2 "stale variables of the caller are overwritten"
prints 'ddp: replaced .*RANK=9 .*MASTER_ADDR=elsewhere' "and verbose names them"
prints_not '^(PET_NNODES=7|TORCHELASTIC_RUN_ID=)' "and what other launchers left is gone"

capture as_user srun --ddp --export=NONE -N2 -n4 "$work/who"
consistent 4 2 "--export=NONE"
capture as_user srun --ddp --export=NONE -N1 env
prints_not '^SLURM_DDP_' "what srun handed over for it is not left in the task"

make_together
# A batch script sees the two ways in which jobs share their nodes.
cat >"$work/steps" <<'END'
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 --ddp=timeout=77
echo "batch RANK=${RANK-unset} MASTER_ADDR=${MASTER_ADDR-unset}"
srun sh -c "$1/who; echo timeout \${DDP_TIMEOUT-unset}" >inherited
srun --ddp=port=24321 sh -c "$1/who; echo timeout \${DDP_TIMEOUT-unset}" >own
srun --ddp=off sh -c 'echo "off RANK=${RANK-unset}"' >off
srun --relative=1 -N1 -n2 "$1"/who >part
for i in 1 2 3 4; do srun --overlap -N2 -n2 sh -c "$1/together overlapped 8; $1/who" >overlap$i & done; wait
for i in 1 2; do srun --exact -N1 -n1 sh -c "$1/together apart 2; $1/who" >exact$i & done; wait
END
chmod 755 "$work/steps"
mkdir -m 777 "$work/batch"
capture batch_job -D "$work/batch" -o "$work/batch/out" "$work/steps" "$work"
status_is 0 "#SBATCH --ddp is accepted"
output=$(<"$work/batch/out")
prints '^batch RANK=unset MASTER_ADDR=unset$' "the batch script itself gets no rank"
output=$(<"$work/batch/inherited")
consistent 4 2 "its srun inherits --ddp"
prints_times 4 '^timeout 77$' "with its keys"
output=$(<"$work/batch/own")
consistent 4 2 "srun's own --ddp wins"
prints ' 24321 ' "with its own keys"
prints_times 4 '^timeout unset$' "and no other"
output=$(<"$work/batch/off")
prints_times 4 '^off RANK=unset$' "srun --ddp=off takes it back"
output=$(<"$work/batch/part")
consistent 2 1 "a step on the job's second node has its master there"
for i in 1 2 3 4; do
	output=$(<"$work/batch/overlap$i")
	consistent 2 2 "overlapping step $i of 4 at once"
done
output=$(cat "$work"/batch/overlap*)
same 4 "$(awk '{ print $10 }' "$work"/batch/overlap* | sort -u | wc -l)" "steps at once have ports of their own"
same 4 "$(awk '{ print $12 }' "$work"/batch/overlap* | sort -u | wc -l)" "and keys of their own"
for i in 1 2; do
	output=$(<"$work/batch/exact$i")
	consistent 1 1 "--exact step $i of 2 at once"
done

capture as_user salloc -N2 -n4 --ddp srun "$work/who"
consistent 4 2 "salloc --ddp is inherited"
capture as_user salloc -N2 -n4 --ddp=check srun --ddp=port=24322 "$work/who"
consistent 4 2 "and srun's own wins there, too"
prints ' 24322 ' "with its keys"

# Arrays and requeue.
cat >"$work/array" <<'END'
#!/bin/bash
#SBATCH -N1 -n2 --ddp --array=1-3 -o %A_%a.out
srun sh -c 'echo "id $DDP_JOB_ID $SLURM_JOB_ID"; '"$1"/who
END
chmod 755 "$work/array"
capture batch_job -D "$work/batch" "$work/array" "$work"
status_is 0 "an array of three runs"
for i in 1 2 3; do
	output=$(cat "$work"/batch/*_$i.out)
	consistent 2 1 "array task $i"
	prints '^id ([0-9]+) \1$' "has its own job id"
done

cat >"$work/again" <<'END'
#!/bin/bash
#SBATCH -N2 -n2 --ddp --requeue --open-mode=append
srun sh -c 'echo "restart $DDP_RESTART_COUNT $RANK"; '"$1"/who
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || { scontrol requeue $SLURM_JOB_ID; sleep 1000; }
END
chmod 755 "$work/again"
capture as_user sbatch -D "$work/batch" -o "$work/batch/again" "$work/again" "$work"
job=${output##* }
wait_until 20 grep -q 'DUE TO JOB REQUEUE' "$work/batch/again"
if runs_again "$job" "$work/batch/again" 'restart 1 1' && wait_until 60 grep -q '^restart 1 0' "$work/batch/again"; then
	output=$(<"$work/batch/again")
	prints 'restart 0 0' "the restart count starts at 0"
	prints 'restart 1 0' "and is 1 after a requeue"
else
	output=$(cat "$work/batch/again"; on_cluster scontrol show job "$job")
	not_ok "a requeued job runs again"
fi

# Heterogeneous: a job of two components, and a step made of two in one job.
cat >"$work/het" <<'END'
#!/bin/bash
#SBATCH --ddp -N1 -n2
#SBATCH hetjob
#SBATCH -N2 -n2
srun --het-group=0,1 "$1"/who >het_all
srun --het-group=1 "$1"/who >het_one
END
chmod 755 "$work/het"
capture batch_job -D "$work/batch" -o "$work/batch/het_out" "$work/het" "$work"
status_is 0 "a heterogeneous job runs"
output=$(<"$work/batch/het_all")
consistent 4 3 "a step over both components has one world"
output=$(<"$work/batch/het_one")
consistent 2 2 "a step in the second component has its own"
capture as_user srun --ddp -N1 -n2 "$work/who" : -N2 -n2 "$work/who"
consistent 4 3 "srun a : b has one world"
capture as_user salloc -N2 -n4 srun --ddp -N1 -n2 "$work/who" : -N1 -n1 "$work/who"
consistent 3 2 "a heterogeneous step in a plain job"
capture as_user salloc -N2 -w n0,n1 -n4 srun --ddp -w n1 -N1 -n1 "$work/who" : -w n0 -N1 -n1 "$work/who"
fails_without_hanging "components in an order that nothing tells are refused"
prints 'ddp: rank 0 (runs|does not run) on n[01], but' "and the message says why"

# Slurm hands one list to all components.
# differ NAME LIST LIST COMMAND...: is refused, by name
differ()
{
	capture as_user "${@:4}"
	fails_without_hanging "$1"
	prints "components of a heterogeneous job or step one list, but one has --ddp='$2' and another one has --ddp='$3'" "with both lists"
	prints_not '^who' "and runs nothing"
}
differ "srun --ddp a : --ddp=off b" '' off srun --ddp -N1 -n1 "$work/who" : --ddp=off -N1 -n1 "$work/who"
differ "a key in one component of a job with --ddp" timeout=11 '' \
	salloc -N2 -n2 --ddp srun --ddp=timeout=11 -N1 -n1 "$work/who" : -N1 -n1 "$work/who"
# script NAME LIST LIST: a batch script of two components with these lines
script() { printf '#!/bin/sh\n#SBATCH -N1 %s\n#SBATCH hetjob\n#SBATCH -N1 %s\n' "$2" "$3" >"$work/$1" && chmod 755 "$work/$1"; }
script off --ddp --ddp=off
script later '' --ddp
differ "components of a batch script" '' off sbatch "$work/off"
later="only component 1 has --ddp='': give it to the first one"
capture as_user sbatch "$work/later"
fails_without_hanging "sbatch refuses a list of a later component only, of which no step would hear"
prints "sbatch: error: ddp: .*$later" "and says what to do"
capture as_user sbatch -N1 : --ddp -N1 --wrap true
prints "$later" "also in the command line"
capture as_user salloc -N1 -n1 : --ddp -N1 -n1 srun --het-group=0,1 "$work/who"
consistent 2 2 "salloc hands a later component's list to all"
capture as_user srun --ddp=port=24323 -N1 -n1 "$work/who" : --ddp=port=24323 -N1 -n1 "$work/who"
consistent 2 2 "the same list for both components"
prints ' 24323 ' "holds"
capture as_user srun -N1 -n1 "$work/who" : --ddp=port=24324 -N1 -n1 "$work/who"
consistent 2 2 "one component's list is that of all"

# As root, too.
capture on_cluster srun --ddp -N2 -n3 "$work/who"
consistent 3 2 "root's own jobs"

done_testing
