# SPDX-License-Identifier: Apache-2.0
# SLURM suspends a job, and a rank is killed meanwhile. A test of a cluster reads this behind ranks.sh.
# shellcheck shell=bash disable=SC2154 # ranks.sh sets the others
afresh
rm -f pid
on_rank 0 3 'echo $$ >pid'
begin --ddp=restart=1 -w 'n[0-1]' --ntasks-per-node=2 --job-name=suspended
up 0 4
wait_until 10 test -s pid
job=$(on_cluster squeue -h -n suspended -o %i)
on_cluster scontrol suspend "$job"
# T: SLURM has stopped them. D: it has frozen their control group, and a frozen process ends when it is thawed.
states() { on_node n1 ps -C ddp-agent,ddp-witness -o state= | xargs; }
all_rest() { [[ $(states) == @("T T T"|"D D D") ]]; }
check "a suspended job: its agents are stopped" wait_until 20 all_rest
on_node n1 kill -9 "$(cat pid)"
if [ "$(states)" = "D D D" ]; then
	ok "a suspended job: a frozen rank cannot end"
else
	check "a suspended job: a rank that is killed restarts the step" wait_until 20 grep -qE "$line" out
fi
sleep 2
check "a suspended job: no program begins" test ! -e up.1.0 -a ! -e up.1.3
on_cluster scontrol resume "$job"
up 1 4
finish
status_is 0 "a suspended job: when it is resumed, the next generation begins"
