/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/core/failure: the failure that has ended a communicator. The first rank of a node that finds a
 * failure publishes it in its lines of the control segment, where the node's other ranks read it.
 * comm/net tells the other nodes.
 */
#ifndef DDP_COMM_CORE_FAILURE_H
#define DDP_COMM_CORE_FAILURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ddp.h"

enum { DDP_NOBODY = -1, DDP_FAILURE_TEXT = 768 };

/* A failure as it is told to others. */
typedef struct ddp_failure {
	int32_t status;
	int32_t culprit; /* rank of the communicator or DDP_NOBODY */
	char text[DDP_FAILURE_TEXT];
} ddp_failure;

/* The one that counts for this rank's communicator. */
typedef struct ddp_failure_state {
	atomic_int status; /* a ddp_status; set once, after the text */
	pthread_mutex_t lock;
	bool told;         /* this rank's lines hold its own failure */
	atomic_bool returned; /* a call has returned it, or will return it, to the program */
	atomic_bool owed;     /* a function that returns nothing has met it: closing returns it */
	char text[DDP_FAILURE_TEXT];
	int culprit;       /* rank that the failure is about, or DDP_NOBODY */
} ddp_failure_state;

/*
 * Breaks the communicator: every operation under way or to come, here and on
 * all peers, ends with `status` and the message. `culprit` is a rank of the
 * communicator or DDP_NOBODY. The first failure wins; the one that counts is
 * returned. Any thread.
 */
ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* From here on `twin` and `comm`, and its other twins, fail together; and not any more. */
ddp_status ddp_failure_share(ddp_comm *comm, ddp_comm *twin);
void ddp_failure_unshare(ddp_comm *twin);

/* DDP_OK, or the failure that broke the communicator. */
ddp_status ddp_comm_check(ddp_comm *comm);

/* The program learns of the failure, if there is one, by the call that is under way. */
void ddp_failure_returned(ddp_comm *comm);
/* Nothing that returns it has met the failure: closing the communicator returns it. */
void ddp_failure_owed(ddp_comm *comm);
/* The failure, if the program is still to learn of it as the communicator is closed; else DDP_OK. */
ddp_status ddp_failure_left(ddp_comm *comm);

#endif
