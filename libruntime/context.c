/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/path.h"
#include "base/text.h"
#include "comm/agree.h"
#include "device/device.h"
#include "device/kernel_queue.h"
#include "job/environment.h"
#include "job/job.h"
#include "job/pmix_client.h"
#include "table.h"
#include "watch/page.h"
#include "watch/watch.h"
#include "wireup/agreement.h"
#include "wireup/by_store.h"

static const char file_scheme[] = "file://";

enum {
	DEFAULT_TIMEOUT_MS = 300000, MAX_TIMEOUT_SECONDS = 604800,
	DEFAULT_SILENCE_MS = 5000, MIN_SILENCE_SECONDS = 2, MAX_SILENCE_SECONDS = 3600
};

const char *ddp_version(void)
{
	return PACKAGE_VERSION;
}

static ddp_status choose_timeout(const ddp_options *options, int *timeout_ms)
{
	const char *text = ddp_environment("DDP_TIMEOUT");
	int64_t seconds;

	*timeout_ms = DEFAULT_TIMEOUT_MS;
	if (options->timeout_ms <= 0 && options->timeout_ms != DDP_AUTO)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: timeout_ms is %d; it must be above 0, or DDP_AUTO",
		                options->timeout_ms);
	if (options->timeout_ms > 0) {
		*timeout_ms = options->timeout_ms;
		return DDP_OK;
	}
	if (text == NULL)
		return DDP_OK;
	if (!ddp_parse_int64(text, 1, MAX_TIMEOUT_SECONDS, &seconds))
		return ddp_fail(DDP_ERR_INVALID, "DDP_TIMEOUT is \"%.40s\"; seconds from 1 to %d are expected",
		                text, MAX_TIMEOUT_SECONDS);
	*timeout_ms = (int)seconds * 1000;
	return DDP_OK;
}

static bool is_silence(int64_t ms)
{
	return ms == 0 || (ms >= MIN_SILENCE_SECONDS * 1000 && ms <= MAX_SILENCE_SECONDS * 1000);
}

static ddp_status choose_silence(const ddp_options *options, int *silence_ms)
{
	const char *text = ddp_environment("DDP_SILENCE");
	int64_t seconds;

	*silence_ms = options->silence_ms != DDP_AUTO ? options->silence_ms : DEFAULT_SILENCE_MS;
	if (!is_silence(*silence_ms))
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: silence_ms is %d; %d to %d, 0 (never) or DDP_AUTO are expected",
		                *silence_ms, MIN_SILENCE_SECONDS * 1000, MAX_SILENCE_SECONDS * 1000);
	if (options->silence_ms != DDP_AUTO || text == NULL)
		return DDP_OK;
	if (!ddp_parse_int64(text, 0, MAX_SILENCE_SECONDS, &seconds) || !is_silence(seconds * 1000))
		return ddp_fail(DDP_ERR_INVALID, "DDP_SILENCE is \"%.40s\"; seconds from %d to %d are expected, or 0 for never",
		                text, MIN_SILENCE_SECONDS, MAX_SILENCE_SECONDS);
	*silence_ms = (int)seconds * 1000;
	return DDP_OK;
}

/* As early as the local rank is known, so that the failure report can tell of
   a wire-up that went wrong. */
static ddp_status open_watch(ddp_context *context)
{
	const bool knows_page = context->job.local_rank != DDP_UNKNOWN || context->job.identity_source == DDP_SOURCE_GIVEN;

	if (context->watch != NULL || !knows_page)
		return DDP_OK;
	return ddp_watch_open(&context->job, &context->watch);
}

static ddp_status open_device(ddp_context *context, const ddp_options *options)
{
	const char *name = options->device;

	if (options->max_ctas < 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: max_ctas is %d", options->max_ctas);
	ddp_status status = name != NULL ? ddp_device_open(name, &context->device) : DDP_OK;
	if (status == DDP_OK) {
		ddp_comm_use_device(context->world, context->device);
		ddp_comm_limit_ctas(context->world, options->max_ctas);
	}
	return status;
}

/* Once ranks can tell each other: a device or a file may be wrong on one of them. */
static ddp_status record(ddp_context *context, const ddp_options *options)
{
	ddp_status status = open_device(context, options);

	if (status == DDP_OK)
		status = ddp_watch_record(
			context->watch, &context->job, options->metrics_path,
			options->trace_dir != NULL ? options->trace_dir : ddp_environment("DDP_TRACE_DIR"));
	return ddp_comm_agree(context->world, status, "open its device, or write its metrics or its trace");
}

static ddp_status discover(const ddp_options *options, ddp_job *job, ddp_key *key)
{
	if (options->job == NULL)
		return ddp_job_discover(job, key);
	const ddp_status status = ddp_environment_key(key);
	return status == DDP_OK ? ddp_job_take(options->job, job) : status;
}

static ddp_status open_wireup(ddp_context *context, const ddp_options *options, uint64_t deadline_ns)
{
	const char *wireup = options->wireup;
	const bool file = wireup != NULL && strncmp(wireup, file_scheme, strlen(file_scheme)) == 0;

	if (options->store != NULL && wireup != NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: there is a store, and wireup \"%.40s\": give one of them", wireup);
	if (options->store != NULL)
		return ddp_by_store_open(&context->job, options->store, "the store", &context->key, &context->wireup);
	if (file && wireup[strlen(file_scheme)] != '/')
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: wireup \"%.200s\" is no file://PATH whose path begins with /", wireup);
	if (file)
		return ddp_by_file_open(&context->job, wireup + strlen(file_scheme), &context->key, deadline_ns, &context->wireup);
	return ddp_wireup_open(&context->job, &context->key, wireup, deadline_ns, &context->wireup);
}

