#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 240
# What is wrong is said, by a non-zero exit, without hanging.
. "$source/tests/cluster/lib.sh"
[ -x "$prefix/bin/allreduce" ] || skip_all "examples/allreduce is not built"
allreduce=$prefix/bin/allreduce
limit=40
# For ranks that come, but not at once.
seconds=$(stretched 5)

capture as_user srun --ddp -N2 --ntasks-per-node=2 "$allreduce" --count many
fails_without_hanging "a wrong option of the program"
prints 'count' "which is named"

capture as_user srun --ddp=colour=blue -N2 true
fails_without_hanging "an unknown key of --ddp"
prints 'colour' "which is named"

capture as_user srun --ddp -N2 --ntasks-per-node=2 "$prefix/bin/not-there"
fails_without_hanging "a program that is not there"

# One rank leaves before the others find it.
for mpi in pmix none; do
	[ $mpi = none ] || has_pmix || { skip "a rank that exits before it joins, --mpi=$mpi" "Slurm or libddp has no PMIx"; continue; }
	capture as_user srun --ddp --mpi=$mpi -N2 --ntasks-per-node=2 sh -c \
		'if [ $SLURM_PROCID = 3 ]; then exit 9; fi; exec "$0" --timeout $1' "$allreduce" "$((2 * seconds))"
	fails_without_hanging "a rank that exits before it joins, --mpi=$mpi"
	prints 'rank 3' "it is named, --mpi=$mpi"
done

# One rank never comes: the others give up in time and name it.
capture as_user srun --ddp=on-failure=continue --mpi=none -N2 --ntasks-per-node=2 sh -c \
	'if [ $SLURM_PROCID != 3 ]; then "$0" --timeout $2; code=$?; : >"$1/gave_up.$SLURM_PROCID"; exit $code; fi
	until [ "$(ls "$1"/gave_up.* | wc -l)" = 3 ]; do sleep 0.1; done' "$allreduce" "$work" "$seconds"
fails_without_hanging "a rank that never joins"
prints 'rank 3' "it is named"

# Its port is taken, so that ranks meet at another one.
cat >"$work/occupy.pl" <<'END'
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(Listen => 1, LocalPort => 4999) or die "listen: $!";
open my $mark, ">", "$ARGV[0]/occupied" or die;
sleep;
END
capture as_user srun --ddp=port=4999 --mpi=none -N2 --ntasks-per-node=1 sh -c '
	if [ $SLURM_PROCID = 0 ]; then perl "$1/occupy.pl" "$1" & fi
	until [ -e "$1/occupied" ]; do sleep 0.1; done
	"$0" --timeout $2; code=$?; kill $!; exit $code' "$allreduce" "$work" "$seconds"
status_is 0 "a port that is in use is no obstacle"

# Ranks that did not ask for the plugin, and have no PMIx, train no worlds of one.
capture as_user srun --mpi=none -N2 --ntasks-per-node=1 "$allreduce" --count 10
fails_without_hanging "neither --ddp nor PMIx"
prints 'srun --ddp' "what to do is said"

done_testing
