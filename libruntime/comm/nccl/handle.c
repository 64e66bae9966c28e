/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/core/comm.h"
#include "comm/request.h"

int ddp_nccl_ranks_per_id = 128;

/* PAUSE_US lies between two questions whether a communicator is made. A round lasts until ranks tell each other
   how far they are. */
enum { PAUSE_US = 200, FIRST_ROUND_MS = 2, LONGEST_ROUND_MS = 100 };

static ddp_status status_of(int result)
{
	switch (result) {
	case DDP_NCCL_SUCCESS:
	case DDP_NCCL_IN_PROGRESS: return DDP_OK;
	case DDP_NCCL_REMOTE_ERROR: return DDP_ERR_PEER;
	case DDP_NCCL_INVALID_ARGUMENT:
	case DDP_NCCL_INVALID_USAGE: return DDP_ERR_INVALID;
	default: return DDP_ERR_IO;
	}
}

ddp_status ddp_nccl_status(const ddp_nccl *nccl, ddp_nccl_handle *handle, int result, const char *call)
{
	const ddp_status status = status_of(result);

	if (status == DDP_OK)
		return DDP_OK;
	const char *last = nccl->last_error(handle);
	return ddp_fail(status, "NCCL: %s: %s%s%s (NCCL_DEBUG=WARN says more)", call, nccl->error_text(result),
	                last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}

/* ---- one communicator ---------------------------------------------------------------------- */

typedef struct beginning {
	const ddp_nccl *nccl;
	int ranks, rank, id_count, result;
	ddp_nccl_id *ids;
	ddp_nccl_config config;
	ddp_nccl_handle **handle;
} beginning;

static void begin(void *argument)
{
	beginning *b = argument;

	b->result = b->id_count > 1
		? b->nccl->init_by_ids(b->handle, b->ranks, b->rank, b->id_count, b->ids, &b->config)
		: b->nccl->init(b->handle, b->ranks, b->ids[0], b->rank, &b->config);
}

ddp_status ddp_nccl_begin(const ddp_nccl *nccl, ddp_device *device, int ranks, int rank, ddp_nccl_id *ids,
                          int id_count, int max_ctas, ddp_nccl_handle **handle)
{
	beginning b = {
		.nccl = nccl, .ranks = ranks, .rank = rank, .ids = ids, .id_count = id_count, .handle = handle,
		.config = { .size = sizeof(b.config), .magic = DDP_NCCL_CONFIG_MAGIC,
		            .version = DDP_NCCL_CONFIG_VERSION, .blocking = 0,
		            .cga_cluster_size = DDP_NCCL_UNSET, .min_ctas = DDP_NCCL_UNSET,
		            .max_ctas = max_ctas > 0 ? max_ctas : DDP_NCCL_UNSET, .split_share = DDP_NCCL_UNSET },
	};

	*handle = NULL;
	ddp_status status = ddp_device_within(device, begin, &b);
	if (status == DDP_OK)
		status = ddp_nccl_status(nccl, *handle, b.result, "ncclCommInitRankConfig()");
	if (status != DDP_OK && *handle != NULL) {
		ddp_nccl_abort(nccl, device, *handle);
		*handle = NULL;
	}
	return status;
}

ddp_status ddp_nccl_ready(const ddp_nccl *nccl, ddp_nccl_handle *handle, bool *ready)
{
	int state = DDP_NCCL_SUCCESS;
	const int result = nccl->async_error(handle, &state);

	*ready = result == DDP_NCCL_SUCCESS && state == DDP_NCCL_SUCCESS;
	if (result != DDP_NCCL_SUCCESS)
		return ddp_nccl_status(nccl, handle, result, "ncclCommGetAsyncError()");
	return ddp_nccl_status(nccl, handle, state, "its communicator has failed");
}

typedef struct ending {
	const ddp_nccl *nccl;
	ddp_nccl_handle *handle;
	int result;
} ending;

static void call_abort(void *argument)
{
	ddp_nccl_aborting *a = argument;

	a->result = a->nccl->abort(a->handle);
}

static void *abort_in_thread(void *argument)
{
	ddp_nccl_aborting *a = argument;

	if (ddp_device_within(a->device, call_abort, a) != DDP_OK ||
	    ddp_nccl_status(a->nccl, NULL, a->result, "ncclCommAbort()") != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	return NULL;
}

void ddp_nccl_begin_abort(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, ddp_nccl_aborting *a)
{
	*a = (ddp_nccl_aborting){ .nccl = nccl, .device = device, .handle = handle };
	if (handle == NULL)
		return;
	a->in_thread = ddp_thread_start(&a->thread, abort_in_thread, a) == 0;
	/* Without threads, at least those communicators end that wait for no other one. */
	if (!a->in_thread)
		abort_in_thread(a);
}

void ddp_nccl_await_abort(ddp_nccl_aborting *a)
{
	if (a->in_thread)
		pthread_join(a->thread, NULL);
	a->in_thread = false;
}

void ddp_nccl_abort(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle)
{
	ddp_nccl_aborting a = { .nccl = nccl, .device = device, .handle = handle };

	abort_in_thread(&a);
}

static void call_finalize(void *argument)
{
	ending *e = argument;

	e->result = e->nccl->finalize(e->handle);
}

static void call_destroy(void *argument)
{
	ending *e = argument;

	e->result = e->nccl->destroy(e->handle);
}

/* Waits until NCCL has done what it was asked, or until `deadline_ns`. */
static bool await_ready(const ddp_nccl *nccl, ddp_nccl_handle *handle, uint64_t deadline_ns)
{
	bool ready = false;

	while (ddp_nccl_ready(nccl, handle, &ready) == DDP_OK && !ready && ddp_now_ns() < deadline_ns)
		usleep(PAUSE_US);
	return ready;
}

bool ddp_nccl_begin_end(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, uint64_t deadline_ns)
{
	ending e = { nccl, handle, DDP_NCCL_SUCCESS };

	if (!await_ready(nccl, handle, deadline_ns))
		return false;
	return ddp_device_within(device, call_finalize, &e) == DDP_OK &&
	       ddp_nccl_status(nccl, handle, e.result, "ncclCommFinalize()") == DDP_OK;
}

void ddp_nccl_end(const ddp_nccl *nccl, ddp_device *device, ddp_nccl_handle *handle, bool begun,
                  uint64_t deadline_ns)
{
	ending e = { nccl, handle, DDP_NCCL_SUCCESS };

	if (!begun || !await_ready(nccl, handle, deadline_ns)) {
		ddp_nccl_abort(nccl, device, handle);
		return;
	}
	if (ddp_device_within(device, call_destroy, &e) != DDP_OK ||
	    ddp_nccl_status(nccl, NULL, e.result, "ncclCommDestroy()") != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
}

/* ---- that of all ranks ------------------------------------------------------------------------ */

/* Number `k` of the ids comes from its rank, with how it fared. */
static ddp_status share_id(const ddp_nccl *nccl, ddp_comm *comm, int root, ddp_nccl_id *id)
{
	struct { ddp_nccl_id id; int32_t status; } told;
	ddp_status own = DDP_OK;

	memset(&told, 0, sizeof(told));
	if (comm->rank == root) {
		own = ddp_nccl_status(nccl, NULL, nccl->get_id(&told.id), "ncclGetUniqueId()");
		told.status = (int32_t)own;
	}
	const ddp_status status = ddp_comm_run(comm, &(ddp_operation){
		.kind = DDP_BROADCAST, .recv = &told, .count = sizeof(told), .type = DDP_U8, .root = root });
	if (status != DDP_OK || own != DDP_OK)
		return status != DDP_OK ? status : own;
	if (told.status != DDP_OK)
		return ddp_fail((ddp_status)told.status, "%s could not make an id of NCCL's", ddp_rank_text(comm, root));
	*id = told.id;
	return DDP_OK;
}

static ddp_status share_ids(const ddp_nccl *nccl, ddp_comm *comm, ddp_nccl_id **ids, int *count)
{
	ddp_status status = DDP_OK;

	*count = nccl->init_by_ids != NULL ? (comm->size - 1) / ddp_nccl_ranks_per_id + 1 : 1;
	*ids = calloc((size_t)*count, sizeof(**ids));
	if (*ids == NULL) /* the others find out by their deadline */
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d ids of NCCL's", *count);
	for (int k = 0; k < *count && status == DDP_OK; k++)
		status = share_id(nccl, comm, (int)((int64_t)k * comm->size / *count), &(*ids)[k]);
	return status;
}

enum { MAKES = -1 }; /* else a ddp_status */

/* "rank 2 on n1 and 3 others" of those that are still at it */
static void name_missing(const ddp_comm *comm, const int32_t *states, char *text, size_t bytes)
{
	int first = DDP_NOBODY, others = -1;

	for (int r = 0; r < comm->size; r++) {
		if (states[r] != MAKES)
			continue;
		first = first == DDP_NOBODY ? r : first;
		others++;
	}
	snprintf(text, bytes, "%s", ddp_rank_text(comm, first));
	const size_t used = strlen(text);
	if (others > 0)
		snprintf(text + used, bytes - used, " and %d other%s", others, others == 1 ? "" : "s");
}

/* Judges by what all ranks see alike, so that all end in the same round. MAKES: not yet. */
static int judge(const ddp_comm *comm, const int32_t *states, ddp_status own, bool late)
{
	char names[160];
	bool all = true;

	for (int r = 0; r < comm->size; r++) {
		all = all && states[r] == DDP_OK;
		if (states[r] == DDP_OK || states[r] == MAKES)
			continue;
		return own != DDP_OK ? own : ddp_fail((ddp_status)states[r], "%s could not make a communicator of NCCL's (%s)",
		                                      ddp_rank_text(comm, r), ddp_status_name((ddp_status)states[r]));
	}
	if (all || !late)
		return all ? DDP_OK : MAKES;
	name_missing(comm, states, names, sizeof(names));
	return ddp_fail(DDP_ERR_TIMEOUT, "NCCL made no communicator of %d ranks within %d ms: %s had not come so far. "
	                "NCCL_DEBUG=INFO says what it waits for: often a network that NCCL_SOCKET_IFNAME should name",
	                comm->size, comm->timeout_ms, names);
}

/* Ranks make it side by side, and tell each other by the host how far they are. Rank 0's
   clock counts. */
static ddp_status await_all(const ddp_nccl *nccl, ddp_comm *comm, ddp_nccl_handle *handle, ddp_status own,
                            int32_t *states)
{
	const uint64_t deadline_ns = ddp_ms_from_now(comm->timeout_ms);
	uint64_t round_ms = FIRST_ROUND_MS;
	int verdict = MAKES;
	bool ready = false;

	while (verdict == MAKES) {
		const uint64_t round_ns = ddp_now_ns() + round_ms * 1000000;
		while (own == DDP_OK && !ready && ddp_now_ns() < round_ns) {
			own = ddp_nccl_ready(nccl, handle, &ready);
			if (!ready)
				usleep(PAUSE_US);
		}
		const int32_t mine[2] = { own == DDP_OK && !ready ? MAKES : (int32_t)own, ddp_now_ns() > deadline_ns };
		const ddp_status status = ddp_comm_run(comm, &(ddp_operation){
			.kind = DDP_ALL_GATHER, .send = mine, .recv = states, .count = 2, .type = DDP_I32 });
		if (status != DDP_OK)
			return status;
		const bool late = states[1] != 0;
		for (int r = 0; r < comm->size; r++)
			states[r] = states[2 * r];
		verdict = judge(comm, states, own, late);
		round_ms = round_ms < LONGEST_ROUND_MS ? 2 * round_ms : LONGEST_ROUND_MS;
	}
	return (ddp_status)verdict;
}

ddp_status ddp_nccl_connect(const ddp_nccl *nccl, ddp_device *device, ddp_comm *comm, int max_ctas,
                            ddp_nccl_handle **handle)
{
	int32_t *states = calloc(2 * (size_t)comm->size, sizeof(*states));
	ddp_nccl_id *ids = NULL;
	int count = 0;

	*handle = NULL;
	ddp_status status = states != NULL ? share_ids(nccl, comm, &ids, &count)
		: ddp_fail(DDP_ERR_NOMEM, "no memory for the states of %d ranks", comm->size);
	if (status == DDP_OK) {
		status = ddp_nccl_begin(nccl, device, comm->size, comm->rank, ids, count, max_ctas, handle);
		status = await_all(nccl, comm, *handle, status, states);
	}
	if (status != DDP_OK && *handle != NULL) {
		char reason[DDP_FAILURE_TEXT];
		snprintf(reason, sizeof(reason), "%s", ddp_last_error());
		ddp_nccl_abort(nccl, device, *handle);
		*handle = NULL;
		(void)ddp_fail(status, "%s", reason);
	}
	free(ids);
	free(states);
	return status;
}
