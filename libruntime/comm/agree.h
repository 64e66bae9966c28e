/* SPDX-License-Identifier: Apache-2.0 */
/* comm/agree: do all ranks of a communicator say the same, and which rank does not? All of
   libddp asks here; reduce/agree only lists what a model states. Three other files ask other
   questions, each by another way:
     comm/group/agreement  which ranks of a broken communicator are alive, by what still works of it
     wireup/agreement      which rank is on which node, before there is a communicator
     reduce/consensus      what a step needs of all ranks, by a sum that the step waits for anyway */
#pragma once

#include "base/outlier.h"
#include "ddp.h"

/* Collective. DDP_OK if all ranks give that as `mine`. A rank that gives an error keeps it, with its
   message; the others get the status of the first such rank, and are told that it could not
   `what` ("open a lane"). */
ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what);

/* Collective. *same becomes whether all ranks give one number, which is not INT64_MIN. */
ddp_status ddp_comm_same(ddp_comm *comm, int64_t own, bool *same);

/* Collective, for an error that all ranks give alike: who has not the number, `own` here, that most
   have. *odd and *usual become the numbers of the two. Takes no memory, so that no rank drops out. */
ddp_status ddp_comm_outlier(ddp_comm *comm, double own, ddp_outlier *outlier, double *odd, double *usual);

/* ddp_outlier_names() by ranks of the world, which is how users and the plugin count. */
void ddp_comm_outlier_names(const ddp_comm *comm, const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT],
                            char usual[DDP_OUTLIER_TEXT]);

enum { DDP_FACTS_MAX = 64 };

typedef struct ddp_fact {
	const char *name;
	double value; /* exactly the number, and no NaN */
} ddp_fact;

/* Collective. `mine` is what this rank's own preparation of `what` ("model") gave: if it is
   not DDP_OK, the facts are not looked at, and it is returned, with its message; the rank takes
   part all the same, so that the others get an error instead of a wait. DDP_ERR_MISMATCH on
   all ranks names the first fact that differs, whose index *differs becomes; DDP_FACTS_MAX if
   there is none. `count` is at most DDP_FACTS_MAX and the same on all ranks. */
ddp_status ddp_facts_agree(ddp_comm *comm, ddp_status mine, const char *what,
                           const ddp_fact *facts, int count, int *differs);

/* values [count] becomes the least over all ranks, values[count ..] the negative of
   the greatest. Collective. */
ddp_status ddp_facts_range(ddp_comm *comm, double *values, size_t count);
