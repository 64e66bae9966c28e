/* SPDX-License-Identifier: Apache-2.0 */
/* srun asks Slurm to start its job again, as the user, without scontrol (requeue=). One thread waits for the job's
   time limit; the step's end is judged when srun exits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The step of this job has been created. `allowed`: requeue=N; 0: nothing is ever asked. `given`: the user, and not
   the site alone, has given it. A second call does nothing. */
void requeue_begin(uint32_t job_id, uint32_t allowed, bool given);

/* The step has ended: the job's time limit does not matter any more. */
void requeue_end_watch(void);

/* To be called when srun exits with that status. Asks, if there is a reason, and says what becomes of the job.
   `failed`: srun has named a failure, `at` that step of the training (0: not known). `stopping`: Slurm has asked the
   step to stop. If slurmctld does not answer, the call takes some minutes at most. */
void requeue_finish(int status, bool failed, bool stopping, uint64_t at);
