/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/backend: the table of functions that run operations on one kind of memory. The front
   (comm/api, comm/request) does what all backends need: it checks an operation, keeps requests,
   callbacks and lanes, and makes all operations of a communicator fail together. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "ddp.h"

typedef struct ddp_backend {
	const char *name;
	/* The backend itself finds out whether ranks issued different operations, or a rank does not come.
	   For other backends comm/follow finds this out while the operation runs. */
	bool compares;

	/* Opens one lane of `comm`. Collective. When comm fails, the lane fails. */
	ddp_status (*open)(ddp_comm *comm, void **self);
	/* Begins the request's operation after those that were issued before, and does not wait. It runs in
	   the thread that calls ddp_issue(), so work that a queue holds now comes before the operation.
	   request->start_ns is set to now; a backend that later learns the real beginning writes it there. */
	ddp_status (*issue)(void *self, ddp_request *request);
	/* Sets *done if the operation is complete and nothing touches its buffers any more; returns the
	   operation's status. One thread calls it: for the first issued collective, and for all sends and
	   receives. NULL: the backend itself calls ddp_request_complete(). */
	ddp_status (*poll)(void *self, ddp_request *request, bool *done);
	/* Whether a queue can already wait for the operation's end. NULL: it can as soon as it is issued. */
	bool (*is_enqueued)(void *self, ddp_request *request);
	/* Makes work that `stream` gets from now on wait for a request for which poll() has not set *done. NULL:
	   queues cannot wait for operations. */
	ddp_status (*wait_on)(void *self, ddp_request *request, void *stream);

	/* Allocates zeroed memory on which the backend's operations are fast. Collective. */
	ddp_status (*alloc)(void *self, size_t bytes, void **memory);
	ddp_status (*free)(void *self, void *memory);
	/* Takes over memory that alloc() has given on `former`, a lane of the same backend. Local. NULL: it is no lane's. */
	void (*adopt)(void *self, void *former, void *memory);

	/* Called once, by the thread that polls, in two cases. If the communicator has failed, poll() must soon set
	   *done for all requests. If it is being closed and only sends and receives are open, poll() must do so
	   by the deadline; it notices a later failure itself. NULL: poll() notices both cases itself. */
	void (*abort)(void *self);
	/* Called when no request is open. Collective unless the communicator has failed. */
	void (*close)(void *self);
} ddp_backend;

typedef struct ddp_lane {
	atomic_bool open;           /* the rest stays as it is until the communicator is closed */
	const ddp_backend *backend;
	void *self;
	struct ddp_follower *follower; /* of a backend that is asked */
} ddp_lane;

/* A communicator has these lanes. Lane 0 for the host's memory is the communicator itself. */
typedef struct ddp_lanes {
	pthread_mutex_t lock; /* of opening */
	atomic_bool closing;
	atomic_int users;     /* threads that issue on one */
	ddp_lane of[DDP_MEMORY_DEVICE + 1][DDP_LANES];
} ddp_lanes;

/* The backend for a device's memory of a communicator of one rank, where NCCL does not run operations (comm/self). */
extern const ddp_backend ddp_backend_self;
