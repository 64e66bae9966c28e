/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long what may take when a task ends, in milliseconds: all of it is here. How
 * often a loop looks stands beside the loop.
 *
 *      0  The task has ended. A thread of slurmstepd learns so from the kernel (ends.h).
 *         SETTLE_MS: what belongs to the same event becomes visible, too: the
 *         ends of the node's other tasks, and the signal that Slurm is just
 *         handing to one process after the other.
 *    100  The node tells srun. An srun that is there answers within a
 *         millisecond; CONNECT_MS and REPLY_MS are for one that is not, or that
 *         is kept from running.
 *         HOLD_MS: srun waits for news of an earlier failure, or that the step is
 *         stopping. The nodes see the consequences of a failure within it.
 *    350  srun says the sentence, and asks slurmctld once to end the step.
 *   1600  TIMEOUT_HOLD_MS after it was told, srun says that a rank did not come in
 *         time, if only ranks of other nodes have told so. All that waited for it
 *         give up at about the same time, but a program may take long to end then;
 *         and only its own node knows what the missing rank is doing.
 *   5350  AGAIN_MS after srun asked for the step's end, it asks again if it still
 *         waits for the step, then after twice that, and so on: Slurm loses a
 *         request that comes while it launches a component.
 *  grace  grace=, or without it KillWait, after it was told that a task has ended as
 *         if it had been asked to stop, srun ends what is left of the step. Without
 *         grace= it asks slurmctld before: a job that is being preempted has its
 *         GraceTime, and with SIGNAL_SECONDS left or less, --signal may have granted
 *         them. Such a job is left to Slurm, which ends it soon.
 *   loss  LOSS_MS after the witness and its keeper were killed, a task that nobody has killed
 *         shows that it was not Slurm, which kills all of them. So long the keeper waits, too,
 *         before it makes another witness. Of a task that was killed with them the node says
 *         so after SPARED_MS: by then every task has Slurm's signal, and within HOLD_MS srun is to
 *         hear of that task before it speaks of those that have lost it.
 *  doubt  KillWait and DOUBT_MS after it was told, srun takes tasks that were killed
 *         together with the node's witness for victims of somebody other than Slurm.
 *         If it was Slurm, slurmctld has told srun so, and srun itself waits KillWait
 *         and two seconds for the last node, however slow that is, and is gone by then.
 *
 * silent  SILENT_MS after srun saw tasks start on a node whose plugin has not reported, it
 *         takes the plugin for absent there. A plugin reports before its node's first
 *         program runs, which is within milliseconds where nothing is slow. If srun does not
 *         answer, slurmstepd reports again each REPORT_MS, and after SILENT_MS seldom. Where another
 *         plugin prepares the tasks first, as Pyxis does, which may fetch an image, srun
 *         says so after UNSURE_MS, and ends nothing.
 *
 * Where srun does not answer, CONNECT_MS or REPLY_MS have passed; then the node
 * speaks itself, DELIVERY_MS before its connection to srun may go, and asks
 * slurmctld after ALONE_MS (or grace=), later by ALONE_NODE_MS for each node
 * before it in the step, but ALONE_SPREAD_MS at most. By then the first node's
 * request has reached the others, who ask no more.
 *
 * Neither slurmstepd nor srun waits at its end for the controller's answer beyond
 * JOIN_MS.
 */
#ifndef SPANK_TIMELINE_H
#define SPANK_TIMELINE_H

enum {
	SETTLE_MS = 100,
	CONNECT_MS = 150,
	REPLY_MS = 500,
	HOLD_MS = 250,
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
};

#endif
