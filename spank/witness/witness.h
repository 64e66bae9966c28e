/* SPDX-License-Identifier: Apache-2.0 */
/* A node's witness: a process of the step that notes the signals that Slurm sends to the step.
   slurmstepd itself gets none of these signals, and no callback tells of them. But they decide
   whether a rank that exits has failed or has stopped because it was asked to.

   The first task of the node makes the witness before it becomes the user's program. The witness
   runs as the user, in the step's cgroup, and is a child of slurmstepd. So it gets the signals that
   Slurm sends to the tasks, with each of Slurm's ways to track processes. It holds nothing open, and
   the user's processes cannot look into it. If slurmstepd is killed, the witness goes on, tells srun,
   and then ends.

   As soon as the step runs for longer than a moment, the witness makes a second process, the keeper.
   The keeper notes the same signals, and makes another witness when somebody has killed the first one.
   If it cannot make one, or has not yet made it, the keeper itself tells srun that slurmstepd was
   killed. When Slurm kills a step, it kills both. On a kernel without pidfd_open() there is no keeper.
   libc only. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/wire/judge.h"
#include "spank/wire/relay.h"

enum witness_making { WITNESS_NONE, WITNESS_BEGUN, WITNESS_DONE };

/* Shared by slurmstepd, the tasks until they exec, and the witness. */
struct witness {
	_Atomic enum witness_making made;
	_Atomic pid_t pid;        /* 0: there is none */
	_Atomic pid_t keeper;     /* 0: there is none */
	atomic_bool asked_to_stop; /* by Slurm */
	_Atomic uint64_t word_ns;  /* when Slurm last sent a SENT_SIGNAL, by CLOCK_MONOTONIC; 0: never */
};

/* The witness says this if slurmstepd dies, and does this meanwhile. */
struct witness_words {
	struct relay relay;
	const char *address; /* of srun; numeric */
	const char *text;
	const _Atomic uint32_t *generation; /* shared; NULL: the step has none */
	bool kill_tasks;     /* then end the node's tasks, too: nobody else can */
	bool stay_in_group;  /* Slurm finds the step's processes by their process group */
	int look_ms;         /* how long before it first calls look(), unless the step is
	                        suspended; 0: never */
	/* Gives the time until the next call; 0: never again. */
	int (*look)(void *about, bool asked_to_stop);
	/* In another witness, before its first look: nobody knows what the last one has told. Or NULL. */
	void (*begin_again)(void *about);
	/* In a keeper that can make no other witness, so that nobody looks. False: to be called again. Or NULL. */
	bool (*give_up)(void *about);
	void *about;
};

/* In a task: whether another task has made the witness. If another task is making it, waits until it is there, so that
   no program runs without it; one second at most. */
bool witness_is_made(const struct witness *witness);

/* In a task; the second call and later ones make none, and wait as witness_is_made(). Without a witness the node judges
   by the ends alone. */
void witness_make(struct witness *witness, const struct witness_words *words);

/* In slurmstepd: what Slurm has sent so far. */
enum slurm_sent witness_sent(const struct witness *witness);

/* In slurmstepd: the witness, or the keeper if the witness has ended; 0: there is none, or none any more. */
pid_t witness_present(const struct witness *witness);

/* Whether it was there, and was killed with its keeper: so are the tasks, then, if it was Slurm. */
bool witness_was_killed(const struct witness *witness);

/* In slurmstepd, when its tasks have ended: ends and reaps both. One that the kernel or a debugger holds for some
   seconds is left: it runs no line of its own any more, and the kernel reaps it. */
void witness_end(struct witness *witness);
