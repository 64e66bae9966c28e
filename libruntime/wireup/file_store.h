/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_store: a file that all ranks reach, as a ddp_store. It grows by one record for each set(), under a lock.
 * While a rank uses it, it holds a lock of the rank's number: the first rank that finds no other one empties the
 * file, so that nothing of a run that was killed stays, and the last that leaves removes it. Only its owner
 * may read it, since it holds the run's key; a link in its place, or another user's file, is refused.
 */
#ifndef DDP_WIREUP_FILE_STORE_H
#define DDP_WIREUP_FILE_STORE_H

#include "wireup/wireup.h"

typedef struct ddp_file_store ddp_file_store;

/* Waits, some seconds at most, for another process that has this rank to leave. No call waits behind the deadline. */
ddp_status ddp_file_store_open(const char *path, const ddp_job *job, uint64_t deadline_ns, ddp_file_store **store);
/* NULL is allowed. */
void ddp_file_store_close(ddp_file_store *store);

/* For as long as it is open. */
ddp_store ddp_file_store_calls(ddp_file_store *store);

#endif
