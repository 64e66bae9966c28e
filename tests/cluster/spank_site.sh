#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# cluster: --no-ports --gpus 4 --plugin-args 'port=24000-24499 addr=ip omp=1 gpu=error on-failure=continue locked=port,addr,addr-suffix' --conf PrologFlags=Alloc,Contain
# seconds: 150
# A site's defaults and locks, hashed ports, GPUs, and steps that are no steps.
. "$source/tests/cluster/lib.sh"

capture as_user srun --ddp -N2 -n2 env
status_is 0 "--ddp alone takes the site's defaults"
prints_times 2 '^MASTER_ADDR=198\.18\.0\.1$' "addr=ip of the site"
prints_times 2 '^MASTER_PORT=24[0-4][0-9][0-9]$' "a hashed port in the site's range"
prints_times 2 '^OMP_NUM_THREADS=1$' "omp=1 of the site"
prints_times 2 '^DDP_ON_FAILURE=continue$' "on-failure=continue of the site"
capture as_user env SLURM_STEP_RESV_PORTS=30000 srun --ddp -N2 -n2 printenv MASTER_PORT
prints_times 2 '^24[0-4][0-9][0-9]$' "and not one that another step had reserved"
for list in port=30000 addr=nodename addr-suffix=-x; do
	capture as_user srun "--ddp=$list" true
	fails_without_hanging "--ddp=$list, which the site keeps for itself, is refused"
	prints "key '${list%%=*}' is locked by this site" "by name"
done
# A user may have srun read another plugstack; the node's counts.
printf 'optional %s\n' "$cluster/spank_ddp.so" >"$work/unlocked.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/unlocked.conf|" "$cluster/slurm.conf" >"$work/slurm.conf"
capture as_user env SLURM_CONF="$work/slurm.conf" srun --ddp=port=30000 -n1 echo ran
fails_without_hanging "a lock holds on the node, whatever srun was told"
prints "ddp: n[0-9]: key 'port' is locked by this site" "which says so, and where"
prints_not '^ran$' "and runs nothing"
capture as_user srun --ddp=omp=keep,on-failure=kill -N1 env
prints '^DDP_ON_FAILURE=kill$' "what the site does not keep, a user may change"

# What is wrong in plugstack.conf is said to who asks for --ddp; other steps run.
cp "$cluster/plugstack.conf" "$work/plugstack.conf"
# says WORDS NAME
says()
{
	capture as_user srun echo ran
	prints '^ran$' "$2: a step without --ddp runs"
	capture as_user srun --ddp echo ran
	fails_without_hanging "and --ddp is refused"
	prints "ddp: --ddp: .*$1" "with the reason"
	prints_not '^ran$' "and runs nothing"
	cp "$work/plugstack.conf" "$cluster/plugstack.conf"
}
cat "$work/plugstack.conf" >>"$cluster/plugstack.conf"
says 'plugstack.conf names spank_ddp.so 2 times' "the site's line twice"
sed -i 's/gpu=error/check/' "$cluster/plugstack.conf"
says "'check' is for users" "check as a site's default"
sed -i 's/gpu=error/off/' "$cluster/plugstack.conf"
says 'the administrator has switched --ddp off' "off in the site's line"
# A node may have another plugstack.
cat "$work/plugstack.conf" "$work/plugstack.conf" >"$cluster/plugstack.conf"
cp "$work/plugstack.conf" "$work/once.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/once.conf|" "$cluster/slurm.conf" >"$work/once.slurm.conf"
capture as_user env SLURM_CONF="$work/once.slurm.conf" srun --ddp echo ran
prints 'ddp: n[0-9]: plugstack.conf names spank_ddp.so 2 times' "twice on a node only: the node says so"
prints_not '^ran$' "and runs nothing"
cp "$work/plugstack.conf" "$cluster/plugstack.conf"

# A task on a node without the plugin submits a job: sbatch there leaves srun's words in.
: >"$work/none.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/none.conf|" "$cluster/slurm.conf" >"$work/none.slurm.conf"
cat >"$work/left" <<-'END'
	#!/bin/sh
	env | grep -E '^(RANK|WORLD_SIZE|PET_|DDP_|SLURM_DDP_|OMP_)' | sort | tr '\n' ' ' | sed 's/^/left /'
	echo .
END
absent='srun --ddp was asked for, but the plugin spank_ddp is absent on this node'
: >"$work/left.out"
chmod 666 "$work/left.out"
capture as_user env SLURM_CONF="$work/none.slurm.conf" RANK="$absent" WORLD_SIZE="$absent" PET_NNODES="$absent" OMP_NUM_THREADS=7 \
	SLURM_DDP_KEY=00 SLURM_DDP_RELAY=1:2 DDP_REQUESTED=7.0 sbatch -o "$work/left.out" "$work/left"
wait_until 30 grep -q left "$work/left.out"
output=$(<"$work/left.out")
prints '^left OMP_NUM_THREADS=7 \.$' "a job from a node without the plugin has nothing of the step"
prints_times 1 'ddp: the job has been submitted by a task of srun --ddp on a node without the plugin' "and says so"

