#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# A plugin that was built for another release of Slurm: Slurm refuses it and goes
# on without it; slurm/cluster says so instead of starting.
. "$source/tests/cluster/lib.sh"

header=/usr/include/slurm/slurm_version.h
command -v gcc >/dev/null && [ -e $header ] || skip_all "gcc or Slurm's headers are missing"
tool=$source/slurm/cluster
own=/run/slurm-ddp/release-$$
trap '"$tool" stop --dir $own >/dev/null 2>&1' EXIT

# Slurm's own headers, but for the year in their version: 0x160508 becomes 0x150508.
year=$(sed -n 's/^#define SLURM_VERSION_NUMBER *0x\(..\).*/\1/p' $header)
mkdir -p "$work/include/slurm"
sed "s/^\(#define SLURM_VERSION_NUMBER *0x\)../\1$(printf %02x $((0x$year - 1)))/" $header \
	>"$work/include/slurm/slurm_version.h"
check "the plugin builds for another release" plugin_of_release "$work/include" "$work/other.so"
capture "$tool" start --dir $own --nodes 2 --for $$ --plugin "$work/other.so"
status_is 1 "a cluster does not start with it"
prints "^slurm/cluster: Slurm [0-9.]+ refuses the plugin $work/other.so: " "which names the release and the plugin"
prints "Incompatible .*\($((0x$year - 1))\." "gives Slurm's own reason"
prints 'configure --with-slurm=DIR' "and says what to do"
if [ -e $own ]; then not_ok "nothing is left of it"; else ok "nothing is left of it"; fi

printf 'no library\n' >"$work/broken.so"
capture "$tool" start --dir $own --nodes 2 --for $$ --plugin "$work/broken.so"
status_is 1 "nor with a file that is no plugin"
prints "refuses the plugin $work/broken.so" "which is named, too"

check "with the plugin of its own release it starts" "$tool" start --dir $own --nodes 2 --for $$ \
	--plugin "$build/spank/.libs/spank_ddp.so"
done_testing
