/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/bucket.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
	CUT_LEAST = 1 << 16, /* elements of both parts */
	GRAINS_MORE = 512,   /* by refining */
	GRAIN_LEAST = 1 << 14,
};

static int64_t round_size(int64_t size)
{
	size -= size % DDP_ALIGN_ELEMENTS;
	return size < DDP_ALIGN_ELEMENTS ? DDP_ALIGN_ELEMENTS : size;
}

static int64_t slot_end(const ddp_layout *layout, int param)
{
	return param + 1 < layout->count ? layout->slots[param + 1].offset : layout->elements;
}

/* Returns where the bucket that ends at `end` begins. The first parameter is the last to be ready. What is behind
   it need not wait for it, if that is worth another bucket. */
static int64_t cut(const ddp_layout *layout, int64_t end, int64_t most)
{
	const int64_t border = slot_end(layout, 0);
	int64_t begin = end > most ? end - most : 0;

	return border - begin >= CUT_LEAST && end - border >= CUT_LEAST ? border : begin;
}

/* Which parameters each bucket covers a part of. */
static void find_params(const ddp_layout *layout, ddp_bucket_plan *plan)
{
	int param = layout->count - 1;

	for (int k = 0; k < plan->count; k++) {
		ddp_bucket *bucket = &plan->buckets[k];

		while (layout->slots[param].offset >= bucket->end)
			param--;
		bucket->last_param = param;
		while (layout->slots[param].offset > bucket->begin)
			param--;
		bucket->first_param = param;
	}
}

/* Makes room for so many grains. */
static ddp_status make_room(int64_t count, ddp_bucket_plan *plan)
{
	ddp_bucket *buckets = realloc(plan->buckets, (size_t)count * sizeof(*buckets));
	if (buckets != NULL)
		plan->buckets = buckets;
	int64_t *grains = realloc(plan->grains, (size_t)(count + 1) * sizeof(*grains));
	if (grains != NULL)
		plan->grains = grains;
	return buckets != NULL && grains != NULL
		? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for %lld buckets", (long long)count);
}

ddp_status ddp_bucket_plan_make(const ddp_layout *layout, int64_t first_size,
                                int64_t size, ddp_bucket_plan *plan)
{
	ddp_bucket_plan made = { 0 };

	first_size = round_size(first_size);
	size = round_size(size);

	/* The first bucket, one that the cut behind the first parameter adds, and the
	   others; that cut can leave nearly everything to these, however large the
	   first bucket's cap is. */
	int64_t count = 2 + layout->dense / size + (layout->dense % size != 0);
	if (count > INT_MAX / 2)
		return ddp_fail(DDP_ERR_INVALID,
		                "buckets of %lld elements cut the gradients into %lld pieces; use larger ones",
		                (long long)size, (long long)count);
	ddp_status status = make_room(count, &made);
	if (status != DDP_OK) {
		ddp_bucket_plan_free(&made);
		return status;
	}
	made.grains[0] = layout->dense;
	for (int64_t end = layout->dense; end > 0; end = made.grains[made.count]) {
		ddp_bucket *bucket = &made.buckets[made.count];

		bucket->end = end;
		bucket->begin = cut(layout, end, made.count == 0 ? first_size : size);
		made.grains[++made.count] = bucket->begin;
	}
	made.grain_count = made.count;
	find_params(layout, &made);
	*plan = made;
	return DDP_OK;
}

void ddp_bucket_plan_free(ddp_bucket_plan *plan)
{
	free(plan->buckets);
	free(plan->grains);
	*plan = (ddp_bucket_plan){ 0 };
}

ddp_status ddp_bucket_plan_refine(const ddp_layout *layout, ddp_bucket_plan *plan)
{
	const int64_t share = layout->dense / GRAINS_MORE, least = share > GRAIN_LEAST ? share : GRAIN_LEAST;
	int count = 0;

	ddp_status status = make_room((int64_t)plan->count + GRAINS_MORE, plan);
	if (status != DDP_OK)
		return status;
	for (int k = 0; k < plan->count; k++) {
		const ddp_bucket *bucket = &plan->buckets[k];
		for (int i = bucket->last_param; i > bucket->first_param; i--) {
			const int64_t border = layout->slots[i].offset;
			if (plan->grains[count] - border >= least && border - bucket->begin >= least)
				plan->grains[++count] = border;
		}
		plan->grains[++count] = bucket->begin;
	}
	plan->grain_count = count;
	return DDP_OK;
}

