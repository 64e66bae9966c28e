/* SPDX-License-Identifier: Apache-2.0 */
/* by_store: wire-up over a store that all ranks reach, such as c10d's or a file. Under "ddp/run" rank 0 puts a
   number for this run, and the key that all later connections prove. The other ranks answer under that number, so
   entries of an earlier run are never taken for answers. Whoever can read the store can join the run. */
#pragma once

#include "wireup/wireup.h"

/* `store` is copied. *key becomes the run's in the first exchange, and must outlive the wire-up. `name` is that of
   the store in messages. A world of one needs no store. */
ddp_status ddp_by_store_open(const ddp_job *job, const ddp_store *store, const char *name, ddp_key *key,
                          ddp_wireup **wireup);

/* Opens the same over a file that all ranks reach (file_store.h). */
ddp_status ddp_by_file_open(const ddp_job *job, const char *path, ddp_key *key, uint64_t deadline_ns,
                               ddp_wireup **wireup);
