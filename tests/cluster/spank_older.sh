#!/bin/bash
# nodes: 3
# While a release is rolled out: srun's plugin beside an older one on a node, and the other way
# round. The older one is built from the repository, which a shallow clone does not have.
. "$source/tests/cluster/lib.sh"

older=207d807 # of 0.2, before nodes' messages had any other form
git -C "$source" cat-file -e "$older^{commit}" 2>/dev/null || skip_all "this clone has no commit $older"
mkdir "$work/older" && git -C "$source" archive $older spank libruntime | tar -C "$work/older" -xf -
(
	cd "$work/older" || exit 1
	gcc -std=gnu11 -shared -fPIC -fvisibility=hidden -include "$build/config.h" -Ilibruntime -I. spank/*.c spank/*/*.c \
		-Wl,-z,nodelete -Wl,--version-script=spank/spank_ddp.map -o "$work/older.so"
) || skip_all "the plugin of $older does not build here"

# Other tests share the cluster, so it is put right whatever happens here.
trap 'on_node n2 umount "$cluster/plugstack.conf" 2>/dev/null' EXIT
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
	same '3 1' "$(grep -c '^rank [0-2] of 3, ' <<<"$output") $(cut -d " " -f 3- <<<"$output" | sort -u | wc -l)" \
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
try "an older node" srun
on_node n2 umount "$cluster/plugstack.conf"
done_testing
