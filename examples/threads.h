/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a rank computes with. */
#pragma once

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp.h"
#include "kernels.h"

/* Returns `asked`, if it is not 0; otherwise OMP_NUM_THREADS; otherwise the host's processors divided by
   its ranks. */
static inline int choose_threads(int asked, const ddp_job *job)
{
	const char *omp = getenv("OMP_NUM_THREADS");
	cpu_set_t cpus;

	if (asked > 0)
		return asked;
	if (omp != NULL && omp[0] != '\0')
		return dk_threads();
	if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
		return 1;
	/* A launcher that binds ranks to processors has divided them already. */
	int count = CPU_COUNT(&cpus);
	if (count >= (int)sysconf(_SC_NPROCESSORS_ONLN))
		count /= job->local_world_size;
	return count > 0 ? count : 1;
}
