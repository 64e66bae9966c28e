/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer: which start of which step a process belongs to that writes to a checkpoint directory. A step is
 * started again by srun --ddp=restart=N, and a job by Slurm (requeue). All processes of a start have the same
 * four numbers, and files of a directory have them in their names. Any thread may call these functions.
 */
#ifndef DDP_STATE_WRITER_H
#define DDP_STATE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ddp_store_writer {
	uint32_t job_id; /* 0: the process is in no job of Slurm */
	uint32_t step_id;
	uint32_t requeues; /* how often Slurm has started the job again */
	uint32_t restarts; /* DDP_RESTART_COUNT, which grows with each start of the step */
	char name[400];    /* for messages: "rank 0 of job 7.1 on n3, process 5" */
} ddp_store_writer;

/* Whether `newer` belongs to a later start than `older`, so that `older` must not write any more. */
bool ddp_writer_replaces(const ddp_store_writer *newer, const ddp_store_writer *older);
bool ddp_writer_is_restarted(const ddp_store_writer *writer);

enum { DDP_WRITER_MARK_BYTES = 64 };

/* Writes the four numbers as "start-7.1-0-2"; "start-none" outside of jobs. */
void ddp_writer_mark(const ddp_store_writer *writer, char mark[DDP_WRITER_MARK_BYTES]);
/* Reads these numbers from the beginning of a text, and returns how many bytes they take; 0: they are not there. */
size_t ddp_writer_read_mark(const char *text, ddp_store_writer *writer);

#endif
