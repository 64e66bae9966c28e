/* SPDX-License-Identifier: Apache-2.0 */
/* The node's side of a step, in slurmstepd: it makes the progress pages, which outlive the tasks, and reads them
   when a task ends. libc only; tests fork tasks. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/witness/agent.h"
#include "spank/witness/rings.h"
#include "spank/witness/witness.h"
#include "watch/progress.h"

/* ---- memory ---- */

/* Whether the kernel has killed a process of a step's cgroups because its memory was used up. It is read as
   root, from the kernel's files only. If there is no such cgroup, or it is mounted elsewhere, the answer is not
   known. */
enum { MEMORY_PATH_MAX = 512 };

struct memory_watch {
	char path[MEMORY_PATH_MAX]; /* of the file that counts; "": unknown */
	uint64_t kills;             /* so far */
};

/* Begins to watch the cgroup in which the process is: its step's, with all tasks, if SLURM has made one. */
void memory_start(struct memory_watch *watch, pid_t pid);

/* Whether there was a kill since. */
bool memory_ran_out(const struct memory_watch *watch);

/* From the text of /proc/PID/cgroup, the path of the file, for a kernel with
   memory of version 1 or 2; false if there is none, or it is too long. */
bool memory_find(const char *cgroups, char path[MEMORY_PATH_MAX]);

/* The number behind "oom_kill " at the start of a line; 0 without one. */
uint64_t memory_kills(const char *events);

/* ---- tasks ---- */

struct supervise_task {
	uint32_t rank;  /* UINT32_MAX: not known yet */
	pid_t pid;      /* as the task itself knows it */
	_Atomic uint64_t start_ns; /* CLOCK_MONOTONIC, of its program; 0: it has not come to that */
	atomic_int end; /* enum stall_end: whether it was reaped, and how it had ended */
};

enum { SUPERVISE_WRITERS = 4 }; /* so many generations may fail while a file server does not answer */

/* Shared between slurmstepd, its children until they exec the program, and the witness. */
struct supervise_shared {
	atomic_bool told; /* a failure was already put into words on this node */
	atomic_bool has_told; /* who did so is done with it */
	atomic_bool noted;    /* a task has noted who it is, and where srun is */
	atomic_bool watched;  /* slurmstepd has a thread, which tells srun that this node has the plugin; otherwise
	                         that task does so */
	atomic_bool answered; /* srun has answered that */
	atomic_bool late; /* the witness has told srun of a rank that keeps others waiting */
	_Atomic uint32_t generation; /* of the programs, with restart=; 0: none yet, or no restart= */
	struct relay_sender sender;
	struct witness witness;
	struct error record_lost; /* why a flight record of the node was not written; the user may write it, too, */
	_Atomic pid_t record_writers[SUPERVISE_WRITERS]; /* the witness's children that write records; 0: none */
	uint32_t world_size;
	char node[HOST_NAME_MAX_BYTES];
	char srun_address[64]; /* numeric, as Slurm says it; "" if it does not */
	struct supervise_task task[]; /* by local task */
};

/* How a task was reaped. */
struct task_reaped {
	int wait_status;
	uint64_t ns; /* CLOCK_MONOTONIC; 0: it was not */
};

/* With restart=, Slurm's processes are agents, and a task here means the program that an agent has started. */
struct supervise {
	uint32_t local_tasks;
	struct supervise_shared *shared;
	struct agents agents; /* with restart= */
	uint32_t generation;  /* with restart=: the one that is judged; 0: none */
	pid_t *pids;       /* by local task; 0: not forked, or reaped. With agents any other number means that the
	                      generation has the task, and supervise_pid() tells its process */
	struct memory_watch memory; /* of the first task's cgroup */
	struct task_reaped *reaped; /* by local task */
	/* How a task has ended that Slurm has just reaped. NULL, or false: not known. */
	bool (*ask)(uint32_t local_task, int *wait_status);
	int progress_fd;   /* -1: none */
	bool contained;    /* there is none, as its descriptor would be gone before the tasks */
	bool any_failed;   /* a task failed on its own account, and was reaped */
	bool any_other_end; /* a task ended otherwise than by SIGKILL, and was reaped */
};

/* Called before the tasks are forked. The progress file is inherited by the
   tasks, is `owner`'s, who runs them, sealed in size, and held at a number out of scripts' way.
   Without memory for it, or in a contained callback, there is none, and the report says less. */
