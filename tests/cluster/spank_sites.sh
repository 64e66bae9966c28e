#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --gpus 4
# seconds: 600
# What jobs do at real sites: steps inside of steps, launchers of others' making.
. "$source/tests/cluster/lib.sh"
# Loading PyTorch takes a busy machine more than a minute, four times at once.
limit=240

# ---- a step inside of a step, a job submitted by a task ---------------------------

show='echo "$0 ${RANK-unset} ${WORLD_SIZE-unset} ${MASTER_PORT-unset} ${DDP_STEP_ID-unset} ${DDP_KEY-unset} ${PET_NNODES-unset}"'
cat >"$work/inside" <<END
#!/bin/sh
[ "\$RANK" = 0 ] || exit 0
echo "outer \$DDP_KEY"
srun --overlap -N2 -n2 sh -c '$show' plain
srun --overlap --ddp=off -N2 -n2 sh -c '$show' off
srun --overlap --ddp -N2 -n2 sh -c '$show' asked
env -u DDP_STEP_ID RANK=5 WORLD_SIZE=6 srun --overlap -N2 -n2 sh -c '$show' own
sbatch --hold -N1 -n1 -o "$work/submitted" "$work/submitted.sh" | sed 's/.* /submitted /'
env -u DDP_STEP_ID sbatch --hold -N1 -n1 -o /dev/null "$work/submitted.sh" >/dev/null || echo "no job: env"
env -i PATH="\$PATH" SLURM_CONF="\$SLURM_CONF" DDP_KEY="\$DDP_KEY" \
	sbatch --hold -N1 -n1 -o /dev/null "$work/submitted.sh" >/dev/null || echo "no job: env -i"
for export in ALL ALL,DDP_KEY DDP_KEY,SLURM_DDP_KEY; do
	sbatch --hold -N1 -n1 --export=\$export -o /dev/null "$work/submitted.sh" >/dev/null || echo "no job: \$export"
done
END
printf '#!/bin/sh\n%s\n' "${show/\$0/batch}" >"$work/submitted.sh"
chmod 755 "$work/inside" "$work/submitted.sh"
chmod 1777 "$work"
capture as_user salloc -N2 -n4 srun --ddp --overlap -N2 -n2 "$work/inside"
status_is 0 "a task starts steps and jobs"
prints_not '^no job' "also by env(1), and with any --export="
key=$(sed -n 's/^outer //p' <<<"$output")
job=$(sed -n 's/^submitted //p' <<<"$output")
prints_times 2 '^plain unset unset unset unset unset unset$' "a step inside of it without --ddp inherits no rank and no key"
prints_times 2 '^off unset unset unset unset unset unset$' "nor one with --ddp=off"
prints_times 1 '^asked 0 2 ' "one with --ddp has ranks of its own"
prints_times 1 '^asked 1 2 ' "for each task"
prints_times 2 '^own 5 6 ' "what is not the plugin's stays"
capture grep -rlF -- "${key#step:}" "$cluster/state"
status_is 1 "slurmctld keeps no key of the step for the jobs, whatever --export says"
on_cluster scontrol release "$job"
wait_until 30 test -s "$work/submitted"
output=$(cat "$work/submitted")
prints '^batch unset unset unset unset unset unset$' "the job inherits no rank"
on_cluster scancel --state=PENDING --user 65534

