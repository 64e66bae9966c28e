/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels.h"

static ddp_status no_memory(int64_t numbers)
{
	return ddp_fail(DDP_ERR_NOMEM, "no memory for %lld sums of squares", (long long)numbers);
}

ddp_status ddp_squares_open(ddp_model *model)
{
	/* A bucket, and a unit, has at most one piece that is not a whole one. */
	const int64_t most = model->layout.elements / DDP_PIECE_ELEMENTS + model->units.count +
	                     model->plan.grain_count + 1;
	ddp_squares *s = &model->squares;
	void *sums;

	s->most = most;
	s->here = malloc((size_t)most * sizeof(*s->here));
	s->runs = malloc((size_t)most * sizeof(*s->runs));
	s->added = malloc((size_t)most * sizeof(*s->added));
	if (s->here == NULL || s->runs == NULL || s->added == NULL)
		return no_memory(most);
	s->sums = s->here;
	if (model->place.device == NULL)
		return DDP_OK;
	ddp_status status = ddp_place_alloc(&model->place, (size_t)most * sizeof(*s->sums), &sums);
	s->sums = status == DDP_OK ? sums : NULL;
	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "sums of squares");
}

void ddp_squares_close(ddp_model *model)
{
	ddp_squares *s = &model->squares;

	if (model->place.device != NULL)
		ddp_place_free(&model->place, s->sums);
	free(s->here);
	free(s->runs);
	free(s->added);
	*s = (ddp_squares){ 0 };
}

void ddp_squares_begin(ddp_model *model, bool wanted)
{
	ddp_squares *s = &model->squares;

	s->wanted = wanted;
	s->count = s->run_count = 0;
	s->added_count = 0;
}

/* Sums that are there, or will be. */
static void add_run(ddp_squares *s, int64_t count)
{
	s->count += count;
	s->runs[s->run_count++] = (int)count;
}

/* A device, which needs many pieces at once to be quick, has few launches for all arrays. */
static void begin_added(ddp_squares *s)
{
	dk_squares_at(s->sums + s->count, s->added, s->added_count, DDP_PIECE_ELEMENTS);
	for (int64_t r = 0; r < s->added_count; r++)
		for (int64_t i = ddp_pieces_in(s->added[r].n); i > 0; i--)
			add_run(s, 1);
	s->added_count = 0;
}

/* Values after the last whole piece join it, so that the pieces stay the same. */
void ddp_squares_add(ddp_model *model, const float *values, int64_t count)
{
	ddp_squares *s = &model->squares;
	dk_array *last = s->added_count > 0 ? &s->added[s->added_count - 1] : NULL;

	if (count == 0)
		return;
	if (last != NULL && values == last->x + last->n && last->n % DDP_PIECE_ELEMENTS == 0)
		last->n += count;
	else
		s->added[s->added_count++] = (dk_array){ values, count };
}

void ddp_squares_update(ddp_model *model, const ddp_update *update, float *params, float *grads,
                        int64_t begin, int64_t end, int64_t at)
{
	ddp_squares *s = &model->squares;

	if (begin == end)
		return;
	if (model->place.device == NULL) {
		const double sum = ddp_optim_apply(&model->optim, update, params, grads, begin, end, at);
		if (s->wanted) {
			s->here[s->count] = sum;
			add_run(s, 1);
		}
		return;
	}
	if (s->wanted) {
		dk_squares_at(s->sums + s->count, &(dk_array){ grads, end - begin }, 1, DDP_PIECE_ELEMENTS);
		add_run(s, ddp_pieces_in(end - begin));
	}
	ddp_optim_enqueue(&model->optim, update, params, grads, begin, end, at);
}

static double sum_up(const ddp_squares *s)
{
	const double *next = s->here;
	double all = 0;

	for (int r = 0; r < s->run_count; r++) {
		double sum = 0;
		for (int i = 0; i < s->runs[r]; i++)
			sum += *next++;
		all += sum;
	}
	return all;
}

ddp_status ddp_squares_end(ddp_model *model, double *squares)
{
	ddp_squares *s = &model->squares;
	ddp_status status = DDP_OK;

	begin_added(s);
	if (model->place.device != NULL) {
		ddp_watch_phase(model->context->watch, DDP_PHASE_WAIT);
		status = ddp_model_end_buckets(model);
		ddp_watch_phase(model->context->watch, DDP_PHASE_OPTIMIZER);
		if (status == DDP_OK)
			status = ddp_place_read(&model->place, s->here, s->sums, (size_t)s->count * sizeof(*s->here));
	}
	*squares = status == DDP_OK ? sum_up(s) : 0;
	return status;
}
