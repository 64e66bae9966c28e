#include "comm/core/completion.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/futex.h"

void ddp_request_complete(ddp_request *request, ddp_status status)
{
	request->status = status;
	if (status != DDP_OK)
		request->message = strdup(ddp_last_error());
	request->end_ns = ddp_now_ns();
	atomic_store_explicit(&request->done, 1, memory_order_release);
	ddp_futex_wake_all(&request->done);
}

bool ddp_requests_awaited(ddp_comm *comm)
{
	bool awaited = false;

	for (const ddp_request *r = comm->p2p.requests; r != NULL && !awaited; r = r->next)
		awaited = atomic_load(&r->awaited);
	pthread_mutex_lock(&comm->queue.lock);
	for (const ddp_request *r = comm->queue.head; r != NULL && !awaited; r = r->next)
		awaited = atomic_load(&r->awaited);
	pthread_mutex_unlock(&comm->queue.lock);
	return awaited;
}