# What the plugin derives for a task is the task's; what a user has set goes on.
lines='env | grep -E "^(OMP_NUM_THREADS|JAX_LOCAL_DEVICE_IDS|DDP_[A-Z_]*|NCCL_[A-Z_]*|SLURM_STEP_RESV_PORTS)=" | sort | tr "\n" " "; echo'
cat >"$work/job6.sh" <<END
#!/bin/sh
echo "batch \$($lines)"
srun -c6 --ddp sh -c 'echo "step \$OMP_NUM_THREADS \${DDP_TIMEOUT-unset} \${DDP_TRACE_DIR-unset}"'
END
cat >"$work/derive" <<END
#!/bin/sh
echo "outer \$RANK \$($lines)"
case \$1\$RANK in
0) srun --overlap -N1 -n1 sh -c '$lines' | sed 's/^/inner /' ;;
1) export OMP_NUM_THREADS=3 JAX_LOCAL_DEVICE_IDS=9 DDP_TIMEOUT=7 DDP_BUCKET_MB=8 DDP_TRACE_DIR=/own NCCL_NET_PLUGIN=mine NCCL_PROFILER_PLUGIN=own ;;
esac
sbatch --parsable -N1 -n1 -c6 -o "$work/job6.\$1\$RANK" "$work/job6.sh" | sed 's/^/submitted /'
END
chmod 755 "$work/job6.sh" "$work/derive"
capture as_user srun --ddp=timeout=90,bucket-mb=2,trace="$work/t r",watch=/p.so,nccl-net=/n.so -N1 -n2 -c1 --gpus-per-task=1 "$work/derive"
status_is 0 "a task of one CPU submits a job of six"
prints '^outer 0 .*DDP_BUCKET_MB=2 .*DDP_TIMEOUT=90 DDP_TRACE_DIR=.*/t r JAX_LOCAL_DEVICE_IDS=0 NCCL_NET_PLUGIN=/n.so NCCL_PROFILER_PLUGIN=/p.so OMP_NUM_THREADS=1 SLURM_STEP_RESV_PORTS=' "it has what the plugin derived"
prints '^inner (SLURM_STEP_RESV_PORTS=[0-9-]+ )?$' "a step that it starts has nothing of it"
jobs=$(sed -n 's/^submitted //p' <<<"$output" | tr '\n' ' ')
capture as_user env OMP_NUM_THREADS=1 NCCL_NET_PLUGIN=none srun --ddp -N1 -n1 -c1 "$work/derive" own
jobs+=$(sed -n 's/^submitted //p' <<<"$output")
for job in $jobs; do wait_until 60 sh -c "! $source/slurm/cluster run --dir $cluster -- squeue -h -j $job -o %i | grep -q ."; done
output=$(cat "$work/job6.0")
prints '^batch $' "nor has the job"
prints '^step 6 unset unset$' "which trains with the threads of its own CPUs"
output=$(cat "$work/job6.1")
prints '^batch DDP_BUCKET_MB=8 DDP_TIMEOUT=7 DDP_TRACE_DIR=/own JAX_LOCAL_DEVICE_IDS=9 NCCL_NET_PLUGIN=mine NCCL_PROFILER_PLUGIN=own OMP_NUM_THREADS=3 $' "what the task itself has set goes on"
prints '^step 3 7 /own$' "into the job's steps"
output=$(cat "$work/job6.own0")
prints '^batch NCCL_NET_PLUGIN=none OMP_NUM_THREADS=1 $' "and so does what the user had set before, though the plugin would have derived the same"

# ---- Open MPI ----------------------------------------------------------------------

if ! command -v mpirun >/dev/null; then
	skip "mpirun" "there is no Open MPI"
else
	cat >"$work/mpi" <<-'END'
	#!/bin/sh
	#SBATCH --ddp -N2 --ntasks-per-node=2
	mpirun sh -c 'echo "mpi $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE ${RANK-unset} ${WORLD_SIZE-unset} ${DDP_KEY-unset} ${SLURM_DDP_KEY-unset} ${SLURM_DDP_RELAY-unset} $SLURMD_NODENAME"'
	END
	capture as_user env HOME="$work" sbatch -W -D "$work" -o "$work/mpi.out" "$work/mpi"
	status_is 0 "mpirun runs in a job with --ddp"
	output=$(cat "$work/mpi.out")
	prints_times 4 '^mpi [0-3] 4 ' "all its ranks"
	prints_times 4 '^mpi [0-3] 4 unset unset unset unset unset n[01]$' "none of which is told that it is rank 0 of 1"
	prints_not 'ddp:' "and nothing is said of it"
fi

# ---- torchrun, and no launcher= -------------------------------------------------------

# batch.sh has torchrun with launcher=, and the same program without torchrun.
if ! /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))'; then
	skip "torchrun without launcher" "there is no python3-torch"
elif ! /usr/bin/python3 -c 'from torch.distributed import TCPStore; TCPStore("127.0.0.1", 0, 1, True)' 2>/dev/null; then
	skip "torchrun without launcher" "this PyTorch lacks libuv"
