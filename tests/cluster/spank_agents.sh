#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 4
# cluster: --conf KillOnBadExit=1 --conf WaitTime=1 --conf KillWait=5
# seconds: 500
# A node's side of restart=: each task is an agent that starts programs, and nothing of a generation lives on. SLURM's
# own ways to end a step at a task's end, KillOnBadExit and WaitTime, see none.
. "$source/tests/cluster/lib.sh"

cd "$work" || exit 1
# Each rank leaves its environment, and a process that has left its session and its parent, before it does what the
# file of its generation and rank says. In the first generation all wait for one another.
{ echo "$no_process" && cat <<'END'; } >"$work/rank.sh"
g=$DDP_RESTART_COUNT
echo $$ >pid.$g.$RANK
tr '\0' '\n' </proc/$$/environ >env.$g.$RANK
cat pids.* 2>/dev/null >all.$g.$RANK
while read -r pid generation node; do
	[ "$node" != "$SLURMD_NODENAME" ] || [ "$generation" = "$g" ] || ! kill -0 "$pid" 2>/dev/null ||
		[ "$(cat /proc/$pid/comm)" = ddp-agent ] || echo "$pid of generation $generation" >>alive
done <all.$g.$RANK
[ -e no.daemons ] || (setsid sh -c '(echo $$ '$g' '$SLURMD_NODENAME' >>pids.'$g.$RANK'; trap "" TERM HUP; while :; do sleep 1000; done) &' &)
echo "$$ $g $SLURMD_NODENAME" >>pids.$g.$RANK
: >up.$g.$RANK
[ "$g" != 0 ] || until all=(up.0.*); [ ${#all[@]} = "$WORLD_SIZE" ]; do sleep 0.02; done
[ ! -e do.$g.$RANK ] || . ./do.$g.$RANK
[ ! -e wait.$g ] || until [ -e go.$g ]; do sleep 0.05; done
sleep 0.3
END
chmod 644 rank.sh

afresh() { rm -f no.daemons env.* pid.* all.* pids.* up.* do.* wait.* go.* alive prologs; }
# on_rank GENERATION RANK COMMANDS
# Others of the first generation wait meanwhile.
on_rank() { echo "$3" >"do.$1.$2"; : >wait.0; }
# agents: how many there are on all nodes; programs: how many ranks' shells and daemons
agents() { for i in 0 1 2 3; do on_node n$i pgrep -c -x ddp-agent; done | awk '{ n += $1 } END { print n + 0 }'; }
no_agents() { [ "$(agents)" = 0 ]; }
left() { for i in 0 1 2 3; do on_node n$i pgrep -f 'rank\.sh|trap "" TERM HUP' ; done | wc -l; }
none_left() { [ "$(left)" = 0 ]; }
# ranks_of GENERATION: those that began
ranks_of() { (ls up."$1".* 2>/dev/null || true) | sed 's/.*\.//' | sort -n | xargs; }
# restarts: the lines that tell of one
readonly restarts='^(srun: error: )?ddp: .*restart [0-9]+ of [0-9]+'
nothing_lives_on()
{
	if [ -e alive ]; then not_ok "$1: nothing of a generation lives on in the next one" "$(cat alive)"
	else ok "$1: nothing of a generation lives on in the next one"; fi
	check "$1: nor is anything left behind the step" wait_until 10 none_left
	check "$1: nor an agent" wait_until 10 no_agents
}

# ends NAME RANK COMMANDS: a rank of six ends so; the next generation ends well
ends()
{
	afresh
	on_rank 0 "$2" "$3"
	capture as_user srun --ddp=restart=2 -N3 --ntasks-per-node=2 bash -c '. ./rank.sh'
	status_is 0 "$1: the step ends well"
	prints_times 1 "$restarts" "$1: one line tells of the restart"
	prints "ddp: rank $2 of 6 on n$(($2 / 2)) $4.*restart 1 of 2" "$1: it names the rank and its end"
	same "0 1 2 3 4 5" "$(ranks_of 1)" "$1: all ranks start again"
	same "" "$(ranks_of 2)" "$1: once"
	nothing_lives_on "$1"
}

ends "by a signal" 3 'kill -9 $$' 'was killed by signal 9'
ends "by an exit code" 0 'exit 3' 'exited with code 3'

# ---- variables --------------------------------------------------------------------------------

# of GENERATION RANK NAME
of() { sed -n "s/^$3=//p" "env.$1.$2"; }
wrong=''
for r in 0 1 2 3 4 5; do
	[ "$(of 1 $r RANK) $(of 1 $r SLURM_PROCID) $(of 1 $r JAX_PROCESS_ID)" = "$r $r $r" ] || wrong+=" $r: rank"
	[ "$(of 1 $r SLURM_TASK_PID)" = "$(cat pid.1.$r)" ] || wrong+=" $r: pid"
	[ "$(of 1 $r MASTER_PORT)" = "$(of 1 0 MASTER_PORT)" ] && [ "$(of 1 $r DDP_KEY)" = "$(of 1 0 DDP_KEY)" ] || wrong+=" $r: port or key"
done
same "" "$wrong" "the variables of a generation agree"
if [ "$(of 0 0 MASTER_PORT)" != "$(of 1 0 MASTER_PORT)" ] && [ "$(of 0 0 DDP_KEY)" != "$(of 1 0 DDP_KEY)" ]; then
	ok "port and key are its own"
else
	not_ok "port and key are its own" "$(grep -hE '^(MASTER_PORT|DDP_KEY)=' env.[01].0)"
fi

# ---- what runs beside -------------------------------------------------------------------------

cat >prolog <<'END'
#!/bin/sh
echo "$DDP_RESTART_COUNT $RANK" >>prologs
echo "export FROM_PROLOG=$DDP_RESTART_COUNT.$RANK"
END
chmod 755 prolog
afresh
on_rank 0 1 'exit 1'
capture as_user srun --ddp=restart=1 -N2 --ntasks-per-node=1 --task-prolog="$work/prolog" bash -c '. ./rank.sh'
status_is 0 "with TaskProlog: the step ends well"
same "0 0;0 1;1 0;1 1" "$(sort prologs | tr '\n' ';' | sed 's/;$//')" "TaskProlog runs in each generation"
same "1.1" "$(of 1 1 FROM_PROLOG)" "and its variables reach the program"

afresh
on_rank 0 2 'exit 1'
capture on_cluster sh -c 'srun --ddp=restart=1 -N2 --ntasks-per-node=2 bash -c ". ./rank.sh"'
status_is 0 "as root, too"
nothing_lives_on "as root"

# Standard input ends.
printf 'a\nb\n' >lines
chmod 644 lines
# reads NAME WANTED COMMAND: what it prints
reads()
{
	capture as_user timeout 20 sh -c "$3"
	same "$2" "$output" "standard input: $1"
}
restarted='srun --ddp=restart=1 -N2 --ntasks-per-node=2'
reads "an empty pipe" 0 "true | $restarted cat | wc -c"
reads "a file" 8 "$restarted cat <lines | wc -l"
reads "one rank's" 2 "$restarted --input=2 cat <lines | wc -l"
printf '#!/bin/sh\n%s cat\n' "$restarted" >batch.sh
capture batch_job --output="$work/out" --chdir="$work" -N2 --ntasks-per-node=2 "$work/batch.sh"
same "0 0" "$status $(grep -c . out)" "standard input: a batch script's"

# An srun that a rank has started, which is given the time to end its step.
afresh
cat >inner.sh <<'END'
if [ $DDP_RESTART_COUNT = 1 ]; then
	cat inner.step | xargs scontrol show step >inner.left 2>&1
	exit 0
fi
[ $RANK = 0 ] || srun --overlap -N1 -n1 sh -c 'echo $SLURM_JOB_ID.$SLURM_STEP_ID >inner.new; mv inner.new inner.step; exec sleep 60'
until [ -e inner.step ]; do sleep 0.05; done
exit 7
END
rm -f inner.step inner.left
chmod 644 inner.sh
capture as_user srun --ddp=restart=1 -N2 --ntasks-per-node=1 sh inner.sh
status_is 0 "a rank that has started a step: the step ends well"
same 0 "$(grep -c State=RUNNING inner.left)" "the inner step does not outlive its generation"

# The first program leaves the terminal in another mode, and to its own process group.
cat >types.sh <<'END'
(until [ -e typed.0 ]; do sleep 0.1; done; echo 'stty -echo; kill -9 $$'
until [ -e typed.1 ]; do sleep 0.1; done; echo 'stty -a >typed.mode; exit'; sleep 1) |
	timeout 20 script -qec 'srun --pty --ddp=restart=1 -N1 bash --rcfile typed.rc -i' /dev/null
END
echo ': >typed.$DDP_RESTART_COUNT' >typed.rc
chmod 644 types.sh typed.rc
capture as_user bash types.sh
status_is 0 "--pty: the step ends well"
prints_not 'no job control' "--pty: the second shell has the terminal"
same echo "$(grep -ow -e '-*echo' typed.mode)" "--pty: in the mode of the first"

# What a site starts for each task serves one program.
if has_pmix; then
	afresh
	{ grep -v '^MpiDefault' "$cluster/slurm.conf"; echo MpiDefault=pmix; } >slurm.conf
	on_rank 0 1 'exit 1'
	capture as_user env SLURM_CONF="$work/slurm.conf" srun --ddp=restart=1 -N2 --ntasks-per-node=1 bash -c '. ./rank.sh'
	status_is 0 "MpiDefault=pmix: the step ends well"
	same "" "$(grep -hE '^(PMI|PMIX|PMI2)_' env.*)" "and its programs see nothing of PMIx"
	capture as_user srun --mpi=pmix --ddp=restart=1 -N2 --ntasks-per-node=1 true
	status_is 1 "who asks for PMIx is refused"
	prints 'the step cannot be restarted, as restart=1 asks for: --mpi' "in words"
else
	skip "MpiDefault=pmix" "no PMIx"
fi

# Each task's program is that of its number in the step.
printf '0-1 bash rank.sh\n' >programs
afresh
on_rank 0 1 'exit 1'
capture as_user srun --ddp=restart=1 -N2 --ntasks-per-node=1 --multi-prog programs
status_is 0 "--multi-prog: the step ends well"
prints_times 1 "$restarts" "--multi-prog: one line tells of the restart"
for key in spare=1 min-nodes=1; do
	capture as_user srun --ddp=restart=1,$key -N2 --ntasks-per-node=1 --multi-prog programs
	status_is 1 "--multi-prog with $key is refused"
	prints 'spare= and min-nodes= do not go together with --multi-prog' "in words"
done

# In place of torchrun
afresh
cat >launcher.sh <<'END'
g=$DDP_RESTART_COUNT
echo "$PET_NNODES $PET_NODE_RANK $PET_RDZV_ID ${RANK-none} $TORCHELASTIC_RESTART_COUNT" >launched.$g.$SLURM_PROCID
until [ -e launched.$g.0 ] && [ -e launched.$g.1 ]; do sleep 0.05; done
if [ "$g" = 0 ]; then
	[ "$SLURM_PROCID" != 1 ] || exit 5
	sleep 100
fi
END
capture as_user srun --ddp=restart=1,launcher -N2 --ntasks-per-node=1 bash launcher.sh
status_is 0 "launcher: the step ends well"
prints_times 1 "$restarts" "launcher: one line tells of the restart"
same "2 1 none" "$(cut -d ' ' -f 1,2,4 launched.1.1 | xargs)" "launcher: torchrun starts again"
if [ "$(cut -d ' ' -f 3 launched.0.1)" != "$(cut -d ' ' -f 3 launched.1.1)" ]; then ok "launcher: with a rendezvous of its own"
else not_ok "launcher: with a rendezvous of its own" "$(cat launched.*)"; fi

# Other plugins' task_init runs once in the agent if plugstack.conf names them before this plugin, and in each
# generation's program if it names them behind.
cat >order.c <<'END'
#include <stdio.h>
#include <unistd.h>
#include <slurm/spank.h>
SPANK_PLUGIN(NAME, 1)
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	FILE *file = ac > 0 ? fopen(av[0], "a") : NULL;
	(void)spank;
	return file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0 ? 0 : -1;
}
END
stack=$cluster/plugstack.conf
if gcc -shared -fPIC -DNAME=before order.c -o before.so && gcc -shared -fPIC -DNAME=behind order.c -o behind.so; then
	afresh
	rm -f before behind
	cp "$stack" stack
	{ echo "required $work/before.so $work/before"; cat stack; echo "required $work/behind.so $work/behind"; } >"$stack"
	on_rank 0 1 'exit 1'
	capture as_user srun --ddp=restart=1 -N2 --ntasks-per-node=1 bash -c '. ./rank.sh'
	cat stack >"$stack"
	status_is 0 "between other plugins: the step ends well"
	same "2 4" "$(wc -l <before) $(wc -l <behind)" "a plugin before prepares the task, and one behind each program"
	same "" "$(cat pid.1.* | while read -r pid; do grep -x "$pid" behind >/dev/null || echo "$pid"; done)" "in its process"
else
	skip "between other plugins" "no header of SLURM's"
fi

# ---- who dies -----------------------------------------------------------------------------------

# runs RANKS OPTIONS...: a step in the background, until all its ranks are up
runs()
{
	local ranks=$1
	shift
	: >wait.0
	as_user srun "$@" bash -c '. ./rank.sh' >out 2>&1 &
	srun=$!
	wait_until 30 sh -c "[ \$(ls $work/up.0.* | wc -l) = $ranks ]"
}
finishes() { status=0; wait $srun || status=$?; output=$(cat out); }

afresh
runs 6 --ddp=restart=2,spare=1 -N4 --ntasks-per-node=2
same 8 "$(agents)" "a spare's tasks are agents"
same "" "$(on_node n3 pgrep -f rank.sh)" "that wait"
on_node n1 pkill -KILL -o -x ddp-agent
finishes
status_is 0 "an agent is killed: the step ends well"
prints "restart 1 of 2.*n3 takes the place of n1" "the spare takes the node's place"
same "n3 n3" "$(of 1 2 SLURMD_NODENAME) $(of 1 3 SLURMD_NODENAME)" "with its ranks"
same "n0,n3,n2" "$(of 1 5 SLURM_STEP_NODELIST)" "in its place of the list"
nothing_lives_on "an agent is killed"

afresh
runs 6 --ddp=restart=2,spare=1 -N4 --ntasks-per-node=2
on_node n0 pkill -KILL -x slurmstepd
finishes
status_is_not 124 "a slurmstepd is killed: srun ends"
prints "restart 1 of 2.*n3 takes the place of n0" "the spare takes the node's place"
same "n3 n3" "$(of 1 0 SLURMD_NODENAME) $(of 1 0 MASTER_ADDR)" "and holds rank 0"
nothing_lives_on "a slurmstepd is killed"

afresh
runs 4 --ddp=restart=2 -N2 --ntasks-per-node=2
# shellcheck disable=SC2016 # there
on_cluster sh -c 'pkill -KILL -x srun'
finishes
check "srun is killed: the ranks end before another could take their places" wait_until 10 none_left
check "and the agents later" wait_until 30 no_agents

# ---- a stop ---------------------------------------------------------------------------------------

afresh
runs 4 --ddp=restart=2 -N2 --ntasks-per-node=2
on_cluster scancel --user nobody 2>/dev/null || on_cluster scancel --user 65534
finishes
prints_times 0 "$restarts" "scancel is followed by no restart"
same "" "$(ranks_of 1)" "no rank starts again"
nothing_lives_on "scancel"

# ---- without restart= -----------------------------------------------------------------------------

afresh
: >no.daemons
runs 4 --ddp -N2 --ntasks-per-node=2
same 0 "$(agents)" "without restart= there is no agent"
: >go.0
finishes
status_is 0 "and the step ends well"
done_testing
