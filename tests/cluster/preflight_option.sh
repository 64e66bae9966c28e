#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# seconds: 240
# --ddp=preflight: ddp-preflight runs on the step's nodes before its programs, which then start, do not start, or start
# elsewhere.
. "$source/tests/cluster/lib.sh"

tool=$prefix/bin/ddp-preflight
[ -x "$tool" ] || "$build/libtool" --mode=install install -c "$build/libruntime/preflight/ddp-preflight" "$tool" \
	>"$work/install.log" 2>&1
# A preflight takes half a second of each rank's processor. Where what it measures is not the point, srun finds a program
# that says what the file `odd` does, and writes down its ranks.
mkdir "$work/answers"
cat >"$work/answers/ddp-preflight" <<END
#!/bin/sh
echo "\$RANK of \$WORLD_SIZE on \$SLURMD_NODENAME" >>"$work/measured"
[ "\$RANK" = 0 ] && read -r count nodes list <"$work/odd" || exit 0
[ "\$count" = 0 ] || echo "ODD: \$list" >&2
echo "\$count \$nodes \$list"
END
chmod 755 "$work/answers/ddp-preflight"
# finds COUNT NODES LIST: so many things are odd, on so many nodes
finds() { echo "$*" >"$work/odd"; : >"$work/measured"; chmod 666 "$work/odd" "$work/measured"; }
export PATH=$prefix/bin:$PATH

# ranks [OPTION...]: a step that says where its ranks are
ranks()
{
	limit=120 capture as_user env PATH="$PATH" srun "$@" sh -c 'echo rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME'
}

# ---- the program itself ---------------------------------------------------------------------

ranks --ddp=preflight -N4 --ntasks-per-node=1
status_is 0 'where nothing is odd, the programs run'
prints_times 4 '^rank [0-3] of 4 on n[0-3]$' 'all of them'
prints_not 'ODD|could not measure|ddp-preflight' 'and nothing is said'

# A node whose shared memory is smaller than that of the others. The answer of ddp-preflight comes to srun without labels.
on_node n1 mount -o remount,size=20m /dev/shm
export SLURM_LABELIO=1
ranks --ddp=preflight=exclude,restart=1,spare=1 --label -N4 --ntasks-per-node=1
unset SLURM_LABELIO
status_is 0 'preflight=exclude starts the programs'
prints 'ODD: +n1: /dev/shm has 20 MiB free, and 1 ranks? may need 64 MiB' 'says what is odd'
prints_times 3 'rank [0-2] of 3 on n[023]$' 'on other nodes than the odd one'
prints 'ddp: preflight=exclude: n3 takes the place of n1 \(0 spares left\)' 'and says who takes its place'
on_node n1 mount -o remount,size=50% /dev/shm

# ---- what srun makes of its answer -----------------------------------------------------------

PATH=$work/answers:$PATH
finds 1 1 n1
ranks --ddp=preflight -N4 --ntasks-per-node=1
status_is 0 'preflight warns only'
prints '^ODD: n1' 'of an odd node'
prints_times 4 '^rank [0-3] of 4 on n[0-3]$' 'and the programs run'

ranks --ddp=preflight=stop -N4 --ntasks-per-node=1
status_is 1 'preflight=stop ends srun'
prints '^ODD: n1' 'which names what is odd'
prints 'ddp: ddp-preflight has found 1 thing odd, and preflight=stop does not let the step start' 'and why'
prints_not '^rank' 'and no program runs'

finds 3 2 n1,n2
ranks --ddp=preflight=exclude,restart=1,spare=1 -N4 --ntasks-per-node=1
status_is 1 'more odd nodes than spares end srun'
prints 'ddp: ddp-preflight has found 2 nodes odd \(n1,n2\), which is more than the 1 of spare=' 'which says so'

# ---- in an allocation, with the step's own layout ---------------------------------------------

# What is measured is the step's nodes alone.
finds 0 0
limit=120 capture as_user env PATH="$PATH" salloc -Q -N4 \
	srun --ddp=preflight=stop -N2 -w n2,n3 --ntasks-per-node=1 sh -c 'echo rank $RANK on $SLURMD_NODENAME'
status_is 0 'a step on some nodes of its allocation starts'
prints_times 2 '^rank [01] on n[23]$' 'and runs there'
same '0 of 2 on n2,1 of 2 on n3' "$(sort "$work/measured" | paste -s -d ,)" 'ddp-preflight was there, and nowhere else'

# The step that does not start leaves its resources.
cat >"$work/batch" <<END
#!/bin/sh
srun --ddp=preflight=stop --ntasks-per-node=2 sh -c 'echo first \$RANK of \$WORLD_SIZE'
echo '1 1 n1' >"$work/odd"
srun --ddp=preflight=stop --ntasks-per-node=2 sh -c 'echo stopped \$RANK of \$WORLD_SIZE'
echo "it ended with \$?"
srun --ddp --ntasks-per-node=2 sh -c 'echo second \$RANK of \$WORLD_SIZE'
END
chmod 755 "$work/batch"
finds 0 0
capture batch_job -N2 -w n0,n1 --ntasks-per-node=2 --export=ALL --chdir="$work" --output="$work/batch.out" "$work/batch"
output+=$'\n'$(cat "$work/batch.out")
status_is 0 'it works in a batch script'
prints_times 4 '^first [0-3] of 4$' 'before a step of several tasks on each node'
same '2 0 of 4 on n0,2 1 of 4 on n0,2 2 of 4 on n1,2 3 of 4 on n1' \
	"$(sort "$work/measured" | uniq -c | sed 's/^ *//' | paste -s -d ,)" 'by as many ranks, before each step that asks for it'
prints '^it ended with 1$' 'a step that may not start ends'
prints_not '^stopped' 'without its programs'
prints_times 4 '^second [0-3] of 4$' 'and the next one finds its processors free'

# Where the program is missing.
limit=120 capture as_user env PATH=/usr/bin:/bin srun --ddp=preflight -N2 --ntasks-per-node=1 sh -c 'echo rank $RANK'
status_is 0 'without ddp-preflight the programs run'
prints 'ddp: ddp-preflight could not measure: ' 'after a warning'
limit=120 capture as_user env PATH=/usr/bin:/bin srun --ddp=preflight=stop -N2 --ntasks-per-node=1 sh -c 'echo rank $RANK'
status_is 1 'but not with preflight=stop'
prints 'ddp: ddp-preflight could not measure, and preflight=stop wants it to: ' 'which says so'
capture as_user srun --ddp=preflight=exclude -N2 true
status_is 255 'preflight=exclude without spares is refused'
prints "'preflight=exclude' needs spares" 'by name'
done_testing