bool supervise_start(struct supervise *supervise, uint32_t local_tasks, uid_t owner,
                     struct error *error);
void supervise_end(struct supervise *supervise);

/* Notes where the node's srun is, and the node's name, by which srun takes a task's error for a sign of its node. SLURM
   puts both into a task's environment, and slurmstepd does not see that before. `shared` may be NULL. */
void supervise_note_place(struct supervise_shared *shared, char *const *environment);

/* True for the first of the node to say what is wrong, a task or slurmstepd, which then
   says when it is done. Tasks that cannot start wait for it, CONNECT_MS and REPLY_MS at
   most: srun is not to hear of their ends before it hears why. */
bool supervise_tell_once(struct supervise *supervise);
void supervise_told(struct supervise *supervise);
void supervise_await_told(const struct supervise *supervise);

/* The memory file of the pages, for the flight recorder's reader; its `file` is -1 if there is none. */
struct rings_source supervise_source(const struct supervise *supervise);

/* Copies a task's page; zeroed if there is none. */
void supervise_read(const struct supervise *supervise, uint32_t local_task,
                    struct ddp_progress *progress);

/* How often all of the node's ranks made no progress for the time of stall=; 0: never, or nobody looks. The tasks could
   have written any number there. */
uint32_t supervise_stalls(const struct supervise *supervise);

/* Writes, for ddp-status, which of the step's nodes wait; cut to the room that the node's page has. */
void supervise_note_spares(const struct supervise *supervise, const char *nodes);

/* Writes the identity of a generation for the node's ranks that have stayed. False, with errno: there is no page. */
bool supervise_note_deal(const struct supervise *supervise, const struct ddp_progress_deal *deal);

/* Whether rank 0 of the step is one of the node's tasks. */
bool supervise_holds_rank_zero(const struct supervise *supervise);

/* The process of the task; 0: it was reaped, or is not there. */
pid_t supervise_pid(const struct supervise *supervise, uint32_t local_task);

/* With agents: forgets all ends and pages, as a new generation begins, whose number is given. `ranks`
   has the rank of each local task, UINT32_MAX where the task has no program in this generation. A program that stays
   goes on with its page. */
void supervise_begin_again(struct supervise *supervise, uint32_t generation, uint32_t world_size,
                           const uint32_t *ranks);
/* With agents: no end of the generation counts from now on. */
void supervise_leave(struct supervise *supervise);

/* How many of Slurm's processes of tasks were forked and have not ended; with agents, these are the agents. */
uint32_t supervise_processes(const struct supervise *supervise);

/* Note a task that was forked, or reaped. */
void supervise_forked(struct supervise *supervise, uint32_t local_task, pid_t pid);
void supervise_reaped(struct supervise *supervise, uint32_t local_task, int wait_status);

enum task_state {
	TASK_RUNS,
	TASK_GONE,  /* Slurm has reaped it, and has not told yet how it had ended */
	TASK_ENDED,
};

/* Whether the task has ended, reaped or not, and then how. Reaps nothing. */
enum task_state supervise_state(const struct supervise *supervise, uint32_t local_task, int *wait_status);

/* With agents: whether a program has ended whose agent has not noted how. */
bool supervise_any_untold(const struct supervise *supervise);

/* The kernel says this of a process. */
struct supervise_process {
	bool stopped;    /* by a signal, or a debugger */
	bool ended;      /* and its parent has not reaped it */
	uint64_t cpu_ms; /* processor time that it has used */
};

struct supervise_process supervise_process_of(pid_t pid);
/* Whether a process is stopped by a signal or a debugger, says the kernel. */
bool supervise_is_stopped(pid_t pid);

/* Whether a task runs that nobody has killed by SIGKILL, so far as the kernel tells. */
bool supervise_spares(const struct supervise *supervise);

/* How many tasks were forked and not reaped. */
uint32_t supervise_left(const struct supervise *supervise);

/* How the tasks of the node have ended, reaped or not. Reaps nothing. */
struct supervise_ends {
	bool all_ended;
	bool all_killed; /* by SIGKILL */
	bool any_failed; /* on its own account */
};
struct supervise_ends supervise_count_ends(const struct supervise *supervise);