void ddp_bucket_plan_cut(const ddp_layout *layout, const int *ends, int count, ddp_bucket_plan *plan)
{
	for (int k = 0; k < count; k++) {
		plan->buckets[k].end = plan->grains[k > 0 ? ends[k - 1] : 0];
		plan->buckets[k].begin = plan->grains[ends[k]];
	}
	plan->count = count;
	find_params(layout, plan);
}

void ddp_bucket_plan_ends(const ddp_bucket_plan *plan, int *ends)
{
	int grain = 0;

	for (int k = 0; k < plan->count; k++) {
		while (plan->grains[grain] > plan->buckets[k].begin)
			grain++;
		ends[k] = grain;
	}
}

int ddp_bucket_of(const ddp_bucket_plan *plan, int64_t offset)
{
	int low = 0, high = plan->count - 1;

	/* Ranges fall as the index rises. */
	while (low < high) {
		int middle = low + (high - low) / 2;
		if (offset >= plan->buckets[middle].begin)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

ddp_status ddp_ready_make(const ddp_layout *layout, const ddp_bucket_plan *plan,
                          ddp_ready *ready)
{
	ddp_ready made = { .layout = layout, .plan = plan };

	made.pending = malloc((size_t)plan->grain_count * sizeof(*made.pending));
	made.announced = malloc((size_t)layout->count * sizeof(*made.announced));
	if (made.pending == NULL || made.announced == NULL) {
		ddp_ready_free(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory to track %d buckets", plan->count);
	}
	ddp_ready_reset(&made);
	*ready = made;
	return DDP_OK;
}

void ddp_ready_free(ddp_ready *ready)
{
	free(ready->pending);
	free(ready->announced);
	*ready = (ddp_ready){ 0 };
}

/* No bucket waits for it any more. */
static void settle(ddp_ready *ready, int param)
{
	const ddp_layout *layout = ready->layout;

	ready->announced[param] = true;
	/* Rows may be added to it until the end of the step. */
	if (layout->slots[param].sparse_rows > 0 && !layout->slots[param].rows_travel)
		return;
	if (layout->slots[param].offset >= layout->dense)
		return;
	int last = ddp_bucket_of(ready->plan, layout->slots[param].offset);
	int first = ddp_bucket_of(ready->plan, slot_end(layout, param) - 1);
	for (int k = first; k <= last; k++)
		ready->pending[k]--;
}

void ddp_ready_reset(ddp_ready *ready)
{
	for (int k = 0; k < ready->plan->count; k++) {
		const ddp_bucket *bucket = &ready->plan->buckets[k];
		ready->pending[k] = bucket->last_param - bucket->first_param + 1;
	}
	memset(ready->announced, 0, (size_t)ready->layout->count * sizeof(*ready->announced));
	ready->announced_count = 0;
	ready->next = 0;
	for (int i = 0; i < ready->layout->trained && ready->absent != NULL; i++) {
		if (ready->absent[ready->layout->slots[i].param])
			settle(ready, i);
	}
}

ddp_status ddp_ready_announce(ddp_ready *ready, int param)
{
	const ddp_layout *layout = ready->layout;

	if (param < 0 || param >= layout->count)
		return ddp_fail(DDP_ERR_INVALID, "no parameter has index %d; there are %d",
		                param, layout->count);
	if (ready->announced[param])
		return ddp_fail(DDP_ERR_STATE,
		                "the gradient of \"%s\" was announced twice in one step; with several "
		                "micro-batches a step, turn sync off for all but the last",
		                layout->slots[param].name);
	ready->announced_count++;
	settle(ready, param);
	return DDP_OK;
}

int ddp_ready_take(ddp_ready *ready, int limit)
{
	if (ready->next >= limit || ready->pending[ready->next] > 0)
		return -1;
	return ready->next++;
}

int ddp_ready_force(ddp_ready *ready, int limit)
{
	return ready->next < limit ? ready->next++ : -1;
}
