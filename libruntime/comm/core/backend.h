/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/core/backend: the table of functions that run operations on one kind of memory. The front
 * (comm/front, comm/request) does what all backends need: it checks an operation, keeps requests,
 * callbacks and lanes, and makes all operations of a communicator fail together.
 */
#ifndef DDP_COMM_CORE_BACKEND_H
#define DDP_COMM_CORE_BACKEND_H

#include <pthread.h>
#include <stdatomic.h>

#include "ddp.h"

typedef struct ddp_backend {
	const char *name;
	/* It finds out by itself if ranks issued different operations, or one does not come.
	   For others comm/follow does, beside the operation. */
	bool compares;

	/* Makes what one lane of `comm` needs. Collective; what it makes fails with comm. */
	ddp_status (*open)(ddp_comm *comm, void **self);
	/* Begins the request's operation behind those that were issued before, and does not
	   wait. The thread that calls ddp_issue(): what a queue holds now comes before it.
	   request->start_ns is now; a backend that learns when it really began writes that. */
	ddp_status (*issue)(void *self, ddp_request *request);
	/* Is it complete? Then nothing touches its buffers any more, and *done is true with
	   the operation's status. One thread asks: of collectives the first that was issued, of
	   sends and receives all. NULL: the backend itself calls ddp_request_complete(). */
	ddp_status (*poll)(void *self, ddp_request *request, bool *done);
	/* Can a queue wait for its end by now? NULL: as soon as it is issued. */
	bool (*is_enqueued)(void *self, ddp_request *request);
	/* Work that `stream` gets from now on waits for a request that poll() has not called
	   done. NULL: operations have no end that a queue could wait for. */
	ddp_status (*wait_on)(void *self, ddp_request *request, void *stream);

	/* Zeroed memory that the backend handles well; collective. */
	ddp_status (*alloc)(void *self, size_t bytes, void **memory);
	ddp_status (*free)(void *self, void *memory);

	/* The communicator has failed: poll() must soon call all requests done. Or it is to be closed,
	   and only sends and receives are open: at the latest by the deadline; a failure after that
	   poll() sees for itself. Once, by the thread that polls. NULL: it sees both for itself. */
	void (*abort)(void *self);
	/* No request is open. Collective unless the communicator has failed. */
	void (*close)(void *self);
} ddp_backend;

/* What a backend that is a module's calls of comm/: ddp_comm_run(), .._issue(), .._check(), .._break() and
   .._agree(), ddp_twin_open(), ddp_host_end() and ddp_host_close(). */
typedef struct ddp_comm_services {
	ddp_status (*run)(ddp_comm *comm, const ddp_operation *operation);
	ddp_status (*issue)(ddp_comm *comm, const ddp_operation *operation, ddp_request **request);
	ddp_status (*check)(ddp_comm *comm);
	ddp_status (*breaks)(ddp_comm *comm, ddp_status status, int culprit, const char *format, ...)
		__attribute__((format(printf, 4, 5)));
	ddp_status (*agree)(ddp_comm *comm, ddp_status mine, const char *what);
	ddp_status (*open_twin)(ddp_comm *comm, ddp_comm **twin);
	ddp_status (*end)(ddp_comm *comm);
	void (*close)(ddp_comm *comm);
} ddp_comm_services;

typedef struct ddp_lane {
	atomic_bool open;           /* the rest stays as it is until the communicator is closed */
	const ddp_backend *backend;
	void *self;
	struct ddp_follower *follower; /* of a backend that is asked */
} ddp_lane;

/* Those of a communicator. Lane 0 for the host's memory is the communicator itself. */
typedef struct ddp_lanes {
	pthread_mutex_t lock; /* of opening */
	atomic_bool closing;
	atomic_int users;     /* threads that issue on one */
	ddp_lane of[DDP_MEMORY_DEVICE + 1][DDP_LANES];
} ddp_lanes;

#endif