/* Whether srun has started this process for a step whose ranks may meet again, and whether they wait for it. */
static ddp_status read_renewal(ddp_context *context, const ddp_options *options)
{
	const char *text = ddp_environment("DDP_JOINS");
	const ddp_job *job = &context->job;
	ddp_renewal *renewal = &context->renewal;
	int64_t generation;

	/* The ranks of ddp_spawn() and torchrun are none of srun's. */
	if (text == NULL || job->identity_source == DDP_SOURCE_SPAWN || ddp_environment("TORCHELASTIC_RUN_ID") != NULL)
		return DDP_OK;
	renewal->barred = !job->plugin || options->wireup != NULL || options->store != NULL;
	if (renewal->barred)
		return DDP_OK;
	if (!ddp_parse_int64(text, 0, UINT32_MAX, &generation))
		return ddp_fail(DDP_ERR_JOB, "DDP_JOINS is \"%.40s\"; a number is expected", text);
	renewal->possible = true;
	renewal->joins = generation > 0;
	renewal->generation = (uint32_t)generation;
	renewal->alone = *job;
	renewal->alone.rank = renewal->alone.local_rank = renewal->alone.node_rank = 0;
	renewal->alone.world_size = renewal->alone.local_world_size = renewal->alone.nnodes = 1;
	return DDP_OK;
}

/* The others join a newcomer when it has made its model. */
static ddp_status open_alone(ddp_context *context, const ddp_options *options, uint64_t deadline_ns)
{
	const ddp_job *job = &context->renewal.alone;

	ddp_status status = ddp_wireup_open(job, &context->key, NULL, deadline_ns, &context->wireup);
	if (status == DDP_OK)
		status = ddp_comm_open(job, context->wireup, context->timeout_ms, NULL, &context->world);
	if (status != DDP_OK)
		return status;
	ddp_comm_set_watch(context->world, context->watch);
	return record(context, options);
}

static ddp_status open_context(ddp_context *context, const ddp_options *options)
{
	const ddp_job *job = &context->job;
	uint64_t start_ns = ddp_now_ns();
	uint64_t deadline_ns = start_ns + (uint64_t)context->timeout_ms * 1000000u;

	ddp_status status = read_renewal(context, options);
	if (status == DDP_OK)
		status = open_watch(context);
	if (ddp_watch_page(context->watch) != NULL)
		ddp_watch_page(context->watch)->timeout_ms = (uint32_t)context->timeout_ms;
	if (status == DDP_OK && context->renewal.joins)
		return open_alone(context, options, deadline_ns);
	ddp_page_wait(ddp_watch_page(context->watch), 0, start_ns, DDP_PROGRESS_FIRST_EXCHANGE);
	if (status == DDP_OK)
		status = open_wireup(context, options, deadline_ns);
	if (status == DDP_OK)
		context->wireup->silence_ms = context->silence_ms;
	if (status == DDP_OK)
		status = ddp_agree(context->wireup, &context->job, deadline_ns);
	if (status == DDP_OK)
		status = open_watch(context);
	if (status != DDP_OK)
		return status;
	ddp_log(DDP_LOG_INFO, "rank %d of %d on %s: wired up by %s in %.3f s", job->rank,
	        job->world_size, job->hostname, context->wireup->ops->name,
	        ddp_seconds_since(start_ns));
	status = ddp_comm_open(job, context->wireup, context->timeout_ms, NULL, &context->world);
	if (status == DDP_OK) {
		ddp_comm_set_watch(context->world, context->watch);
		status = record(context, options);
	}
	if (status == DDP_OK && context->wireup->ops->settle != NULL)
		context->wireup->ops->settle(context->wireup);
	ddp_page_go_on(ddp_watch_page(context->watch));
	return status;
}

