/* SPDX-License-Identifier: Apache-2.0 */
/* file_store: a file that all ranks reach, as a ddp_store. Each set() adds a record, under a lock. While a rank
   uses the file, it holds a lock with the rank's number. If a rank finds no other rank's lock when it comes, it
   empties the file, so nothing of a killed run stays; the last rank that leaves removes the file. Only the file's
   owner may read it, since it holds the run's key. A link in its place, another user's file, and a file that holds
   something else are refused, and stay. */
#pragma once

#include "wireup/wireup.h"

typedef struct ddp_file_store ddp_file_store;

/* Waits, some seconds at most, for another process that has this rank to leave. No call waits behind the deadline. */
ddp_status ddp_file_store_open(const char *path, const ddp_job *job, uint64_t deadline_ns, ddp_file_store **store);
/* NULL is allowed. */
void ddp_file_store_close(ddp_file_store *store);

/* The calls may be used as long as the store is open. */
ddp_store ddp_file_store_calls(ddp_file_store *store);
