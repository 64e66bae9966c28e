/* SPDX-License-Identifier: Apache-2.0 */
#include "state/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char no_mark[] = "start-none";

/* Slurm has ended all steps of a job before it starts the job again. */
bool ddp_writer_replaces(const ddp_store_writer *newer, const ddp_store_writer *older)
{
	if (newer->job_id == 0 || newer->job_id != older->job_id)
		return false;
	if (newer->requeues != older->requeues)
		return newer->requeues > older->requeues;
	return newer->step_id == older->step_id && newer->restarts > older->restarts;
}

bool ddp_writer_is_restarted(const ddp_store_writer *writer)
{
	return writer->job_id != 0 && (writer->requeues > 0 || writer->restarts > 0);
}

void ddp_writer_mark(const ddp_store_writer *writer, char mark[DDP_WRITER_MARK_BYTES])
{
	if (writer->job_id == 0)
		strcpy(mark, no_mark);
	else
		snprintf(mark, DDP_WRITER_MARK_BYTES, "start-%" PRIu32 ".%" PRIu32 "-%" PRIu32 "-%" PRIu32, writer->job_id,
		         writer->step_id, writer->requeues, writer->restarts);
}

size_t ddp_writer_read_mark(const char *text, ddp_store_writer *writer)
{
	ddp_store_writer read = { 0 };
	int length = 0;

	if (strncmp(text, no_mark, sizeof(no_mark) - 1) == 0) {
		*writer = read;
		return sizeof(no_mark) - 1;
	}
	if (sscanf(text, "start-%" SCNu32 ".%" SCNu32 "-%" SCNu32 "-%" SCNu32 "%n", &read.job_id, &read.step_id,
	           &read.requeues, &read.restarts, &length) != 4)
		return 0;
	*writer = read;
	return (size_t)length;
}
