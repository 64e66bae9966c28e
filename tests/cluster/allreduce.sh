#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# From srun to the right sums, over every way in which ranks find each other.
. "$source/tests/cluster/lib.sh"
[ -x "$prefix/bin/allreduce" ] || skip_all "examples/allreduce is not built"
allreduce=$prefix/bin/allreduce

# all_right RANKS NAME: the sums are right, and RANKS ranks showed theirs
all_right()
{
	status_is 0 "$2: every rank is content"
	prints "^all [0-9]+ sums over $1 ranks are right" "$2: the sums of all $1 ranks are right"
	prints_times "$1" '^rank [0-9]+: before \[.*after \[' "$2: each rank shows its vector"
}

capture as_user srun --ddp -N2 --ntasks-per-node=2 "$allreduce"
all_right 4 "2 nodes x 2 tasks"
prints_times 4 '"world_size": ?4' "each rank prints who it is"
prints '"node_rank": ?1' "a rank on the second node knows that"

capture as_user srun --ddp --mpi=none -N2 --ntasks-per-node=2 "$allreduce"
all_right 4 "no PMIx, 2 nodes x 2 tasks"

capture as_user srun --ddp -N2 -n3 "$allreduce" --count 1001
all_right 3 "uneven tasks per node"

capture as_user srun --ddp -N2 -n4 -m cyclic "$allreduce" --count 1001
all_right 4 "cyclic distribution"

capture as_user srun --ddp --mpi=none -N2 -n4 -m cyclic "$allreduce" --count 7
all_right 4 "cyclic distribution over TCP"

capture as_user srun --ddp -n1 "$allreduce"
all_right 1 "a world of one"

if has_pmix; then
	capture on_cluster srun --mpi=pmix -N2 --ntasks-per-node=2 "$allreduce" --count 100
	all_right 4 "without the plugin's option, by PMIx alone"
else
	skip "without the plugin's option, by PMIx alone" "Slurm or libddp has no PMIx"
fi

for type in f64 bf16 i64 u8; do
	capture as_user srun --ddp -N2 --ntasks-per-node=2 "$allreduce" --type $type --count 4099
	all_right 4 "$type"
done

capture as_user srun --ddp -N2 --ntasks-per-node=2 "$allreduce" --count 0
all_right 4 "no elements"

capture as_user sh -c 'srun --ddp -N2 --ntasks-per-node=1 "$0" --iterations 50 --count 10000 & srun --ddp -N2 --ntasks-per-node=1 "$0" --iterations 50 --count 10000; wait $!' "$allreduce"
prints_times 2 '^all 500000 sums over 2 ranks are right' "two jobs at once do not disturb each other"

capture as_user sh -c 'salloc -Q -N2 --ntasks-per-node=2 sh -c "srun --ddp --overlap --mpi=none $0 --count 10000 & srun --ddp --overlap --mpi=none $0 --count 10000; wait \$!"' "$allreduce"
prints_times 2 '^all 10000 sums over 4 ranks are right' "two steps at once in one job do not disturb each other"

printf '#!/bin/sh\n#SBATCH --ddp -N2 --ntasks-per-node=2 -o %s/batch.out\nsrun %s\n' "$work" "$allreduce" >"$work/batch.sh"
capture batch_job "$work/batch.sh"
status_is 0 "a batch job with #SBATCH --ddp succeeds"
output=$(cat "$work/batch.out" 2>&1)
prints '^all 1048576 sums over 4 ranks are right' "the srun in it inherits --ddp"

capture on_node n0 sh -c 'ls -A /dev/shm'
same '' "$output" "nothing is left in n0's /dev/shm"
capture on_node n1 sh -c 'ls -A /dev/shm'
same '' "$output" "nothing is left in n1's /dev/shm"

done_testing
