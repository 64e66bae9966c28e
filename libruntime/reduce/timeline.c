/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

typedef struct mark {
	ddp_device_event *event;
	ddp_phase phase;
	int64_t step;
} mark;

struct ddp_timeline {
	const ddp_place *place;
	ddp_watch *watch;
	mark *marks;
	int count, room; /* marks of the step, and those that have an event */
	bool ended;      /* by an error, after which nothing more is told */
	uint64_t told_ns; /* up to here: the host comes to know a mark later once than another time */
	uint64_t phase_ns[DDP_PHASES]; /* told, and not taken yet */
};

ddp_timeline *ddp_timeline_open(const ddp_place *place, ddp_watch *watch)
{
	ddp_timeline *made = NULL;

	if (place->device != NULL)
		made = calloc(1, sizeof(*made));
	if (made != NULL)
		*made = (ddp_timeline){ .place = place, .watch = watch };
	return made;
}

void ddp_timeline_close(ddp_timeline *timeline)
{
	if (timeline == NULL)
		return;
	for (int i = 0; i < timeline->room; i++)
		(void)ddp_device_event_free(timeline->place->device, timeline->marks[i].event);
	free(timeline->marks);
	free(timeline);
}

/* An error ends the timeline, and never the training. */
static void end(ddp_timeline *timeline)
{
	if (!timeline->ended)
		ddp_log(DDP_LOG_WARN, "times of forward and backward on the device are no longer known, to the trace and "
		        "metrics: %s", ddp_last_error());
	timeline->ended = true;
}

static ddp_status make_room(ddp_timeline *timeline)
{
	mark *more;

	if (timeline->count < timeline->room)
		return DDP_OK;
	more = realloc(timeline->marks, ((size_t)timeline->room + 1) * sizeof(*more));
	if (more == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %d events", timeline->room + 1);
	timeline->marks = more;
	ddp_status status = ddp_device_event_create_timed(timeline->place->device, &more[timeline->room].event);
	if (status == DDP_OK)
		timeline->room++;
	return status;
}

void ddp_timeline_mark(ddp_timeline *timeline, ddp_phase phase, int64_t step)
{
	if (timeline == NULL || timeline->ended)
		return;
	ddp_status status = make_room(timeline);
	if (status == DDP_OK) {
		mark *next = &timeline->marks[timeline->count];
		next->phase = phase;
		next->step = step;
		status = ddp_device_event_record(timeline->place->device, next->event, timeline->place->stream);
	}
	if (status == DDP_OK)
		timeline->count++;
	else
		end(timeline);
}

/* NULL: of nothing that is told. */
static const char *name_of(ddp_phase phase)
{
	switch (phase) {
	case DDP_PHASE_FORWARD: return "device forward";
	case DDP_PHASE_BACKWARD: return "device backward";
	case DDP_PHASE_OPTIMIZER: return "device update"; /* for which it may wait */
	default: return NULL;
	}
}

/* When the queue came to it, which is at `now` for the last one. */
static ddp_status time_of(const ddp_timeline *timeline, int at, uint64_t now, uint64_t *time)
{
	double seconds = 0;
	const ddp_status status = ddp_device_event_seconds(timeline->place->device, timeline->marks[at].event,
	                                                   timeline->marks[timeline->count - 1].event, &seconds);

	*time = now - (uint64_t)(seconds * 1e9);
	if (*time < timeline->told_ns)
		*time = timeline->told_ns;
	return status;
}

/* The last mark begins what is told of next. */
static void keep_last(ddp_timeline *timeline)
{
	const mark last = timeline->marks[timeline->count - 1];

	timeline->marks[timeline->count - 1] = timeline->marks[0];
	timeline->marks[0] = last;
	timeline->count = 1;
}

void ddp_timeline_tell(ddp_timeline *timeline)
{
	const uint64_t now = ddp_now_ns();
	uint64_t start = 0, stop = 0;
	ddp_status status = DDP_OK;

	if (timeline == NULL || timeline->ended || timeline->count == 0)
		return;
	for (int i = 0; i < timeline->count && status == DDP_OK; i++, start = stop) {
		const mark *before = &timeline->marks[i > 0 ? i - 1 : 0];
		status = time_of(timeline, i, now, &stop);
		if (status != DDP_OK || i == 0 || name_of(before->phase) == NULL)
			continue;
		ddp_watch_device(timeline->watch, name_of(before->phase), before->step, start, stop);
		timeline->phase_ns[before->phase] += stop - start;
	}
	timeline->told_ns = stop;
	if (status == DDP_OK)
		keep_last(timeline);
	else
		end(timeline);
}

double ddp_timeline_take(ddp_timeline *timeline, ddp_phase phase)
{
	const uint64_t taken = timeline != NULL ? timeline->phase_ns[phase] : 0;

	if (timeline != NULL)
		timeline->phase_ns[phase] = 0;
	return (double)taken * 1e-9;
}
