/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmix_probe: finds out which processes have given data to PMIx, by a request for each process. A server
 * answers when the process has committed, also before the fence.
 */
#ifndef DDP_WIREUP_PMIX_PROBE_H
#define DDP_WIREUP_PMIX_PROBE_H

#include <stdbool.h>
#include <stdint.h>

/* Sets came[p] for each process p of 0 .. count - 1 that is known by the
   deadline to have committed `key`. False: no memory. */
bool ddp_pmix_probe(const char *key, int count, uint64_t deadline_ns, bool *came);

#endif
