/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from the end of a task: whether it is a failure, which sentence reports it, and whether the
 * step ends because of it. A node judges from what it sees. srun then judges from the reports of all nodes.
 * Pure: no Slurm, no clock, no I/O.
 */
#ifndef SPANK_JUDGE_H
#define SPANK_JUDGE_H

#include <stdbool.h>

/* How a task ended, as far as its status tells. */
enum task_end {
	END_FINE,       /* exit code 0 */
	END_CODE,       /* another exit code of its own choice */
	END_CRASH,      /* by a signal that nobody sends to stop a program, such as SIGSEGV */
	END_BY_REQUEST, /* by SIGTERM or SIGINT, with which a program is asked to stop */
	END_BY_KILL,    /* by SIGKILL: cancelled, out of memory, or a person */
};

/* Slurm has sent this to the step's processes, whoever asked it to. */
enum slurm_sent {
	SENT_UNKNOWN, /* there is no witness */
	SENT_NOTHING,
	SENT_STOP,    /* a signal to stop: the step is stopping */
	SENT_KILL,    /* SIGKILL, and nothing before. The witness that tells so by its own end may
	                 have been killed by somebody else, with the tasks */
	SENT_SIGNAL,  /* one that a program may take as it likes, such as SIGUSR1: the ranks may save,
	                 and end or go on. On the wire, so the last */
};

struct end_facts {
	enum task_end end;
	enum slurm_sent sent;
	bool lone;            /* the node has one task */
	bool all_killed;      /* all of the node's tasks have ended by SIGKILL */
	bool other_failed;    /* another task of the node failed on its own account */
	bool blames_peer;     /* it gave up because of another rank, says its page: */
	bool timed_out;       /* that one did not come in time */
	bool names_peer;      /* the node knows what that one did, and says it first */
	bool out_of_memory;   /* the kernel has killed in its cgroup, for want of memory */
	bool node_failed;     /* Slurm says so of the node */
	bool ending;          /* the plugin has asked for the step's end already */
	bool kill_on_failure; /* the policy */
	bool outlives_nodes;  /* srun --no-kill: a node's failure does not end the step */
};

enum end_words {
	WORDS_NONE,
	WORDS_RANK, /* of the task that ended */
	WORDS_NODE, /* of all tasks of the node */
};

enum end_delay {
	DELAY_NEVER,
	DELAY_NONE,
	DELAY_DOUBT, /* until Slurm, if it was Slurm, has ended the step */
	DELAY_GRACE, /* as long as the others may take that nobody has asked to stop */
	DELAY_STOP,  /* as long as a step may take that Slurm has asked to stop */
};

struct end_verdict {
	enum end_words words;
	enum end_delay say, kill; /* after how long, if the step still runs then */
};

/* A shell's 128 + SIGNAL counts as that signal. */
enum task_end judge_task_end(int wait_status);

/* The status by which a task is judged whose rank ended in an error of libddp: a shell's
   pipeline hides it behind the code 0 of its last program. */
int judge_status(int wait_status, bool library_failed);

/* Whether a signal asks a program to stop, to be ready for its end. */
bool judge_is_stop(int signal_number);

/* Whether a signal is SENT_SIGNAL: none to stop, to kill or to suspend, and none of which a
   program that does not handle it would notice nothing. */
bool judge_is_word(int signal_number);

/* Whether it is said for want of better only: it is another rank's fault, of which
   that one's own node knows more. */
bool judge_is_hearsay(const struct end_facts *facts);

/* Whether a verdict that still waits, since nobody knows yet who wanted that end, is the cause of
   another one that is due. `earlier`: it happened first. */
bool judge_explains(const struct end_facts *waiting, const struct end_facts *due, bool earlier);

/* Whether Slurm may have killed the task since its node has failed. */
bool judge_may_be_node(const struct end_facts *facts);

struct end_verdict judge_end(const struct end_facts *facts);

#endif
