/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the end of a task: whether it is a failure, which sentence reports it, and whether the
   step ends because of it. A node judges from what it sees. srun then judges from the reports of all nodes.
   Pure: no Slurm, no clock, no I/O. */
#pragma once

#include <stdbool.h>

/* How a task ended, as far as its status tells. */
enum task_end {
	END_FINE,       /* exit code 0 */
	END_CODE,       /* another exit code of its own choice */
	END_CRASH,      /* by a signal that is not sent to stop a program, such as SIGSEGV */
	END_BY_REQUEST, /* by SIGTERM or SIGINT, which ask a program to stop */
	END_BY_KILL,    /* by SIGKILL: cancelled, out of memory, or killed by a person */
};

/* Slurm has sent this to the step's processes, whoever asked it to. */
enum slurm_sent {
	SENT_UNKNOWN, /* there is no witness */
	SENT_NOTHING,
	SENT_STOP,    /* a signal to stop: the step is stopping */
	SENT_KILL,    /* SIGKILL, and no signal before. The end of the witness shows this; but somebody
	                 else may have killed the witness, with the tasks */
	SENT_SIGNAL,  /* a signal whose meaning the program decides, such as SIGUSR1: ranks may save, and
	                 end or go on. Messages contain these numbers, so it is the last */
};

struct end_facts {
	enum task_end end;
	enum slurm_sent sent;
	bool lone;            /* the node has one task */
	bool all_killed;      /* all of the node's tasks have ended by SIGKILL */
	bool other_failed;    /* another task of the node failed, and not because of a third task */
	bool blames_peer;     /* its page says that it gave up because of another rank: */
	bool cause_late;      /* that rank did not come in time, or leaves: its own end may be much later */
	bool names_peer;      /* the node knows what that rank did, and says it first */
	bool out_of_memory;   /* the kernel has killed a process in its cgroup because memory was used up */
	bool node_failed;     /* Slurm says that the node has failed */
	bool silent;          /* srun has heard nothing of the node for the time of silence= */
	bool ending;          /* the plugin has already asked to end the step */
	bool kill_on_failure; /* the policy */
	bool survived;        /* its page says that the other ranks go on without it */
	bool outlives_nodes;  /* srun --no-kill: a node's failure does not end the step */
};

enum end_words {
	WORDS_NONE,
	WORDS_RANK, /* about the task that ended */
	WORDS_NODE, /* about all tasks of the node */
};

enum end_delay {
	DELAY_NEVER,
	DELAY_NONE,
	DELAY_DOUBT, /* until Slurm would have ended the step, if it was Slurm */
	DELAY_GRACE, /* the time for other tasks to end if the step was not asked to stop */
	DELAY_STOP,  /* the time for a step to end that Slurm has asked to stop */
};

struct end_verdict {
	enum end_words words;
	enum end_delay say, kill; /* after how long, if the step still runs then */
};

/* A shell's 128 + SIGNAL counts as that signal. */
enum task_end judge_task_end(int wait_status);

/* The status from which a task is judged. If the rank ended in an error of libddp, code 0 does not count: in a
   shell's pipeline it is the code of the last program. */
int judge_status(int wait_status, bool library_failed);

/* Whether a signal asks a program to stop. */
bool judge_is_stop(int signal_number);

/* Whether a signal is SENT_SIGNAL: it does not stop, kill or suspend a program, and a program that does not
   handle it notices it. */
bool judge_is_user_signal(int signal_number);

/* Whether a program ends so that has saved after SENT_SIGNAL, or that does not handle the signal: with code 75
   (EX_TEMPFAIL), or by a signal that no failure of its own sends. */
bool judge_is_farewell(int wait_status);

/* Whether the sentence about it is used only if there is no better one: another rank is the cause, and that
   rank's node knows more about it. */
bool judge_is_hearsay(const struct end_facts *facts);

/* A verdict waits while it is not known who ended the task. Returns whether that end is the cause of another
   end whose verdict is due. `earlier`: it happened first. */
bool judge_explains(const struct end_facts *waiting, const struct end_facts *due, bool earlier);

/* Whether other ranks go on after such an end, so that it is no failure of the step: the program says so (`says`), and
   nobody has asked the step to end. */
bool judge_survived(const struct end_facts *facts, bool says);

/* Whether Slurm may have killed the task because its node has failed. */
bool judge_may_be_node(const struct end_facts *facts);

struct end_verdict judge_end(const struct end_facts *facts);
