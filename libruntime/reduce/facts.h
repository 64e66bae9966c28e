/*
 * facts: numbers that must be the same on all ranks. A rank that found its own
 * arguments wrong, or has no memory, takes part too, so that the others get an
 * error instead of a wait.
 */
#ifndef DDP_REDUCE_FACTS_H
#define DDP_REDUCE_FACTS_H

#include "ddp.h"

enum { DDP_FACTS_MAX = 64 };

typedef struct ddp_fact {
	const char *name;
	double value; /* exactly the number, and no NaN */
} ddp_fact;

/*
 * Collective. `mine` is what this rank's own preparation of `what` ("model") gave:
 * if it is not DDP_OK, the facts are not looked at, and it is returned, with its
 * message. DDP_ERR_MISMATCH on all ranks names the first fact that differs, whose
 * index *differs becomes, and DDP_FACTS_MAX if there is none. `count` is at most
 * DDP_FACTS_MAX and the same on all ranks.
 */
ddp_status ddp_facts_agree(ddp_comm *comm, ddp_status mine, const char *what,
                           const ddp_fact *facts, int count, int *differs);

/*
 * Collective. DDP_OK if all ranks give that; a rank that gives an error keeps it,
 * with its message, and the others get the first such rank's status: that rank
 * "cannot `what`".
 */
ddp_status ddp_status_agree(ddp_comm *comm, ddp_status mine, const char *what);

/* values [count] becomes the least over all ranks, values[count ..] the negative of
   the greatest. Collective. */
ddp_status ddp_facts_range(ddp_comm *comm, double *values, size_t count);

#endif
