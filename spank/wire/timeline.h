/* SPDX-License-Identifier: Apache-2.0 */
/* All delays after the end of a task, in milliseconds. How often a loop looks is defined beside
   the loop.

        0  The task has ended. A thread of slurmstepd learns this from the kernel (ends.h).
           It waits SETTLE_MS. Meanwhile the other parts of the same event become visible: the
           ends of the node's other tasks, and the signal that Slurm may be sending to one
           process after the other.
      100  The node tells srun. If srun runs, it answers within a millisecond; CONNECT_MS and
           REPLY_MS are limits for the case that it is gone or cannot run.
           srun then waits HOLD_MS for news of an earlier failure, or that the step is stopping.
           Within that time the nodes see the consequences of a failure.
           It also asks all nodes, over their links, whether they have told of all ends that they
           have seen. On a busy machine a node may be later than HOLD_MS, and then srun waits for its
           answer, for nodes that have not reported yet, and for slurmctld's word about a node whose
           tasks it may have killed, but no longer than ASK_MS. A node that has not reported ASK_MS
           after the last task's start probably lacks the plugin, and is not waited for.
           With restart=, ranks that survive others do not end because of them: srun then waits HOLD_SURVIVED_MS
           instead of HOLD_MS.
      350  srun prints the sentence, and asks slurmctld once to end the step.
     1600  If only other ranks have told that a rank did not come in time, or that it leaves, srun waits
           TIMEOUT_HOLD_MS before it prints this. A Python program that has raised may take a second to end.
           All ranks that have waited for the missing rank give up at about the same time, but their programs
           may then take long to end. And only its own node knows what the missing rank is doing.
     5350  If srun still waits for the step AGAIN_MS after it asked to end it, it asks again, then
           after twice that time, and so on: Slurm loses a request that comes while it launches
           a component.
    grace  If a task has ended as if it had been asked to stop, srun ends the rest of the step
           after grace=, or after KillWait without grace=. Without grace= it first asks slurmctld:
           a job that is being preempted has its GraceTime; and if SIGNAL_SECONDS or less are
           left, --signal may have granted them, so srun leaves the job to Slurm, which ends it
           soon.
     loss  If a task still runs LOSS_MS after the witness and its keeper were killed, it was not
           Slurm that killed them, because Slurm kills all. The keeper also waits LOSS_MS before it
           makes another witness. If a task was killed together with them, the node reports the
           task after SPARED_MS: by then every task has got Slurm's signal, and srun still hears of
           that task within HOLD_MS, before it reports the ranks that have lost it.
    doubt  If tasks were killed together with the node's witness, srun waits KillWait and DOUBT_MS
           before it reports that somebody other than Slurm has killed them. If it was Slurm,
           slurmctld has told srun, and srun is gone by then: it waits only KillWait and two
           seconds for the last node, however slow the node is.

   restart With restart=, srun tells the nodes to end all ranks where it would otherwise end the step, 350 ms after
           the first rank's end. If the other ranks survive, srun ends only what is left of dead ranks, after 150 ms.
           When the last node has answered, srun deals the next generation. On four nodes, the first lines of the new
           programs ran 360 to 440 ms after the first rank's end, without survivors.

   silent  If tasks have started on a node whose plugin has not reported, srun takes the plugin for
           absent there after SILENT_MS. A plugin reports beside the programs, usually within 100 ms, and at
           the latest before Slurm tells srun of the end of its node's last task. If srun does not answer,
           slurmstepd repeats the report each REPORT_MS, and less often after SILENT_MS. If another plugin prepares
           the tasks first, as Pyxis, which may fetch an image, srun only warns, after UNSURE_MS.

   If srun has not answered within CONNECT_MS or REPLY_MS, the node itself prints the sentence,
   DELIVERY_MS before its connection to srun may end. It asks slurmctld after ALONE_MS (or grace=),
   and for each node before it in the step ALONE_NODE_MS later, but at most ALONE_SPREAD_MS later. By
   then the first node's request has reached the other nodes, which then do not ask.

   At their end slurmstepd and srun wait at most JOIN_MS for slurmctld's answer.

   leave  When a node's tasks have ended, slurmstepd waits until srun lets it end, LEAVE_MS at most. srun does so at
           once, except if this is the last node whose tasks ran and another node has fallen silent, or is about to:
           that node first leaves the job. LEAVE_MS is well below SLURM's UnkillableStepTimeout (60 s). */
#pragma once

enum {
	SETTLE_MS = 100,
	CONNECT_MS = 150,
	REPLY_MS = 500,
	HOLD_MS = 250,
	HOLD_SURVIVED_MS = 50,
	ASK_MS = 1500,
	TIMEOUT_HOLD_MS = 1500,
	LOSS_MS = 400,
	SPARED_MS = 200,
	DOUBT_MS = 4000,
	AGAIN_MS = 5000,
	KILL_WAIT_SECONDS = 30, /* if Slurm does not say its KillWait: its default */
	SIGNAL_SECONDS = 3600, /* a step that is to be saved seldom wants to know earlier, and an end
	                          longer after a signal is none of its consequences */
	DELIVERY_MS = 60,
	ALONE_MS = 200,
	ALONE_NODE_MS = 250, /* the controller reaches all nodes within it */
	ALONE_SPREAD_MS = 3000,
	REPORT_MS = 1000,
	SILENT_MS = 20000,
	UNSURE_MS = 60000,
	JOIN_MS = 2000,
	LEAVE_MS = 20000,
};
