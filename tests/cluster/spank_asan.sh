#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 180
# all: cluster
# The plugin under AddressSanitizer and UBSan inside real slurmstepds, where
# it runs as root, and inside srun.
. "$source/tests/cluster/lib.sh"

library=$(gcc -print-file-name=libasan.so)
[ -e "$library" ] || skip_all "gcc has no libasan"
library=$(realpath "$library")
own=$work/cluster
# A cluster's folder has a short path; its sockets need that.
short=/run/slurm-ddp/asan-$$
trap '"$source/slurm/cluster" stop --dir "$short" >/dev/null 2>&1' EXIT
mkdir -m 1777 "$own"
# shellcheck disable=SC2054 # commas are gcc's
sanitizers=(-g1 -O0 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all)

readarray -t sources < <(find "$source/spank" -name '*.c' -not -path '*/status/*')
check "the plugin builds with sanitizers" gcc -std=gnu11 -shared -fPIC -fvisibility=hidden "${sanitizers[@]}" \
	-include "$build/config.h" -I"$build" -I"$source/libruntime/include" -I"$source/libruntime" -I"$source" \
	"${sources[@]}" -Wl,-z,nodelete -Wl,--version-script="$source/spank/spank_ddp.map" -o "$own/spank_ddp.so"
# Lets nobody into the sanitizer's allocator while slurmstepd forks a task.
check "what lets it fork builds" gcc -O1 -D_GNU_SOURCE -shared -fPIC "$source/tests/cluster/asan_fork.c" -o "$own/asan_fork.so"
library=$own/asan_fork.so:$library
# Slurm itself leaks at exit, and its plugins' symbols overlap: not our concern.
export ASAN_OPTIONS="detect_leaks=0:detect_odr_violation=0:log_path=$own/report:verify_asan_link_order=0:abort_on_error=1"
check "a cluster starts with it" "$source/slurm/cluster" start --dir "$short" --nodes 2 --for $$ \
	--plugin "$own/spank_ddp.so" --slurmd-env "LD_PRELOAD=$library" --slurmd-env "ASAN_OPTIONS=$ASAN_OPTIONS"
cluster=$short

# The command runs in the head, with the library for srun only.
sanitized() { as_user env LD_PRELOAD="$library" ASAN_OPTIONS="$ASAN_OPTIONS" "$@"; }

capture on_node n0 sh -c 'for p in /proc/[0-9]*; do
	case $(tr "\0" " " <$p/cmdline 2>/dev/null) in slurmd*) grep -c libasan $p/maps; exit;; esac; done'
prints '^[1-9]' "slurmd, and what it starts, carry the sanitizer"

capture sanitized srun --ddp=verbose,timeout=9,trace=/tmp,bucket-mb=1 -N2 -n4 env
prints_times 4 '^RANK=' "a step runs"
sanitized srun --ddp -w n0 -n2 -m cyclic sh -c ": >$work/started; sleep 1000" &
wait_until 20 test -e "$work/started"
capture on_node n0 sh -c 'for p in /proc/[0-9]*; do
	case $(tr "\0" " " <$p/cmdline 2>/dev/null) in slurmstepd*) grep -c spank_ddp.so $p/maps; grep -q libasan $p/maps && echo both;; esac; done'
prints '^both$' "slurmstepd carries the plugin and the sanitizer"
on_cluster scancel --user 65534
wait
capture sanitized srun --ddp=check -N2 -n4 true
prints_times 4 '^rank ' "the dry run runs"
capture sanitized srun --ddp=launcher -N2 -n2 env
prints_times 2 '^PET_NNODES=' "launcher runs"
capture sanitized srun --ddp -N2 --ntasks-per-node=2 sh -c 'if [ $RANK = 2 ]; then exit 9; fi; sleep 30'
prints 'ddp: rank 2 of 4 on n1 exited with code 9' "a failure is reported"
capture sanitized srun --ddp -N2 -n2 sh -c 'if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 30'
prints 'ddp: rank 1 of 2 on n1 was killed by signal 9' "a killed rank is reported"
capture sanitized srun --ddp=port=40000-40010 -N2 -n2 true
fails_without_hanging "a refusal is a refusal"
capture sanitized srun --ddp=nonsense true
fails_without_hanging "and so is srun's"
printf '#!/bin/sh\n#SBATCH -N2 -n2 --ddp\nsrun true\n' >"$work/script"
capture batch_job -o /dev/null "$work/script"
status_is 0 "a batch job runs"
capture sanitized srun --ddp --mpi=none -N1 -n1 true : --mpi=none -N1 -n2 true
status_is 0 "a heterogeneous step runs"

reports=$(cat "$own"/report* 2>/dev/null)
output=$reports
same "" "$(head -n 3 <<<"$reports")" "no sanitizer has anything to report"
capture "$source/slurm/cluster" status --dir "$short"
prints_not 'drain|down|fail' "no node was drained"

done_testing
