#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 2
# seconds: 180
# The check for ReFrame runs as a site would run it, where there is a reframe (pip install reframe-hpc). REFRAME names it.
. "$source/tests/cluster/lib.sh"

read -r -a reframe <<<"${REFRAME:-reframe}"
command -v "${reframe[0]}" >/dev/null || skip_all "there is no reframe (pip install reframe-hpc; REFRAME names it)"
mkdir -p "$work/out"
chmod 777 "$work/out"
cp "$source/slurm/packaging/reframe/slurm_ddp.py" "$work/slurm_ddp.py"
cat >"$work/site.py" <<'END'
site_configuration = {
    "systems": [{
        "name": "throwaway", "hostnames": [".*"],
        "partitions": [{"name": "nodes", "scheduler": "squeue", "launcher": "srun", "environs": ["builtin"]}],
    }],
    "environments": [{"name": "builtin"}],
}
END
limit=150
# run OPTION...: the checks
run() { capture as_user env HOME="$work/out" "${reframe[@]}" -C "$work/site.py" -c "$work/slurm_ddp.py" --prefix "$work/out" --nocolor -r "$@"; }
run -n DdpRanks -n DdpFailure
status_is 0 "the checks pass"
prints 'PASSED.* Ran 2/2 test case\(s\)' "both of them"
run -n DdpRanks -S tasks_per_node=1 -S ddp_options=off
prints 'FAILED.* Ran 1/1 test case\(s\)' "a site without ranks does not pass"
done_testing