/* The communicator may be NULL, the rest unopened. Returns the error of closing the communicator. */
static ddp_status release(ddp_context *context)
{
	ddp_kept_error kept;

	ddp_error_keep(&kept, ddp_comm_close(context->world));
	if (ddp_comm_close(context->renewal.former) != DDP_OK)
		ddp_log(DDP_LOG_DEBUG, "%s", ddp_last_error());
	if (context->renewal.former_wireup != NULL)
		context->renewal.former_wireup->ops->close(context->renewal.former_wireup);
	if (ddp_device_close(context->device) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	if (context->wireup != NULL)
		context->wireup->ops->close(context->wireup);
	ddp_pmix_detach();
	ddp_watch_close(context->watch);
	OPENSSL_cleanse(&context->key, sizeof(context->key));
	free(context);
	return ddp_error_return(&kept);
}

ddp_status ddp_init(const ddp_options *given, ddp_context **context)
{
	ddp_options options = DDP_OPTIONS;

	if (context == NULL)
		return ddp_fail_null("ddp_init", "context");
	ddp_status status = ddp_options_copy("ddp_options", given, &options, sizeof(options));
	if (status != DDP_OK)
		return status;
	ddp_path_keep_standard_descriptors();
	ddp_context *opened = calloc(1, sizeof(*opened));
	if (opened == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "ddp_init: no memory for a context");
	status = choose_timeout(&options, &opened->timeout_ms);
	if (status == DDP_OK)
		status = choose_silence(&options, &opened->silence_ms);
	if (status == DDP_OK)
		status = discover(&options, &opened->job, &opened->key);
	opened->requeues = ddp_environment_requeues();
	if (status == DDP_OK)
		status = open_context(opened, &options);
	if (status != DDP_OK) {
		ddp_kept_error why;

		/* Closing may fail, too; what counts is why this began. */
		ddp_error_keep(&why, status);
		ddp_page_error(ddp_watch_page(opened->watch), status, DDP_ERROR_FINAL, ddp_error_rank(), NULL, why.text);
		(void)release(opened);
		return ddp_error_return(&why);
	}
	*context = opened;
	return DDP_OK;
}

ddp_status ddp_finalize(ddp_context *context)
{
	ddp_kept_error kept;

	if (context == NULL)
		return DDP_OK;
	if (ddp_comm_check_owner(context->world, "ddp_finalize()") != DDP_OK)
		return DDP_ERR_STATE;
	ddp_error_keep(&kept, ddp_comm_await_all(context->world));
	const ddp_status released = release(context);
	return kept.status == DDP_OK ? released : ddp_error_return(&kept);
}

const ddp_job *ddp_get_job(const ddp_context *context)
{
	return context != NULL ? &context->job : NULL;
}

ddp_comm *ddp_world(ddp_context *context)
{
	return context != NULL ? context->world : NULL;
}

/* ---- what programs without a model tell ---------------------------------------------- */

void ddp_context_set_phase(ddp_context *context, ddp_phase phase)
{
	if (context != NULL)
		ddp_watch_phase(context->watch, phase);
}

ddp_status ddp_context_begin_step(ddp_context *context, int64_t step, int64_t last)
{
	if (context == NULL)
		return ddp_fail_null("ddp_context_begin_step", "context");
	if (step < 1 || last < 0)
		return ddp_fail(DDP_ERR_INVALID, "ddp_context_begin_step(): step %lld, last step %lld; steps count from 1",
		                (long long)step, (long long)last);
	ddp_watch_begin_step(context->watch, step, 0);
	ddp_watch_last_step(context->watch, last);
	return DDP_OK;
}

ddp_status ddp_context_end_step(ddp_context *context, const ddp_step_stats *stats)
{
	if (context == NULL || stats == NULL)
		return ddp_fail_null("ddp_context_end_step", context == NULL ? "context" : "stats");
	ddp_watch_end_step(context->watch, stats);
	return DDP_OK;
}

ddp_status ddp_context_fail(ddp_context *context, const char *reason)
{
	if (context == NULL || reason == NULL)
		return ddp_fail_null("ddp_context_fail", context == NULL ? "context" : "reason");
	if (ddp_comm_check_owner(context->world, "ddp_context_fail()") != DDP_OK)
		return DDP_ERR_STATE;
	/* If another rank's failure came first, it is the cause of this one, and stays on the page. The report begins with
	   this rank's name. */
	if (ddp_comm_fail(context->world, reason))
		ddp_page_error(ddp_watch_page(context->watch), DDP_ERR_ABORTED, DDP_ERROR_FINAL, context->job.rank, NULL, reason);
	return DDP_OK;
}

ddp_status ddp_kernels_open(ddp_context *context, int version, int type, void *stream, dk_queue **queue)
{
	if (context == NULL || queue == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_kernels_open(): a NULL argument");
	if (version != DK_TABLE_VERSION)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "the program was compiled with version %d of the kernels, "
		                "and this libddp has version %d: build both from one release", version,
		                DK_TABLE_VERSION);
	if (type < DK_F32 || type > DK_MIXED_F16)
		return ddp_fail(DDP_ERR_INVALID, "ddp_kernels_open(): %d is no dk_type", type);
	return ddp_kernel_queue_open(context->device, stream, (dk_type)type, queue);
}

void ddp_kernels_close(dk_queue *queue)
{
	ddp_kernel_queue_close(queue);
}
