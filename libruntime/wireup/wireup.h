/* SPDX-License-Identifier: Apache-2.0 */
/* wireup: each rank sends one blob to all other ranks. Before that, a rank only knows its own identity.
   The wire-up is used at the start only; the communicator then has its own connections. */
#pragma once

#include <stdlib.h>

#include "ddp.h"
#include "job/job.h"

typedef struct ddp_wireup ddp_wireup;

typedef struct ddp_wireup_ops {
	const char *name; /* "pmix", "tcp", "store", "file", "self" */
	/* Gathers every rank's blob on every rank: blobs[r] (malloc'd, owned by
	   the caller) of sizes[r] bytes. Collective, in the same order on all
	   ranks; returns after the deadline with an error that names the ranks
	   that did not come. */
	ddp_status (*exchange)(ddp_wireup *wireup, const void *blob, size_t bytes,
	                       uint64_t deadline_ns, void **blobs, size_t *sizes);
	/* All ranks have left their last exchange. NULL: that changes nothing. */
	void (*settle)(ddp_wireup *wireup);
	void (*close)(ddp_wireup *wireup);
} ddp_wireup_ops;

/* The first member of each implementation. */
struct ddp_wireup {
	const ddp_wireup_ops *ops;
	const ddp_job *job;
	const ddp_key *key; /* with which it was opened, of its opener; NULL: none */
	int silence_ms;     /* after this time without a sign of life, a node is silent; 0: never. The opener sets it */
};

enum { DDP_BLOB_MAX = 1 << 20 }; /* bytes, per rank */

/* `preferred` is "pmix", "tcp" or NULL; `key` must outlive the wire-up. */
ddp_status ddp_wireup_open(const ddp_job *job, const ddp_key *key, const char *preferred,
                           uint64_t deadline_ns, ddp_wireup **wireup);

static inline void ddp_blobs_free(void **blobs, int count)
{
	for (int i = 0; i < count; i++) {
		free(blobs[i]);
		blobs[i] = NULL;
	}
}
