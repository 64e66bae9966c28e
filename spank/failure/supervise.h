/*
 * The node's side of a step, in slurmstepd: pages that outlive the tasks, and
 * what can be told from them when a task ends. libc only; tests fork tasks.
 */
#ifndef SPANK_SUPERVISE_H
#define SPANK_SUPERVISE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "spank/fault.h"
#include "spank/identity/nodelist.h"
#include "watch/progress.h"

/* Shared between slurmstepd and its children until they exec the program. */
struct supervise_shared {
	atomic_bool told; /* a failure was already put into words on this node */
	uint32_t world_size;
	char node[HOST_NAME_MAX_BYTES];
	char srun_address[64]; /* numeric, as Slurm says it; "" if it does not */
	uint32_t rank[]; /* by local task; UINT32_MAX: not known yet */
};

struct supervise {
	uint32_t local_tasks;
	struct supervise_shared *shared;
	pid_t *pids;       /* by local task; 0: not forked, or reaped */
	int progress_fd;   /* -1: none */
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	bool failed;       /* a failure was seen that is no other's consequence */
	bool any_failed;   /* a task failed on its own account, and was reaped */
};

/*
 * Called before the tasks are forked. The progress file is inherited by the
 * tasks, is `owner`'s, who runs them, sealed in size, and held at a number out of scripts' way.
 * Without memory for it there is none, and the report says less.
 */
bool supervise_start(struct supervise *supervise, uint32_t local_tasks, uid_t owner,
                     struct fault *fault);
void supervise_end(struct supervise *supervise);

/* In a task: true for the first of the node to say what is wrong. */
bool supervise_tell_once(struct supervise *supervise);

/* Copies a task's page; zeroed if there is none. */
void supervise_read(const struct supervise *supervise, uint32_t local_task,
                    struct ddp_progress *progress);

/* Whether rank 0 of the step is one of the node's tasks. */
bool supervise_holds_rank_zero(const struct supervise *supervise);

/* Whether a task has failed on its own account, reaped or not. */
bool supervise_any_failed(const struct supervise *supervise);

/*
 * Whether all other tasks of the node have ended, too, after `wait_ms` at
 * most: a cancelled step's tasks die together, a rank that the kernel or
 * somebody killed dies alone. Reaps nothing.
 */
bool supervise_all_ended(const struct supervise *supervise, int wait_ms);

#endif
