/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/merge.h"

#include <math.h>
#include <string.h>

static double later(double a, double b)
{
	return a > b ? a : b;
}

static double all_ready(const ddp_merge_case *c)
{
	double ready = 0;

	for (int i = 0; i < c->count; i++)
		ready = later(ready, c->ready[i]);
	return ready;
}

static int64_t all_elements(const ddp_merge_case *c)
{
	int64_t elements = 0;

	for (int i = 0; i < c->count; i++)
		elements += c->elements[i];
	return elements;
}

double ddp_merge_end(const ddp_merge_case *c, const int *ends, int count)
{
	double sent = 0, updated = all_ready(c);
	int i = 0;

	for (int k = 0; k < count; k++) {
		int64_t elements = 0;
		for (; i < ends[k]; i++) {
			sent = later(sent, c->ready[i]);
			elements += c->elements[i];
		}
		sent += c->latency + c->per_element * (double)elements;
		updated = later(updated, sent) + c->update * (double)elements;
	}
	return updated;
}

/* Cuts so that the step ends by `limit`, if that can be; how many buckets, or 0. It does so
   exactly if what follows each bucket's end, the updates from it to the last, still fits. Of
   all cuts that do, each bucket is to end as early as it can: nothing behind it is the worse
   for that. */
static int cut_within(const ddp_merge_case *c, double limit, int *ends)
{
	double done[DDP_GRAINS_MAX + 1] = { 0 }; /* of the grains before i: when they have been sent */
	double updates[DDP_GRAINS_MAX + 1];      /* of the grains from i on */
	int from[DDP_GRAINS_MAX + 1] = { 0 };    /* where the bucket begins that ends before grain i */
	int count = 0;

	updates[c->count] = 0;
	for (int i = c->count - 1; i >= 0; i--)
		updates[i] = updates[i + 1] + c->update * (double)c->elements[i];
	for (int end = 1; end <= c->count; end++) {
		double ready = 0, seconds = c->latency;
		done[end] = INFINITY;
		for (int i = end - 1; i >= 0; i--) {
			ready = later(ready, c->ready[i]);
			seconds += c->per_element * (double)c->elements[i];
			const double sent = later(done[i], ready) + seconds;
			if (sent < done[end] && sent + updates[i] <= limit) {
				done[end] = sent;
				from[end] = i;
			}
		}
	}
	if (isinf(done[c->count]))
		return 0;
	for (int end = c->count; end > 0; end = from[end])
		count++;
	for (int end = c->count, k = count; end > 0; end = from[end])
		ends[--k] = end;
	return count;
}

int ddp_merge(const ddp_merge_case *c, int *ends)
{
	enum { HALVINGS = 30 };
	int tried[DDP_GRAINS_MAX], count = 1;

	ends[0] = c->count;
	double low = all_ready(c) + c->update * (double)all_elements(c), high = ddp_merge_end(c, ends, 1);
	double limit = low; /* no step ends earlier */
	for (int i = 0; i < HALVINGS && low < high; i++) {
		const int found = cut_within(c, limit, tried);
		if (found > 0) {
			count = found;
			memcpy(ends, tried, (size_t)found * sizeof(*ends));
			high = ddp_merge_end(c, ends, count);
		} else {
			low = limit;
		}
		limit = low + (high - low) / 2;
	}
	return count;
}
