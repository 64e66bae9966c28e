/* SPDX-License-Identifier: Apache-2.0 */
/* lock: one process at a time owns a checkpoint directory, and only this process renames and removes files there.

   A later start of the same step takes the directory over at once: the process of the earlier start may be on a node
   that has lost its power, whose locks a file server keeps for minutes, or it may be stopped and wake up later. Each
   start after the first one leaves a mark in the directory, an empty hidden file. A process that finds the mark of a
   later start is no owner any more. The order makes this safe, whenever a process is stopped:
     - The new owner makes its mark, and then removes the unfinished files of earlier starts.
     - A writer makes its unfinished file, looks for marks, and then renames the file into place.
   So either the writer sees the mark, or the writer's file is gone before the rename, and the rename fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ddp.h"

/* Which start of which step a process belongs to that writes to a checkpoint directory. A step is started again by srun
   --ddp=restart=N, and a job by Slurm (requeue). All processes of a start have the same four numbers, and files of a
   directory have them in their names. */
typedef struct ddp_store_writer {
	uint32_t job_id; /* 0: the process is in no job of Slurm */
	uint32_t step_id;
	uint32_t requeues; /* how often Slurm has started the job again */
	uint32_t restarts; /* DDP_RESTART_COUNT, which grows with each start of the step */
	char name[400];    /* for messages: "rank 0 of job 7.1 on n3, process 5" */
} ddp_store_writer;

/* With this lock, a model of this process owns a directory until the lock is released or the process ends. */
typedef struct ddp_store_lock ddp_store_lock;

/* Makes DIR if it is missing, becomes its owner, and removes unfinished files that a crash has left.
   DDP_ERR_STATE: another owner has it, or a later start of this job; the sentence names that owner. If the file
   system has no locks, it only warns. `owner` tells the models of this process apart: several calls of one owner
   may own a directory together. */
ddp_status ddp_store_lock_take(const char *dir, const ddp_store_writer *writer, const void *owner, ddp_store_lock **lock);
void ddp_store_lock_release(ddp_store_lock *lock);
/* Whether a model of this process owns DIR. */
bool ddp_store_lock_is_here(const char *dir);
/* Whether DIR is still the directory that was locked: it may have been removed, or
   unmounted. */
bool ddp_store_lock_holds(const ddp_store_lock *lock, const char *dir);

/* DDP_ERR_STATE: a later start of the writer's job has taken DIR over. */
ddp_status ddp_store_lock_check(const char *dir, const ddp_store_writer *writer);

/* The name of an unfinished file of a step, which no other writer uses, on this host or another; malloc'd.
   `writer` NULL: outside of jobs. NULL: no memory. */
char *ddp_store_lock_temporary(const char *dir, const char *file, const ddp_store_writer *writer);