# salloc's shell as a step of its own, which has no ranks.
{ cat "$cluster/slurm.conf"; printf '%s\n' LaunchParameters=use_interactive_step \
	'InteractiveStepOptions="--interactive --preserve-env $SHELL"'; } >"$work/interactive.conf"
cat >"$work/shell" <<-'END'
	#!/bin/sh
	env | grep -E '^(RANK|WORLD_SIZE|MASTER_|PET_|DDP_|SLURM_DDP_)' | sort | tr '\n' ' ' | sed 's/^/shell /'
	echo "of $SLURM_STEP_ID"
	srun --overlap -n2 sh -c 'echo "inside $RANK $WORLD_SIZE"'
END
chmod 755 "$work/shell"
for list in --ddp --ddp=check; do
	capture as_user env SLURM_CONF="$work/interactive.conf" SHELL="$work/shell" RANK=7 PET_NNODES=8 salloc $list -N1 -n2
	prints '^shell PET_NNODES=8 RANK=7 of (4294967290|-6)$' "salloc $list: an interactive step has what salloc's caller had"
	case $list in
	--ddp) prints '^inside 1 2$' "and its srun has ranks" ;;
	--ddp=check) prints '^rank 1/2 ' "and its srun checks" ;;
	esac
done

# Who ends a step: a site that keeps that to itself.
cp "$cluster/plugstack.conf" "$work/plugstack.conf"
site_says() { sed "s/on-failure=continue locked=/on-failure=$1 locked=on-failure,/" "$work/plugstack.conf" >"$cluster/plugstack.conf"; }
# fails_as_rank_1 COMMAND...: rank 1 of 4 fails, and the others stay for SECONDS
fails_as_rank_1() { capture as_user "$@" sh -c 'if [ $RANK = 1 ]; then exit 3; fi; sleep '"$stay"' && echo done'; }
four=(-N2 --ntasks-per-node=2)
site_says kill
stay=30
fails_as_rank_1 srun -K0 --ddp "${four[@]}"
prints_not '^done$' "a locked on-failure=kill: -K0 does not keep a step"
prints_times 1 'ddp: rank 1 of 4 on n0 exited with code 3' "whose failure is said"
status_is 3 "with its code"
fails_as_rank_1 env SLURM_DDP_ON_FAILURE=continue srun -K0 --ddp "${four[@]}"
prints_not '^done$' "nor what srun would tell the nodes of it"
capture as_user srun --ddp=on-failure=continue echo ran
fails_without_hanging "nor on-failure=continue"
prints "key 'on-failure' is locked by this site; leave it out" "which is refused"
site_says continue
capture as_user srun --ddp=on-failure=kill echo ran
fails_without_hanging "a locked on-failure=continue: on-failure=kill is refused"
stay=1
fails_as_rank_1 srun --ddp "${four[@]}"
prints_times 3 '^done$' "and the others go on"
prints_times 1 'ddp: rank 1 of 4 on n0 exited with code 3' "after the report"
# A site's restarts count where they can, and keep no step from running.
sed 's/on-failure=continue locked=/restart=2 spare=1 min-nodes=2 locked=/' "$work/plugstack.conf" >"$cluster/plugstack.conf"
capture as_user srun --ddp=verbose -N1 -n2 sh -c 'echo rank $RANK of $WORLD_SIZE'
status_is 0 "spare= and min-nodes= of the site, one node: the step runs"
prints_times 2 '^rank [01] of 2$' "with all ranks"
prints 'ddp: spare= of the site is ignored: spare=1 needs more nodes than the step has \(1\)' "and says why, to who asks"
capture as_user srun --ddp=check -N1 -n2 true
status_is 0 "--ddp=check shows that step"
prints 'ddp: spare= of the site is ignored: ' "and says it, too"
capture as_user srun --ddp -N2 -n3 sh -c 'echo rank $RANK of $WORLD_SIZE'
prints_times 3 '^rank [0-2] of 3$' "spare= of the site, unequal tasks: the step runs"
prints_not 'ddp: ' "in silence"
capture as_user srun --ddp=restart=1,spare=2 -N2 -n2 true
fails_without_hanging "a user's own spare= that does not fit is refused"
prints 'ddp: spare=2 needs more nodes than the step has \(2\)' "in words"
capture as_user salloc -N2 -n4 srun --ddp -N1 -n2 sh -c 'echo rank $RANK of $WORLD_SIZE' : -N1 -n1 sh -c 'echo rank $RANK of $WORLD_SIZE${DDP_JOINS+ restarts}'
status_is 0 "restart= of the site, several components: the step runs"
prints_times 3 '^rank [0-2] of 3$' "as one world"
capture as_user salloc -N2 -n4 srun --ddp=restart=1 -N1 -n2 true : -N1 -n1 true
fails_without_hanging "a user's own restart= with several components is refused"
prints 'ddp: the step cannot be restarted, as restart=1 asks for: the step has several components: .* Leave restart= out$' "in words"
# A node may not have the default yet. Without agents there, the others would wait for ever.
cp "$cluster/plugstack.conf" "$work/restarts.conf"
cp "$work/plugstack.conf" "$cluster/plugstack.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/restarts.conf|" "$cluster/slurm.conf" >"$work/restarts.slurm.conf"
capture as_user env SLURM_CONF="$work/restarts.slurm.conf" srun --ddp -N2 -n2 echo ran
fails_without_hanging "restart= of the site, which a node lacks, is refused"
prints 'ddp: n[01]: restart=: srun is to restart the step, but plugstack.conf of this node has no restart=' "in words"
prints_not '^ran$' "and runs nothing"
for list in restart=0 restart=1; do
	capture as_user env SLURM_CONF="$work/restarts.slurm.conf" srun "--ddp=$list" -N2 -n2 echo ran
	prints_times 2 '^ran$' "--ddp=$list runs there, as the words say"
