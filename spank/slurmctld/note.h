/* SPDX-License-Identifier: Apache-2.0 */
/*
 * srun notes in its job's comment, as the user, why a step failed (comment=failures of the site's line). What the
 * user wrote there stays. slurmctld is asked from a thread, so that neither the sentence nor the step's end waits for
 * it.
 */
#pragma once

#include <stdint.h>

#include "spank/wire/event.h"

/* The step has been created, and failures are to be noted. A second call does nothing. */
void note_begin(uint32_t job_id, uint32_t step_id);

/* Notes the event, and returns at once. Of several events the last one is in the comment. Before note_begin() it does
   nothing. */
void note_failure(const struct event *event);

/* Waits until the comment is written, some seconds at most. */
void note_end(void);