else
	cat >"$work/train.py" <<-'END'
	import os
	import torch
	import torch.distributed as dist

	dist.init_process_group("gloo")
	total = torch.tensor([float(dist.get_rank() + 1)])
	dist.all_reduce(total)
	os.write(1, ("rank %d of %d, device %s, sum %g\n" % (dist.get_rank(), dist.get_world_size(),
	      os.environ.get("DDP_LOCAL_DEVICE", os.environ["LOCAL_RANK"]), total.item())).encode())
	END
	# Redirects of a rank that is not there: PyTorch 1.13 cannot read its own default
	# with Python 3.11, which Debian 12 has.
	torchrun=(/usr/bin/python3 -m torch.distributed.run --redirects 9:1 --tee 9:1)
	capture as_user srun --ddp --mpi=none -N2 --ntasks-per-node=1 --gpus-per-node=2 "${torchrun[@]}" --nproc_per_node=2 "$work/train.py"
	status_is 0 "torchrun per node without launcher runs"
	prints_times 4 '^rank [0-3] of 4, device [01], sum 10$' "its workers are one world"
	prints_times 2 'device 1' "each with a device of its own"
fi

# ---- Pyxis ----------------------------------------------------------------------------------

# A stand-in that does to the environment what Pyxis does for an image with
# PyTorch's hook: it sets what the image has, over what is there.
if ! command -v cc >/dev/null; then
	skip "Pyxis before and behind" "there is no compiler"
else
	cat >"$work/pyxis.c" <<-'END'
	#include <slurm/spank.h>
	SPANK_PLUGIN(pyxis, 1)
	int slurm_spank_task_init(spank_t spank, int count, char **words)
	{
		(void)count; (void)words;
		spank_setenv(spank, "MASTER_PORT", "61000", 1);
		spank_setenv(spank, "WORLD_SIZE", "1", 1);
		spank_setenv(spank, "OMP_NUM_THREADS", "77", 1);
		return 0;
	}
	END
	check "a stand-in for Pyxis compiles" cc -shared -fPIC -o "$work/spank_pyxis.so" "$work/pyxis.c"
	cp "$cluster/plugstack.conf" "$work/plugstack.conf"
	echo "optional $work/spank_pyxis.so" >>"$cluster/plugstack.conf"
	capture as_user srun --ddp=check -N1 -n2 true
	prints_times 1 'plugstack.conf of n0 names spank_pyxis.so behind spank_ddp.so' "check warns of Pyxis behind the plugin"
	capture as_user srun --ddp -N2 -n4 true
	prints_times 1 'plugstack.conf of n0 names spank_pyxis.so behind spank_ddp.so' "and so does every step, once"
	capture as_user srun -N2 -n2 true
	prints_not 'pyxis' "but none without --ddp"
	# By plugstack.conf.d: the name of our file comes behind pyxis.conf.
	mkdir "$work/plugstack.conf.d"
	cp "$work/plugstack.conf" "$work/plugstack.conf.d/$(basename "$source/slurm/spank_ddp.conf")"
	echo "optional $work/spank_pyxis.so" >"$work/plugstack.conf.d/pyxis.conf"
	echo "include $work/plugstack.conf.d/*.conf" >"$cluster/plugstack.conf"
	capture as_user srun --ddp=verbose -N1 -n2 sh -c 'echo "got $MASTER_PORT $WORLD_SIZE $OMP_NUM_THREADS"'
	prints_not 'spank_pyxis' "with one file for each plugin the order is right"
	prints_times 2 '^got 2[0-9]* 2 [1-9]$' "and the plugin's variables win over the container's"
	capture as_user env OMP_NUM_THREADS=5 srun --ddp -N1 -n1 sh -c 'echo "got $OMP_NUM_THREADS"'
	prints '^got 5$' "and so does a number of threads that the user has set"
	cp "$work/plugstack.conf" "$cluster/plugstack.conf"
fi

# ---- other plugins that take long, or fail ---------------------------------------------------

# Pyxis removes a container when a task ends, which takes a minute if that has many files; and
# fails a task whose image is missing.
if ! command -v cc >/dev/null; then
	skip "a plugin that takes long, or fails" "there is no compiler"
