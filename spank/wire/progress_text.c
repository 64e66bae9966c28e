/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/progress_text.h"

#include <math.h>

#include "ddp.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct phase {
	const char *name, *sentence;
};

/* In the order of enum ddp_phase of ddp.h. */
static const struct phase phases[] = {
	{ "idle", "between steps" },
	{ "data", "loading data" },
	{ "forward", "in forward" },
	{ "backward", "in backward" },
	{ "wait", "waiting for gradients" },
	{ "optimizer", "in the optimizer" },
	{ "checkpoint", "writing a checkpoint" },
	{ "eval", "in evaluation" },
};

/* In the order of enum ddp_progress_phase. */
static const struct phase other_phases[] = {
	{ "starting", "starting" },
	{ "compute", "computing" },
	{ "ending", "at its end" },
};

static const struct phase *find_phase(uint32_t phase)
{
	if (phase < COUNT(phases))
		return &phases[phase];
	if (phase >= DDP_PROGRESS_STARTING && phase - DDP_PROGRESS_STARTING < COUNT(other_phases))
		return &other_phases[phase - DDP_PROGRESS_STARTING];
	return NULL;
}

const char *progress_phase_name(uint32_t phase)
{
	const struct phase *found = find_phase(phase);

	if (phase == PROGRESS_NCCL)
		return "nccl";
	return found != NULL ? found->name : "unknown";
}

bool progress_text_is_busy(const struct progress_text *progress)
{
	return progress->phase == DDP_PHASE_CHECKPOINT || progress->phase == DDP_PHASE_EVAL ||
	       progress->phase == DDP_PROGRESS_STARTING;
}

uint64_t progress_text_place(const struct progress_text *progress)
{
	if (progress->collective > 0 || progress->step <= 0)
		return progress->collective;
	return 2 * (uint64_t)progress->step + (progress->phase != DDP_PHASE_DATA);
}

static double seconds_since(uint64_t then_ns, uint64_t now_ns)
{
	return then_ns > 0 && then_ns <= now_ns ? (double)(now_ns - then_ns) * 1e-9 : -1;
}

static double positive(double value)
{
	return isfinite(value) && value > 0 && value < 1e15 ? value : 0;
}

/* An older libddp describes every collective, and tells of no waits. */
static bool text_counts(const struct ddp_progress *page)
{
	if (page->waiting == DDP_WAITING_OTHER)
		return true;
	return page->collective > 0 &&
	       (page->collective_ns == 0 || page->described == page->collective);
}

void progress_text_read(const struct ddp_progress *page, uint64_t now_ns, struct progress_text *progress)
{
	struct sink text = sink_on(progress->text, sizeof(progress->text));
	struct sink error = sink_on(progress->error, sizeof(progress->error));

	*progress = (struct progress_text){ .phase_seconds = -1, .wait_seconds = -1, .culprit = UINT32_MAX };
	if (page->magic != DDP_PROGRESS_MAGIC)
		return;
	progress->known = true;
	progress->closed = page->closed == 1;
	progress->phase = page->writer == DDP_WRITER_NCCL ? PROGRESS_NCCL : page->phase;
	progress->step = page->step > 0 ? page->step : 0;
	if (page->bucket >= 0 && page->buckets > 0 && page->bucket < page->buckets) {
		progress->bucket = page->bucket + 1;
		progress->buckets = page->buckets;
	}
	progress->phase_seconds = seconds_since(page->updated_ns, now_ns);
	progress->collective = page->collective;
	if (page->waiting == DDP_WAITING_COLLECTIVE)
		progress->wait = PROGRESS_WAITS_IN_COLLECTIVE;
	else if (page->waiting == DDP_WAITING_OTHER)
		progress->wait = PROGRESS_WAITS_OTHERWISE;
	progress->wait_seconds = seconds_since(page->collective_ns, now_ns);
	if (text_counts(page))
		sink_add_untrusted(&text, page->collective_text, sizeof(page->collective_text));
	sink_add_untrusted(&error, page->error, sizeof(page->error));
	progress->status = page->status;
	if (page->culprit > 0)
		progress->culprit = page->culprit - 1;
	progress->step_seconds = positive(page->step_seconds);
	progress->step_weight = positive(page->step_weight);
	progress->steps = page->steps > 0 ? page->steps : 0;
}

static void add_wait(struct sink *sink, const struct progress_text *progress)
{
	if (progress->wait == PROGRESS_WAITS_OTHERWISE) {
		sink_add(sink, ", waiting in %s", progress->text);
	} else if (progress->collective > 0) {
		sink_add(sink, ", %s #%llu",
		         progress->wait == PROGRESS_WAITS_IN_COLLECTIVE ? "waiting in collective"
		         : progress->wait_seconds >= 0 ? "last collective" : "collective",
		         (unsigned long long)progress->collective);
		if (progress->text[0] != '\0')
			sink_add(sink, " %s", progress->text);
	} else {
		return;
	}
	if (progress->wait_seconds >= 0)
		sink_add(sink, progress->wait != PROGRESS_NO_WAIT ? " for %.1f s" : " %.1f s ago",
		         progress->wait_seconds);
}

void progress_text_add(struct sink *sink, const struct progress_text *progress)
{
	if (!progress->known)
		return;
	const struct phase *phase = find_phase(progress->phase);
	if (progress->phase == PROGRESS_NCCL)
		sink_add(sink, "%s", progress->wait == PROGRESS_NO_WAIT ? "outside NCCL" : "in NCCL");
	else
		sink_add(sink, "%s", phase != NULL ? phase->sentence : "in an unknown phase");
	if (progress->step > 0)
		sink_add(sink, progress->phase == DDP_PROGRESS_COMPUTING ? " step %lld" : " of step %lld", (long long)progress->step);
	if (progress->phase_seconds >= 0)
		sink_add(sink, " for %.1f s", progress->phase_seconds);
	if (progress->buckets > 0)
		sink_add(sink, ", bucket %d of %d", progress->bucket, progress->buckets);
	add_wait(sink, progress);
}
