/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/doing.h"

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

const char *doing_phase_name(uint32_t phase)
{
	const struct phase *found = find_phase(phase);

	if (phase == DOING_NCCL)
		return "nccl";
	return found != NULL ? found->name : "unknown";
}

bool doing_is_busy(const struct doing *doing)
{
	return doing->phase == DDP_PHASE_CHECKPOINT || doing->phase == DDP_PHASE_EVAL ||
	       doing->phase == DDP_PROGRESS_STARTING;
}

uint64_t doing_place(const struct doing *doing)
{
	if (doing->collective > 0 || doing->step <= 0)
		return doing->collective;
	return 2 * (uint64_t)doing->step + (doing->phase != DDP_PHASE_DATA);
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

void doing_read(const struct ddp_progress *page, uint64_t now_ns, struct doing *doing)
{
	struct sink text = sink_on(doing->text, sizeof(doing->text));
	struct sink error = sink_on(doing->error, sizeof(doing->error));

	*doing = (struct doing){ .phase_seconds = -1, .wait_seconds = -1, .culprit = UINT32_MAX };
	if (page->magic != DDP_PROGRESS_MAGIC)
		return;
	doing->known = true;
	doing->closed = page->closed == 1;
	doing->phase = page->writer == DDP_WRITER_NCCL ? DOING_NCCL : page->phase;
	doing->step = page->step > 0 ? page->step : 0;
	if (page->bucket >= 0 && page->buckets > 0 && page->bucket < page->buckets) {
		doing->bucket = page->bucket + 1;
		doing->buckets = page->buckets;
	}
	doing->phase_seconds = seconds_since(page->updated_ns, now_ns);
	doing->collective = page->collective;
	if (page->waiting == DDP_WAITING_COLLECTIVE)
		doing->wait = DOING_WAITS_IN_COLLECTIVE;
	else if (page->waiting == DDP_WAITING_OTHER)
		doing->wait = DOING_WAITS_OTHERWISE;
	doing->wait_seconds = seconds_since(page->collective_ns, now_ns);
	if (text_counts(page))
		sink_add_untrusted(&text, page->collective_text, sizeof(page->collective_text));
	sink_add_untrusted(&error, page->error, sizeof(page->error));
	doing->status = page->status;
	if (page->culprit > 0)
		doing->culprit = page->culprit - 1;
	doing->step_seconds = positive(page->step_seconds);
	doing->step_weight = positive(page->step_weight);
	doing->steps = page->steps > 0 ? page->steps : 0;
}

static void add_wait(struct sink *sink, const struct doing *doing)
{
	if (doing->wait == DOING_WAITS_OTHERWISE) {
		sink_add(sink, ", waiting in %s", doing->text);
	} else if (doing->collective > 0) {
		sink_add(sink, ", %s #%llu",
		         doing->wait == DOING_WAITS_IN_COLLECTIVE ? "waiting in collective"
		         : doing->wait_seconds >= 0 ? "last collective" : "collective",
		         (unsigned long long)doing->collective);
		if (doing->text[0] != '\0')
			sink_add(sink, " %s", doing->text);
	} else {
		return;
	}
	if (doing->wait_seconds >= 0)
		sink_add(sink, doing->wait != DOING_NO_WAIT ? " for %.1f s" : " %.1f s ago",
		         doing->wait_seconds);
}

void doing_add(struct sink *sink, const struct doing *doing)
{
	if (!doing->known)
		return;
	const struct phase *phase = find_phase(doing->phase);
	if (doing->phase == DOING_NCCL)
		sink_add(sink, "%s", doing->wait == DOING_NO_WAIT ? "outside NCCL" : "in NCCL");
	else
		sink_add(sink, "%s", phase != NULL ? phase->sentence : "in an unknown phase");
	if (doing->step > 0)
		sink_add(sink, doing->phase == DDP_PROGRESS_COMPUTING ? " step %lld" : " of step %lld", (long long)doing->step);
	if (doing->phase_seconds >= 0)
		sink_add(sink, " for %.1f s", doing->phase_seconds);
	if (doing->buckets > 0)
		sink_add(sink, ", bucket %d of %d", doing->bucket, doing->buckets);
	add_wait(sink, doing);
}