else
	cat >"$work/slow.c" <<-'END'
	#include <stdint.h>
	#include <stdio.h>
	#include <string.h>
	#include <unistd.h>
	#include <slurm/spank.h>
	SPANK_PLUGIN(slow, 1)
	/* SLOW is words such as exit1: on the step's second node. */
	static int wants(spank_t spank, const char *what)
	{
		char text[256], word[32];
		uint32_t node;
		snprintf(word, sizeof(word), "%s%u", what,
		         spank_get_item(spank, S_JOB_NODEID, &node) == ESPANK_SUCCESS ? node : 99);
		return spank_getenv(spank, "SLOW", text, sizeof(text)) == ESPANK_SUCCESS && strstr(text, word) != NULL;
	}
	int slurm_spank_task_init(spank_t spank, int count, char **words)
	{
		(void)count; (void)words;
		if (wants(spank, "init"))
			sleep(2);
		return wants(spank, "fail") ? -1 : 0;
	}
	int slurm_spank_task_exit(spank_t spank, int count, char **words)
	{
		(void)count; (void)words;
		if (wants(spank, "exit"))
			sleep(3);
		return 0;
	}
	END
	check "a plugin that takes long compiles" cc -shared -fPIC -o "$work/slow.so" "$work/slow.c"
	cat >"$work/notices" <<-'END'
	#!/bin/sh
	case $RANK in
	0) exec sleep 60 ;;
	# A busy machine may stop the other one between its two commands, so its process has to be gone.
	1) until [ -s "$1" ]; do sleep 0.02; done; while kill -0 "$(cat "$1")" 2>/dev/null; do sleep 0.02; done
	   sleep 0.15; exit 1 ;;
	2) until [ -e "$1.go" ]; do sleep 0.02; done; echo $$ >"$1"; kill -9 $$ ;;
	esac
	END
	chmod 755 "$work/notices"
	chmod 1777 "$work"
	ddp_line=$(grep spank_ddp.so "$cluster/plugstack.conf")
	slow_line="required $work/slow.so"
	for order in "$slow_line"$'\n'"$ddp_line" "$ddp_line"$'\n'"$slow_line"; do
		cp "$work/plugstack.conf" "$cluster/plugstack.conf"
		printf '%s\n' "$order" >"$cluster/plugstack.conf"
		[ "${order%%$'\n'*}" = "$slow_line" ] && where=before || where=behind
		rm -f "$work/dead"*
		: >"$work/dead.go"
		capture as_user env SLOW=exit1 srun --ddp -N2 -n3 "$work/notices" "$work/dead"
		prints_times 1 'ddp: rank 2 of 3 on n1 was killed by signal 9' \
			"a plugin $where it whose task_exit takes 3 s: the rank that died is named"
		prints_times 1 'ddp: ' "in one line, and not the one that noticed"
		status_is 137 "with its status"
		# A task that ends at once, while srun may still be answering its node.
		capture as_user env SLOW=exit1 srun --ddp=silence=2 -N2 -n2 sh -c '[ $RANK = 1 ] || sleep 2.5'
		prints_not 'ddp: ' "a node is not called silent while a plugin $where it takes longer than silence="
		status_is 0 "and no rank is ended"
	done
	printf '%s\n' "$slow_line" "$ddp_line" >"$cluster/plugstack.conf"
	for fails in fail1 "fail0 fail1"; do
		capture as_user env SLOW="$fails" srun --ddp -N2 --ntasks-per-node=2 sleep 30
		prints_times 1 'ddp: tasks did not start on n[01] \(2 of 2\): .* ended them with code 1; see the log of slurmd' \
			"a plugin before it that fails ($fails): tasks did not start"
		prints_times 1 'ddp: ' "in one line"
		status_is 1 "with status 1"
	done
	capture as_user env SLOW=init1 srun --ddp -N2 -n2 sh -c '[ $RANK = 0 ] && exec sleep 30; exit 5'
	prints 'ddp: rank 1 of 2 on n1 exited with code 5 after 0\.[0-9] s' "time counts from the program's start"
	cp "$work/plugstack.conf" "$cluster/plugstack.conf"
fi

# ---- CPUs of a task ---------------------------------------------------------------------

# A cluster of its own, whose tasks are bound. It takes two CPUs, of which 0 is one.
bound=/run/slurm-ddp/bound-$$
trap '"$source/slurm/cluster" stop --dir "$bound" >/dev/null 2>&1' EXIT
if (($(nproc) > 1 && (16#$(taskset -p $$ | sed 's/.*: //; s/,//g') & 1))); then
	check "a cluster that binds tasks starts" "$source/slurm/cluster" start --dir "$bound" --nodes 1 --cpus 2 \
		--conf TaskPlugin=task/affinity --plugin "$cluster/spank_ddp.so"
	capture "$source/slurm/cluster" run --dir "$bound" --user nobody -- \
		srun --ddp -n1 -c2 --cpu-bind=map_cpu:0 sh -c 'echo "omp $OMP_NUM_THREADS, $(taskset -p $$)"'
	prints '^omp 1, .*: 1$' "a task that is bound to one of its two CPUs has one thread"
else
	skip "CPUs of a task" "there is one CPU, or CPU 0 is not ours"
fi
done_testing
