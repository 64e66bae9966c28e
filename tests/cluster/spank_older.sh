#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 3
# While a release is rolled out: srun's plugin beside an older one on a node, and the other way
# round. The older one is built from the repository, which a shallow clone does not have.
. "$source/tests/cluster/lib.sh"

older=207d807 # of 0.2, before nodes' messages had any other form
git -C "$source" cat-file -e "$older^{commit}" 2>/dev/null || skip_all "this clone has no commit $older"
mkdir "$work/older" && git -C "$source" archive $older spank libruntime | tar -C "$work/older" -xf -
(
	cd "$work/older" || exit 1
	sed -i 's/{ "watch"/{ "no-key"/' spank/options.c # so that there is a key that this plugin does not have
	gcc -std=gnu11 -shared -fPIC -fvisibility=hidden -include "$build/config.h" -Ilibruntime -I. spank/*.c spank/*/*.c \
		-Wl,-z,nodelete -Wl,--version-script=spank/spank_ddp.map -o "$work/older.so"
) || skip_all "the plugin of $older does not build here"

# Other tests share the cluster, so it is put right whatever happens here.
trap 'on_node n2 umount "$cluster/plugstack.conf" 2>/dev/null; [ ! -e "$work/plugstack.conf" ] || cp "$work/plugstack.conf" "$cluster/plugstack.conf"' EXIT
printf 'optional %s\n' "$work/older.so" >"$work/older.conf"
chmod 755 "$work/older.so"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/older.conf|" "$cluster/slurm.conf" >"$work/slurm.conf"

# try NAME COMMAND...: a step of three nodes by that srun
try()
{
	local name=$1 rank
	shift
	# shellcheck disable=SC2016 # the tasks expand these
	capture as_user "$@" --ddp -N3 -n3 sh -c 'echo "rank $RANK of $WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT $DDP_KEY"'
	status_is 0 "$name: a step runs"
	same '3 1' "$(grep -c '^rank [0-2] of 3, ' <<<"$output") $(grep "^rank " <<<"$output" | cut -d " " -f 3- | sort -u | wc -l)" \
		"$name: its ranks have one world, master and key"
	for rank in 0 2; do
		# shellcheck disable=SC2016
		capture as_user "$@" --ddp -N3 -n3 sh -c '[ $RANK != '$rank' ] || exit 7; exec sleep 30'
		status_is 7 "$name: rank $rank fails, and srun exits with its code"
		prints_times 1 "ddp: rank $rank of 3 on n$rank exited with code 7" "$name: it is named, once"
		if [ "$took" -lt "$(stretched 15)" ]; then ok "$name: the others are ended"; else not_ok "$name: the others are ended" "after $took s"; fi
	done
}
try "an older srun" env SLURM_CONF="$work/slurm.conf" srun
on_node n2 mount --bind "$work/older.conf" "$cluster/plugstack.conf"
# An older node does not report, as one without the plugin.
silent="ddp: no report from n2 \(1 of 3 nodes\): the plugin spank_ddp is absent on this node, or older than srun's"
capture as_user srun --ddp -N3 -n3 sleep 0.5
status_is 1 "an older node: a step beside newer ones is refused"
prints_times 1 "$silent" "and the node is named"
capture as_user srun --ddp=check -N3 -n3 sleep 0.5
status_is 0 "an older node: a dry run is a success"
prints_times 3 '^rank [0-2]/3 ' "with all rows"
cp "$cluster/plugstack.conf" "$work/plugstack.conf"
# In place: another file of that name would take n2's away.
sed '/spank_ddp.so/s/$/ absent=warn/' "$work/plugstack.conf" >"$cluster/plugstack.conf"
capture as_user srun --ddp -N3 -n3 sleep 0.5
prints_times 1 "$silent" "and absent=warn in srun's line: the node is named"
try "an older node, and absent=warn" srun
prints_not 'unknown key' "of which the older node does not hear"
cp "$work/plugstack.conf" "$cluster/plugstack.conf"
capture as_user srun --ddp=watch -N3 -n3 sleep 30
fails_without_hanging "a key that an older node does not have ends the step"
prints_times 1 "ddp: .*unknown key 'watch'" "and is named"
on_node n2 umount "$cluster/plugstack.conf"

# What doc/rollout.md says of jobs that wait: which of them ask for --ddp.
capture as_user sbatch --parsable --hold -o /dev/null --wrap true
plain=$output
capture as_user sbatch --parsable --hold --ddp -o /dev/null --wrap true
asking=$output
capture on_cluster sh -c "$(sed -n '/^ *cd .*StateSaveLocation/,/^ *grep /p' "$source/doc/rollout.md")"
prints "/job\.$asking/" "a queued job that asks for --ddp is found as the guide says"
prints_not "/job\.$plain/" "and no other"
capture as_user scancel "$plain" "$asking"

# What it says of a trial, where the site's own files do not name the plugin.
mkdir -m 777 "$work/home"
: >"$work/site.conf"
plugin=$(sed -n 's/^optional \([^ ]*\).*/\1/p' "$cluster/plugstack.conf")
capture as_user env HOME="$work/home" sh -ec "$(sed -n '/^ *sed .*PlugStackConfig/,/^ *SLURM_CONF=.*srun/p' "$source/doc/rollout.md" |
	sed "s|/etc/slurm/slurm.conf|$cluster/slurm.conf|; s|/etc/slurm/plugstack.conf|$work/site.conf|; s|spank_ddp\.so|$plugin|; s|-p PARTITION||; s|NODES|3|")"
status_is 0 "with the guide's copies of slurm.conf and plugstack.conf one user's srun has the plugin"
prints_times 3 '^rank [0-2]/3 ' "and prints a line for each node"
done_testing