done

make_together
# Steps of one job, at once and one after the other, without Slurm's ports.
cat >"$work/steps" <<'END'
#!/bin/bash
#SBATCH -N2 -n2 --ddp
for i in 1 2 3 4 5 6; do srun --overlap sh -c './together once 12; [ $RANK != 0 ] || echo port $MASTER_PORT' & done; wait
END
capture batch_job -D "$work" -o "$work/out" "$work/steps"
output=$(<"$work/out")
same 6 "$(grep '^port' <<<"$output" | sort -u | wc -l)" "six steps of a job have six hashed ports"

# GPUs, which are /dev/null here, but Slurm binds them as others.
capture as_user srun --ddp -N2 --ntasks-per-node=4 --gpus-per-node=4 sh -c 'echo "gpu $CUDA_VISIBLE_DEVICES $LOCAL_RANK $DDP_LOCAL_DEVICE"'
status_is 0 "as many tasks as GPUs is right"
prints_times 2 '^gpu 0,1,2,3 3 3$' "each task has its own among those it sees"
capture as_user srun --ddp -N2 --ntasks-per-node=4 --gpus-per-task=1 sh -c 'echo "gpu $CUDA_VISIBLE_DEVICES $LOCAL_RANK $DDP_LOCAL_DEVICE"'
prints_times 2 '^gpu [0-3] 3 0$' "--gpus-per-task: local device 0, though the local rank is 3"
prints_times 1 'ddp: n0: each task sees GPUs of its own.*DDP_LOCAL_DEVICE, not LOCAL_RANK' "is noted once"
capture as_user srun --ddp -N1 -n2 --gpus-per-node=2 --gpu-bind=single:1 sh -c 'echo "gpu $CUDA_VISIBLE_DEVICES $LOCAL_RANK $DDP_LOCAL_DEVICE"'
prints_times 1 '^gpu [01] 1 0$' "--gpu-bind: local device 0"
capture as_user srun --ddp=gpu=warn -N1 -n4 --gpus-per-node=4 --gpu-bind=mask_gpu:0x3,0xc sh -c 'echo "gpu ${DDP_LOCAL_DEVICE-unset}"'
prints_times 4 '^gpu unset$' "--gpu-bind=mask_gpu: none where tasks share what they see"
prints_times 1 'ddp: n0: --gpu-bind=mask_gpu:0x3,0xc lets tasks share GPUs.*DDP_LOCAL_DEVICE is not set' "with a warning"
capture as_user salloc -N1 -n2 --gpus-per-task=1 srun --ddp=gpu=ignore --gpus-per-node=2 --gpu-bind=closest \
	sh -c 'echo "gpu $SLURM_GPUS_PER_TASK $LOCAL_RANK $DDP_LOCAL_DEVICE"'
prints '^gpu 1? 1 1$' "a step that is not bound as its job: the local rank's"
capture as_user srun --ddp -N1 -n4 --gpus-per-node=2 true
fails_without_hanging "gpu=error: four tasks for two GPUs is an error"
prints 'ddp: n0: 4 tasks share 2 GPUs.*--ntasks-per-node=2' "that says what to set"
capture as_user srun --ddp=gpu=warn -N1 -n2 --gpus-per-node=4 true
status_is 0 "gpu=warn: two tasks for four GPUs runs"
prints_times 1 'ddp: n0: 2 of 4 GPUs on this node have no task' "with a warning"
capture as_user srun --ddp=launcher -N2 --ntasks-per-node=1 --gpus-per-node=4 printenv PET_NPROC_PER_NODE
prints_times 2 '^4$' "launcher: a process for each GPU"

# The batch script and the extern step (PrologFlags=Contain) run the plugin.
cat >"$work/alone" <<'END'
#!/bin/bash
#SBATCH -N1 -n2 --ddp
env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|DDP_[A-Z_]*)=' | sort
exit 0
END
capture batch_job -D "$work" -o "$work/alone.out" "$work/alone"
status_is 0 "a batch script without srun runs as without the plugin"
mine=$(env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|DDP_[A-Z_]*)=' | sort)
same "$mine" "$(<"$work/alone.out")" "and gets no ranks that would make it one of several"
capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
