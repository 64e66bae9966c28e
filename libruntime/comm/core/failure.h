/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/failure: the failure that has ended a communicator. The first rank of a node that finds a
   failure publishes it in its lines of the control segment, where the node's other ranks read it.
   comm/net tells the other nodes. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "ddp.h"

enum { DDP_NOBODY = -1, DDP_FAILURE_TEXT = 768 };

/* A failure in the form in which ranks send it to each other. */
typedef struct ddp_failure {
	int32_t status;
	int32_t culprit; /* rank of the communicator or DDP_NOBODY */
	char text[DDP_FAILURE_TEXT];
} ddp_failure;

/* A failed request that the program lets go of leaves its error to the closing of the communicator. The debt
   outlives the communicator, because the program may free such a request later still. */
typedef struct ddp_failure_debt {
	atomic_int users;     /* the communicator, and its failed requests */
	atomic_bool owed;     /* a function without a status has noticed the failure: closing returns it */
} ddp_failure_debt;

/* The failure that has ended this rank's communicator. */
typedef struct ddp_failure_state {
	atomic_int status; /* a ddp_status; set once, after the text */
	pthread_mutex_t lock;
	bool told;         /* this rank's lines hold its own failure */
	atomic_bool returned; /* a call has returned it, or will return it, to the program */
	ddp_failure_debt *debt;
	char text[DDP_FAILURE_TEXT];
	int culprit;       /* rank that the failure is about, or DDP_NOBODY */
} ddp_failure_state;

/* Breaks the communicator: every operation under way, and every later one, ends with `status` and the
   message, here and on all peers. `culprit` is a rank of the communicator or DDP_NOBODY. If there is an
   earlier failure, it stays. Returns the status of the first failure. Any thread. */
ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Breaks it because `rank` is gone: `how` ("died") and the description of an `operation` are parts of the sentence. */
ddp_status ddp_comm_break_gone(ddp_comm *comm, int rank, const char *how, const char *operation);

/* From now on `twin`, `comm` and its other twins fail together; unshare() ends this. */
ddp_status ddp_failure_share(ddp_comm *comm, ddp_comm *twin);
void ddp_failure_unshare(ddp_comm *twin);

/* DDP_OK, or the failure that broke the communicator. */
ddp_status ddp_comm_check(ddp_comm *comm);

/* Checks the same, and breaks the communicator if one of its ranks is on a silent node (comm/core/silence). Any
   thread. */
ddp_status ddp_comm_check_silence(ddp_comm *comm);

/* Notes that the present call returns the failure to the program, if there is one. */
void ddp_failure_returned(ddp_comm *comm);
/* Notes that a function without a status has noticed the failure, so closing the communicator returns it. */
void ddp_failure_owed(ddp_comm *comm);
/* Makes the debt of a new communicator, its first user; false: there is no memory. */
bool ddp_failure_debt_make(ddp_comm *comm);
/* Returns the debt of the communicator that the program closes, for one user more. */
ddp_failure_debt *ddp_failure_debt_share(ddp_comm *comm);
/* The last user frees it. NULL is allowed. */
void ddp_failure_debt_drop(ddp_failure_debt *debt);
/* The failure, if closing the communicator has to return it; otherwise DDP_OK. */
ddp_status ddp_failure_left(ddp_comm *comm);
