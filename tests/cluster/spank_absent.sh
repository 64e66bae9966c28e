#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# seconds: 150
# A node without the plugin, or with one that does not fit, is told, not run
# as a world of one, and srun names it.
. "$source/tests/cluster/lib.sh"

# n2 has an empty plugstack.conf; the others keep theirs. Other tests share the
# cluster, so it is put right whatever happens here.
: >"$work/empty.conf"
trap 'on_node n2 umount "$cluster/plugstack.conf" 2>/dev/null' EXIT
on_node n2 mount --bind "$work/empty.conf" "$cluster/plugstack.conf"

# recipe WORD: the script of the guide that has the word
recipe() { awk -v word="$1" '/^```/ { if (found) printf "%s", text; text = ""; found = 0; next }
	{ text = text $0 "\n" } index($0, word) { found = 1 }' "$source/doc/admin-guide.md"; }
recipe 'Drains this node' >"$work/health"
# drains REASON: the guide's health check drains n2, which is put right; drains_not WHAT
drains()
{
	capture on_node n2 env SLURMD_NODENAME=n2 sh "$work/health"
	capture on_cluster scontrol show node n2
	prints "Reason=slurm-ddp: $1" "the guide's health check drains the node: $1"
	on_cluster scontrol update NodeName=n2 State=RESUME
}
drains_not()
{
	capture on_node n2 env SLURMD_NODENAME=n2 sh "$work/health"
	capture on_cluster scontrol show node n2
	prints_not 'Reason=' "the guide's health check leaves $1 alone"
}

# It takes srun 20 s to be sure of a node without the plugin while the step runs.
as_user srun --ddp -N3 -n3 sleep 100 >"$work/runs" 2>&1 &
runs=$!

named='ddp: no report from n2 \(1 of 3 nodes\): the plugin spank_ddp is absent on this node, or older than srun'
for list in check check=json; do
	capture as_user srun --ddp=$list -N3 -n3 sh -c 'echo ran'
	fails_without_hanging "--ddp=$list fails where a node has no plugin"
	prints_not '^ran$' "and runs nothing, there neither"
	prints "$named" "srun names the node"
	prints 'execve\(\): ddp: the plugin spank_ddp is absent on this node' "which says so, too"
done
prints_times 2 '"name":"RANK"' "the others' variables are shown"
printf '* sh -c "echo ran"\n' >"$work/programs"
capture as_user srun --ddp=check -N3 -n3 --multi-prog "$work/programs"
fails_without_hanging "the same with --multi-prog"
prints_not '^ran$' "of which nothing runs either"
prints "$named" "and the node is named"
capture as_user srun --ddp=check -N1 sh -c 'echo ran' : --ddp=check -N1 sh -c 'echo ran'
fails_without_hanging "a dry run of several components is refused"
prints 'for a step of one component' "in words"
prints_not '^ran$' "and runs nothing"
capture as_user srun --bcast="$work/copy" --ddp=check -N1 -n1 true
fails_without_hanging "a dry run with --bcast is refused"
prints 'starts no program, so --bcast' "in words"
prints_not 'core dumped|Aborted|free' "and srun does not abort"
capture as_user srun --ddp=check -N2 -w n0,n1 -n2 true
status_is 0 "a dry run on nodes with the plugin is a success"
prints_not 'no report' "of which nobody is named"

capture as_user srun --ddp -N3 -n3 sleep 0.5
status_is 1 "a step that has ended well, but on a node without the plugin, has failed"
prints_times 1 "$named" "srun names the node"
capture as_user srun --ddp=absent=warn -N3 -n3 sleep 0.5
status_is 0 "absent=warn: it has not"
prints_times 1 "$named" "but the node is named"
capture as_user srun --ddp -N3 -n3 sh -c 'case $RANK in [0-9]) sleep 1 ;; *) exit 9 ;; esac'
status_is 9 "a program that fails there has its code"
prints_times 1 "$named" "and the node is named"
capture as_user srun --ddp -N1 -n1 sleep 0.5 : --ddp -N2 -n2 sleep 0.5
prints_times 1 "$named" "so it is where a component has it"

capture as_user srun --ddp -w n2 -n1 sh -c 'sleep 0.5; echo "RANK=$RANK"'
prints '^RANK=srun --ddp was asked for, but the plugin spank_ddp is absent on this node$' \
	"a node without the plugin leaves a sentence for a rank"
prints 'ddp: no report from n2 \(1 of 1 nodes\)' "and srun says why"
capture as_user srun --ddp -w n2 -n1 /usr/bin/python3 -c 'import os; int(os.environ["RANK"])'
fails_without_hanging "which no framework takes for a number"
prints 'ValueError.*absent on this node' "and shows"
capture as_user srun --ddp=launcher -w n2 -n1 printenv PET_NNODES
prints 'absent on this node' "the same for torchrun"
capture as_user srun --ddp -w n2 -n1 sh -c 'echo "$DDP_REQUESTED $SLURM_JOB_ID.$SLURM_STEP_ID ${DDP_PLUGIN_VERSION-none}"'
prints '^([0-9]+\.0) \1 none$' "the library can tell: requested for this very step, and no plugin"
capture as_user srun --ddp --export=NONE -w n2 -n1 /usr/bin/env
prints '^SLURM_DDP_KEY=' "under --export=NONE the key is still there unused"
prints_not '^(RANK|DDP_PLUGIN_VERSION)=' "and no rank"
capture as_user srun -w n2 -n1 env
prints_not '^(RANK|DDP_REQUESTED|SLURM_DDP_KEY)=' "a step without --ddp is left alone"

wait $runs
status=$? output=$(cat "$work/runs")
status_is 1 "srun ends a step that runs on a node without the plugin, with a code of its own"
prints_times 1 "$named" "and names the node once"

# A program with libddp says which node. The examples are there or not.
if [ -x "$prefix/bin/allreduce" ]; then
	capture as_user srun --ddp=timeout=10 -N3 -n3 "$prefix/bin/allreduce"
	fails_without_hanging "a program with libddp fails"
	prints 'plugin spank_ddp is absent on this node, n2' "and names the node"
else
	skip "a program with libddp names the node" "no allreduce in this build"
fi
# What the guide has for a site's TaskProlog, as a user's.
recipe 'Ends a task' >"$work/prolog"
chmod 755 "$work/prolog"
capture as_user srun --ddp --task-prolog="$work/prolog" -w n2 -n1 sh -c 'echo ran'
fails_without_hanging "the guide's prolog of tasks ends a task there"
prints 'error: n2: task 0: Killed' "and srun names the node"
prints_not '^ran$' "before its program starts"
capture as_user srun --ddp --task-prolog="$work/prolog" -w n1 -n1 sh -c 'echo ran'
prints '^ran$' "but not where the plugin is"
capture as_user srun --task-prolog="$work/prolog" -w n2 -n1 sh -c 'echo ran'
prints '^ran$' "nor a task without --ddp"
drains 'the plugin is absent'
on_node n2 umount "$cluster/plugstack.conf"
drains_not "a node with the plugin"
capture as_user srun --ddp -w n2 -n1 printenv RANK
prints '^0$' "with its plugin back the node serves again"

# A line that the site got wrong: refused where it is used, and only there.
printf 'optional %s prot=1\n' "$cluster/spank_ddp.so" >"$work/wrong.conf"
on_node n2 mount --bind "$work/wrong.conf" "$cluster/plugstack.conf"
capture as_user srun --ddp -w n2 -n1 true
fails_without_hanging "a wrong plugstack line on a node is an error of the step"
prints "ddp: n2: the site's plugstack line for spank_ddp.so: unknown key 'prot'" "that names the node and the key"
capture grep -c "error: .*ddp: the site's plugstack line.*unknown key 'prot'" "$cluster/log/n2.slurmd.log"
status_is 0 "and an error in the node's log"
capture as_user srun -w n2 -n1 true
status_is 0 "steps without --ddp run there"
prints_not 'ddp:' "of which their users hear nothing"
capture batch_job -w n2 -o /dev/null --wrap true
status_is 0 "and batch jobs"
drains 'its line in the plugstack is wrong'
on_node n2 umount "$cluster/plugstack.conf"

# A site's switch for an incident, on a node and in srun.
printf 'optional %s off\n' "$cluster/spank_ddp.so" >"$work/off.conf"
on_node n2 mount --bind "$work/off.conf" "$cluster/plugstack.conf"
capture as_user srun --ddp -N2 -w n1,n2 -n2 sleep 30
fails_without_hanging "off in a node's line ends a step of --ddp"
prints 'ddp: n2: the administrator has switched --ddp off' "and the node is named"
capture as_user srun --ddp=off -w n2 -n1 sh -c 'echo "RANK=$RANK"'
prints '^RANK=$' "a step that takes --ddp back runs there"
drains_not "a node with off in its line"
on_node n2 umount "$cluster/plugstack.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/off.conf|" "$cluster/slurm.conf" >"$work/slurm.conf"
capture as_user env SLURM_CONF="$work/slurm.conf" srun --ddp -n1 sh -c 'echo ran'
fails_without_hanging "off in srun's line refuses --ddp"
prints_not '^ran$' "before anything runs"
prints 'the administrator has switched --ddp off' "in words"
capture as_user env SLURM_CONF="$work/slurm.conf" sbatch --ddp --wrap true
fails_without_hanging "sbatch refuses it, too"
capture as_user env SLURM_CONF="$work/slurm.conf" srun -n1 true
status_is 0 "other steps run"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/wrong.conf|" "$cluster/slurm.conf" >"$work/slurm.conf"
capture as_user env SLURM_CONF="$work/slurm.conf" srun --ddp -n1 true
fails_without_hanging "the same in srun"
prints "unknown key 'prot'" "by name"

# required instead of optional, for a site that wants it so.
printf 'required %s\n' "$cluster/spank_ddp.so" >"$work/required.conf"
for line in optional required; do
	[ $line = optional ] || on_node n2 mount --bind "$work/required.conf" "$cluster/plugstack.conf"
	capture as_user srun --ddp -w n2 -n1 printenv RANK
	prints '^0$' "a plugin that is $line serves"
	capture as_user srun --ddp=port=40000-40010 -w n2 -n1 echo ran
	fails_without_hanging "its error ends the step"
	prints_not '^ran$' "and nothing runs without ranks"
	[ $line = optional ] || on_node n2 umount "$cluster/plugstack.conf"
done

capture "$source/slurm/cluster" status --dir "$cluster"
prints_not 'drain|down|fail' "no node was drained"

done_testing
