#include "comm/core/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/core/doorbell.h"
#include "comm/core/roster.h"
#include "watch/page.h"

/* Takes over the failure that a rank of this node has published. */
static void adopt_shared_failure(ddp_comm *comm)
{
	ddp_node_shared *shared = comm->node.shared;
	uint32_t by = atomic_load(&shared->failed_by);

	/* Other processes write there. */
	const ddp_failure *failure = &shared->ranks[(by - 1) % (uint32_t)comm->node.size].failure;
	pthread_mutex_lock(&comm->failure.lock);
	if (atomic_load(&comm->failure.status) == DDP_OK) {
		memcpy(comm->failure.text, failure->text, sizeof(comm->failure.text));
		comm->failure.text[sizeof(comm->failure.text) - 1] = '\0';
		int culprit = failure->culprit;
		comm->failure.culprit = culprit >= 0 && culprit < comm->size ? culprit : DDP_NOBODY;
		ddp_page_error(comm->roster->page, (ddp_status)failure->status,
		               comm->failure.culprit != DDP_NOBODY ? comm->topology.world_ranks[culprit] : DDP_NOBODY,
		               comm->failure.text);
		atomic_store(&comm->failure.status, failure->status);
	}
	pthread_mutex_unlock(&comm->failure.lock);
}

ddp_status ddp_comm_check(ddp_comm *comm)
{
	if (atomic_load_explicit(&comm->failure.status, memory_order_acquire) == DDP_OK) {
		if (atomic_load_explicit(&comm->node.shared->failed_by, memory_order_acquire) == 0)
			return DDP_OK;
		adopt_shared_failure(comm);
	}
	return ddp_fail((ddp_status)atomic_load(&comm->failure.status), "%s", comm->failure.text);
}

/* Writes the failure into this rank's lines and publishes it, unless another
   was first. A rank that is killed or stopped on the way leaves nothing that
   is half written, and nobody waits for it. */
static void publish(ddp_comm *comm, ddp_status status, int culprit, const char *text)
{
	ddp_node_shared *shared = comm->node.shared;
	ddp_failure *own = &shared->ranks[comm->node.self].failure;
	uint32_t nobody = 0;

	pthread_mutex_lock(&comm->failure.lock);
	if (!comm->failure.told) {
		comm->failure.told = true;
		own->status = status;
		own->culprit = culprit;
		snprintf(own->text, sizeof(own->text), "%s", text);
		atomic_compare_exchange_strong(&shared->failed_by, &nobody, (uint32_t)comm->node.self + 1);
	}
	pthread_mutex_unlock(&comm->failure.lock);
}

ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit,
                          const char *format, ...)
{
	char text[DDP_FAILURE_TEXT], whole[DDP_FAILURE_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* The other ranks say the same sentence: it must tell them whose it is. */
	const char *own = ddp_rank_text(comm, comm->rank);
	bool tells = culprit != comm->rank || strstr(text, own) != NULL;
	int length = snprintf(whole, sizeof(whole), "%s%s%s", tells ? "" : own, tells ? "" : ": ", text);
	if (length >= (int)sizeof(whole))
		memcpy(whole + sizeof(whole) - 4, "...", 4);
	publish(comm, status, culprit, whole);
	adopt_shared_failure(comm);
	ddp_node_wake_all(comm);
	return ddp_comm_check(comm);
}
