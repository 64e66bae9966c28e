/* SPDX-License-Identifier: Apache-2.0 */
#include "renewal.h"

#include <openssl/crypto.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hex.h"
#include "base/log.h"
#include "comm/adopt.h"
#include "watch/page.h"
#include "watch/watch.h"
#include "wireup/agreement.h"

enum { LOOK_MS = 2, LONG_MS = 10000 };

static ddp_status take(ddp_context *context, const struct ddp_progress_deal *deal)
{
	ddp_job *job = &context->job;

	if (strlen(deal->key) != 2 * DDP_KEY_BYTES || !ddp_parse_hex(deal->key, context->key.bytes, DDP_KEY_BYTES) ||
	    deal->master_port < 1 || deal->master_port > 65535)
		return ddp_fail(DDP_ERR_JOB, "the identity that srun has dealt on the progress page is none");
	memcpy(job->master_addr, deal->master_addr, sizeof(job->master_addr));
	job->master_port = (int)deal->master_port;
	job->restart_count = deal->restart_count;
	context->renewal.generation = deal->generation;
	return DDP_OK;
}

static ddp_status await_deal(const ddp_context *context, struct ddp_progress_deal *deal)
{
	const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000 };
	const uint64_t start_ns = ddp_now_ns(), deadline_ns = ddp_ms_from_now(context->timeout_ms);
	bool told = false;

	while (!ddp_page_deal(&context->job, deal) || deal->generation <= context->renewal.generation) {
		if (ddp_now_ns() > deadline_ns)
			return ddp_fail(DDP_ERR_TIMEOUT, "srun has not started others in place of the ranks that are "
			                "lost within %d s", context->timeout_ms / 1000);
		if (!told && ddp_now_ns() - start_ns > LONG_MS * 1000000ull)
			ddp_log(DDP_LOG_WARN, "rank %d has waited %d s for srun to start others in place of the ranks that are "
			        "lost, and waits %d s at most", context->job.rank, LONG_MS / 1000, context->timeout_ms / 1000);
		told = ddp_now_ns() - start_ns > LONG_MS * 1000000ull;
		nanosleep(&pause, NULL);
	}
	return DDP_OK;
}

ddp_status ddp_renewal_await(ddp_context *context)
{
	struct ddp_progress *page = ddp_watch_page(context->watch);
	struct ddp_progress_deal deal;

	ddp_page_wait(page, 0, ddp_now_ns(), "others that srun starts in place of lost ranks");
	ddp_status status = await_deal(context, &deal);
	ddp_page_go_on(page);
	if (status == DDP_OK)
		status = take(context, &deal);
	OPENSSL_cleanse(&deal, sizeof(deal));
	return status;
}

static ddp_status open_world(ddp_context *context, ddp_wireup **wireup, ddp_comm **world)
{
	const uint64_t deadline_ns = ddp_ms_from_now(context->timeout_ms);

	ddp_status status = ddp_wireup_open(&context->job, &context->key, NULL, deadline_ns, wireup);
	if (status != DDP_OK)
		return status;
	(*wireup)->silence_ms = context->silence_ms;
	status = ddp_agree(*wireup, &context->job, deadline_ns);
	return status == DDP_OK ? ddp_comm_open(&context->job, *wireup, context->timeout_ms, context->world, world) : status;
}

ddp_status ddp_renewal_meet(ddp_context *context)
{
	ddp_renewal *renewal = &context->renewal;
	ddp_wireup *wireup = NULL;
	ddp_comm *world = NULL;

	ddp_page_wait(ddp_watch_page(context->watch), 0, ddp_now_ns(), DDP_PROGRESS_FIRST_EXCHANGE);
	ddp_status status = open_world(context, &wireup, &world);
	ddp_page_go_on(ddp_watch_page(context->watch));
	if (status != DDP_OK) {
		ddp_kept_error why;
		ddp_error_keep(&why, status);
		if (wireup != NULL)
			wireup->ops->close(wireup);
		return ddp_error_return(&why);
	}
	ddp_comm_set_watch(world, context->watch);
	ddp_comm_use_device_of(world, context->world);
	if (wireup->ops->settle != NULL)
		wireup->ops->settle(wireup);
	ddp_renewal_forget(context);
	renewal->former = context->world;
	renewal->former_wireup = context->wireup;
	renewal->joins = false;
	context->world = world;
	context->wireup = wireup;
	return DDP_OK;
}

void ddp_renewal_place(const ddp_context *context, const ddp_comm *comm, int *rank, int *ranks)
{
	const bool joins = context->renewal.joins && comm == context->world;

	*rank = joins ? context->job.rank : ddp_comm_rank(comm);
	*ranks = joins ? context->job.world_size : ddp_comm_size(comm);
}

void ddp_renewal_forget(ddp_context *context)
{
	ddp_renewal *renewal = &context->renewal;

	/* That world is broken, or this rank's alone. */
	if (ddp_comm_close(renewal->former) != DDP_OK)
		ddp_log(DDP_LOG_DEBUG, "%s", ddp_last_error());
	if (renewal->former_wireup != NULL)
		renewal->former_wireup->ops->close(renewal->former_wireup);
	renewal->former = NULL;
	renewal->former_wireup = NULL;
}
