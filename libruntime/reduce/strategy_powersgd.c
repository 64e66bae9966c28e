/* SPDX-License-Identifier: Apache-2.0 */
/* powersgd: matrices of gradients as products of two of low rank (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical
   Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019). With M = sum of all ranks' matrices
   [rows, columns] and an orthonormal right [rank, columns] of the step before:

     left  = right M^T    [rank, rows], all-reduced, then made orthonormal;
     right = left M       [rank, columns], all-reduced;
     M is taken to be left^T right.

   Both factors are stored with their long side in a row. A bucket's matrices travel as these two factors, and what
   that leaves out is kept on each rank and added to its gradients of the next step. The
   left factors go when the bucket is complete, with what is not compressed; the right
   ones, when these are back: in a lane of their own, as that is not at the same time on
   all ranks. What a step learns counts only once its gradients have updated parameters,
   so a step may be forgotten.

   Only the sum of what ranks keep matters to the steps to come. So a checkpoint, which
   may be resumed by another number of ranks, has that sum; and rank 0 then has it for all,
   after saving as after loading: so both go on to the same bits.

   On a device all of that is enqueued, and no factor comes to the host. There the right
   factors are sent behind the backward pass: the program's queue would wait for the left ones,
   and hold up what backward has still to do. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/request.h"
#include "kernels.h"
#include "reduce/bucket.h"
#include "reduce/model_state.h"
#include "reduce/options.h"
#include "reduce/strategy_all_reduce.h"
#include "reduce/tensors.h"

enum {
	RIGHT_LANE = DDP_LANES - 1, /* of the host */
	SETTLE_ELEMENTS = 1 << 24, /* 64 MiB: a deadline for each */
};

/* A parameter that is compressed. Its places are elements of memory that all share. */
typedef struct ddp_matrix {
	const ddp_slot *slot;
	int64_t rows, columns, rank;
	int64_t kept;         /* of what is kept back: [rows, columns] */
	int64_t start;        /* of the next step's right: [rank, columns] */
	int64_t left, right;  /* of what travels */
	int64_t kept_shape[2], right_shape[2]; /* as tensors of a checkpoint */
} ddp_matrix;

/* Elements of the arenas that travel as they are. */
typedef struct ddp_plain_range {
	int64_t begin, end;
} ddp_plain_range;

/* A bucket sends twice: first its plain ranges, one after the other, and the
   left factors of the matrices that end in it (which are complete when it is); then the
   right ones. */
typedef struct ddp_powersgd_bucket {
	int first_matrix, end_matrix;
	int first_range, end_range;
	int64_t first, first_count;   /* of what travels */
	int64_t second, second_count;
} ddp_powersgd_bucket;

typedef struct ddp_powersgd_plan {
	int matrix_count, range_count, bucket_count;
	ddp_matrix *matrices;         /* in the order of the buckets */
	ddp_plain_range *ranges;
	ddp_powersgd_bucket *buckets;
	int64_t kept, starts, travels; /* elements of each memory */
} ddp_powersgd_plan;

typedef struct powersgd {
	ddp_powersgd_plan plan;
	float *travel;  /* of ddp_mem_alloc_on() */
	float *kept;    /* what the steps before have left out; NULL without feedback */
	float *next;    /* this rank's matrices of the step; then what it has left out */
	float *starts;  /* right factors to start the next step from */
	int started, advanced, ended; /* in this step: buckets before them have been sent, have
	                                 sent their right factors, are reduced */
} powersgd;

/* ---- which tensors are compressed, and where factors lie ----------------------------- */

static int64_t aligned(int64_t elements)
{
	return (elements + DDP_ALIGN_ELEMENTS - 1) / DDP_ALIGN_ELEMENTS * DDP_ALIGN_ELEMENTS;
}

/* Describes the parameter as a matrix of its first dimension and the others. False: that would save too little. */
static bool describe(const ddp_slot *slot, const ddp_powersgd_options *settings, ddp_matrix *matrix)
{
	if (slot->ndim < 2)
		return false;
	*matrix = (ddp_matrix){ .slot = slot, .rows = slot->shape[0],
	                        .columns = slot->count / slot->shape[0], .rank = settings->rank };
	if (matrix->rank > matrix->rows)
		matrix->rank = matrix->rows;
	if (matrix->rank > matrix->columns)
		matrix->rank = matrix->columns;
	const double factors = (double)(matrix->rows + matrix->columns) * (double)matrix->rank;
	return factors * settings->min_rate < (double)slot->count;
}

static int64_t slot_end(const ddp_layout *layout, int i)
{
	return i + 1 < layout->count ? layout->slots[i + 1].offset : layout->elements;
}

static void add_range(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket, int64_t begin, int64_t end)
{
	ddp_plain_range *before = bucket->end_range > bucket->first_range
	                              ? &plan->ranges[plan->range_count - 1] : NULL;

	/* Ranges come from the end of the bucket to its beginning. */
	if (before != NULL && before->begin == end) {
		before->begin = begin;
		return;
	}
	plan->ranges[plan->range_count++] = (ddp_plain_range){ begin, end };
	bucket->end_range = plan->range_count;
}

static void add_matrix(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket, const ddp_matrix *matrix)
{
	ddp_matrix *added = &plan->matrices[plan->matrix_count++];

	*added = *matrix;
	added->kept_shape[0] = matrix->rows;
	added->right_shape[0] = matrix->rank;
	added->kept_shape[1] = added->right_shape[1] = matrix->columns;
	added->kept = plan->kept;
	plan->kept += aligned(matrix->rows * matrix->columns);
	added->start = plan->starts;
	plan->starts += aligned(matrix->rank * matrix->columns);
	bucket->end_matrix = plan->matrix_count;
}

static void add_bucket(const ddp_layout *layout, const ddp_bucket *from,
                       const ddp_powersgd_options *settings, ddp_powersgd_plan *plan)
{
	ddp_powersgd_bucket *bucket = &plan->buckets[plan->bucket_count++];
	ddp_matrix matrix;

	*bucket = (ddp_powersgd_bucket){
		.first_matrix = plan->matrix_count, .end_matrix = plan->matrix_count,
		.first_range = plan->range_count, .end_range = plan->range_count, .first = plan->travels,
	};
	for (int i = from->last_param; i >= from->first_param; i--) {
		const ddp_slot *slot = &layout->slots[i];
		int64_t begin = slot->offset > from->begin ? slot->offset : from->begin;
		int64_t end = slot_end(layout, i) < from->end ? slot_end(layout, i) : from->end;
		const bool ends_here = slot->offset + slot->count <= from->end;
		if (!describe(slot, settings, &matrix))
			add_range(plan, bucket, begin, end);
		else if (ends_here && slot->offset + slot->count > from->begin)
			add_matrix(plan, bucket, &matrix);
	}
}

/* The places of what a bucket sends, once it is known what that is. */
static void place(ddp_powersgd_plan *plan, ddp_powersgd_bucket *bucket)
{
	int64_t at = plan->travels;

	bucket->first = at;
	for (int i = bucket->first_range; i < bucket->end_range; i++)
		at += plan->ranges[i].end - plan->ranges[i].begin;
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		plan->matrices[i].left = at;
		at += aligned(plan->matrices[i].rank * plan->matrices[i].rows);
	}
	bucket->first_count = at - bucket->first;
	bucket->second = at;
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		plan->matrices[i].right = at;
		at += aligned(plan->matrices[i].rank * plan->matrices[i].columns);
	}
	bucket->second_count = at - bucket->second;
	plan->travels = at;
}

static void free_plan(ddp_powersgd_plan *plan)
{
	free(plan->matrices);
	free(plan->ranges);
	free(plan->buckets);
	*plan = (ddp_powersgd_plan){ 0 };
}

/* The layout must outlive the plan. */
static ddp_status make_plan(const ddp_layout *layout, const ddp_bucket_plan *buckets,
                                  const ddp_powersgd_options *settings, ddp_powersgd_plan *plan)
{
	/* A parameter is of each bucket that it is cut by. */
	const size_t most = (size_t)layout->count + (size_t)buckets->count;
	ddp_powersgd_plan made = { 0 };

	made.matrices = calloc((size_t)layout->count, sizeof(*made.matrices));
	made.ranges = calloc(most, sizeof(*made.ranges));
	made.buckets = calloc((size_t)buckets->count + 1, sizeof(*made.buckets));
	if (made.matrices == NULL || made.ranges == NULL || made.buckets == NULL) {
		free_plan(&made);
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compress %d parameters", layout->count);
	}
	for (int k = 0; k < buckets->count; k++) {
		add_bucket(layout, &buckets->buckets[k], settings, &made);
		place(&made, &made.buckets[k]);
	}
	*plan = made;
	return DDP_OK;
}

/* ---- factors ------------------------------------------------------------------------- */

static powersgd *powersgd_of(const ddp_model *model)
{
	return model->own;
}

static bool compresses(const ddp_model *model)
{
	return model->steps >= model->settings.options.powersgd.start;
}

static const float *values_of(const ddp_model *model, const ddp_matrix *matrix)
{
	const powersgd *p = powersgd_of(model);

	return p->next != NULL ? p->next + matrix->kept : model->grads + matrix->slot->offset;
}

/* Names random numbers: of a matrix, and of a step if each begins anew. */
static uint64_t stream_of(const ddp_model *model, const ddp_matrix *matrix)
{
	const uint64_t number = (uint64_t)(matrix - powersgd_of(model)->plan.matrices);
	const uint64_t step = !model->settings.options.powersgd.warm_start ? (uint64_t)model->steps + 1 : 0;

	return ((uint64_t)model->settings.options.powersgd.seed << 32 | number) + (step << 20);
}

/* ---- memory --------------------------------------------------------------------------- */

/* Makes the state that of a model that has done no step. */
static void forget(ddp_model *model)
{
	powersgd *p = powersgd_of(model);
	dk_queue *before = dk_use(model->place.kernels);

	for (int i = 0; i < p->plan.matrix_count; i++) {
		const ddp_matrix *matrix = &p->plan.matrices[i];
		dk_random_rows(p->starts + matrix->start, matrix->rank, matrix->columns, stream_of(model, matrix));
	}
	if (p->kept != NULL)
		dk_zero(p->kept, p->plan.kept);
	dk_use(before);
}

/* Allocates where the model is. */
static ddp_status allocate(const ddp_model *model, int64_t elements, float **memory)
{
	void *made;

	ddp_status status = ddp_place_alloc(&model->place, (size_t)(elements + 1) * sizeof(float), /* never nothing */
	                                    &made);
	if (status == DDP_OK)
		*memory = made;
	return status;
}

static ddp_status prepare(ddp_model *model)
{
	const bool feedback = model->settings.options.powersgd.feedback;

	powersgd *p = calloc(1, sizeof(*p));
	if (p == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compress gradients");
	model->own = p;
	ddp_status status = make_plan(&model->layout, &model->plan,
	                                           &model->settings.options.powersgd, &p->plan);
	if (status != DDP_OK)
		return status;
	status = allocate(model, p->plan.starts, &p->starts);
	if (status == DDP_OK && feedback)
		status = allocate(model, p->plan.kept, &p->kept);
	if (status == DDP_OK && feedback)
		status = allocate(model, p->plan.kept, &p->next);
	if (status != DDP_OK)
		return ddp_fail_context(status, "what PowerSGD keeps: two arrays of %lld numbers",
		                        (long long)p->plan.kept);
	forget(model);
	return DDP_OK;
}

static ddp_status open_memory(ddp_model *model)
{
	const ddp_operation opening = { .kind = DDP_BARRIER, .lane = RIGHT_LANE };
	powersgd *p = powersgd_of(model);
	void *memory;

	ddp_status status = ddp_mem_alloc_on(model->comm, ddp_place_memory(&model->place),
	                                     (size_t)(p->plan.travels + 1) * sizeof(float), &memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "factors of gradients");
	p->travel = memory;
	return model->place.device == NULL ? ddp_run(model->comm, &opening) : DDP_OK;
}

static void close_memory(ddp_model *model)
{
	powersgd *p = powersgd_of(model);

	if (p == NULL)
		return;
	if (p->travel != NULL)
		ddp_mem_free(model->comm, p->travel);
	free_plan(&p->plan);
	ddp_place_free(&model->place, p->starts);
	ddp_place_free(&model->place, p->kept);
	ddp_place_free(&model->place, p->next);
	free(p);
}

/* ---- a bucket --------------------------------------------------------------------------- */

/* left = right M^T */
static void multiply_left(const ddp_matrix *matrix, const float *values, const float *right, float *left)
{
	dk_gemm(&(dk_gemm_args){
		.transpose_b = true, .m = matrix->rank, .n = matrix->rows, .k = matrix->columns,
		.a = right, .lda = matrix->columns, .b = values, .ldb = matrix->columns,
		.c = left, .ldc = matrix->rows,
	});
}

/* right = left M */
static void multiply_right(const ddp_matrix *matrix, const float *values, const float *left, float *right)
{
	dk_gemm(&(dk_gemm_args){
		.m = matrix->rank, .n = matrix->columns, .k = matrix->rows,
		.a = left, .lda = matrix->rows, .b = values, .ldb = matrix->columns,
		.c = right, .ldc = matrix->columns,
	});
}

static void begin_matrix(ddp_model *model, const ddp_matrix *matrix)
{
	powersgd *p = powersgd_of(model);
	float *right = p->travel + matrix->right; /* from which the left ones are made */
	const uint64_t stream = stream_of(model, matrix);

	if (p->next != NULL)
		dk_add(p->next + matrix->kept, model->grads + matrix->slot->offset, p->kept + matrix->kept,
		       matrix->rows * matrix->columns);
	if (!model->settings.options.powersgd.warm_start)
		dk_random_rows(right, matrix->rank, matrix->columns, stream);
	else
		dk_copy(right, p->starts + matrix->start,
		        (size_t)(matrix->rank * matrix->columns) * sizeof(*right));
	dk_orthonormalize(right, matrix->rank, matrix->columns, true, stream);
	multiply_left(matrix, values_of(model, matrix), right, p->travel + matrix->left);
}

/* The bucket's plain ranges to what travels, or from it. */
static void copy_ranges(ddp_model *model, const ddp_powersgd_bucket *bucket, bool back)
{
	const powersgd *p = powersgd_of(model);
	float *at = p->travel + bucket->first;

	for (int i = bucket->first_range; i < bucket->end_range; i++) {
		const ddp_plain_range *range = &p->plan.ranges[i];
		const size_t bytes = (size_t)(range->end - range->begin) * sizeof(*at);
		dk_copy(back ? model->grads + range->begin : at, back ? at : model->grads + range->begin, bytes);
		at += range->end - range->begin;
	}
}

static ddp_status send(ddp_model *model, int k, int64_t first, int64_t count, int lane)
{
	const ddp_operation operation = {
		.kind = DDP_ALL_REDUCE, .recv = powersgd_of(model)->travel + first, .count = (size_t)count,
		.type = DDP_F32, .op = DDP_SUM, .lane = model->place.device == NULL ? lane : 0,
		.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
	};

	return count > 0 ? ddp_reducer_issue(&model->reducer, k, &operation) : DDP_OK;
}

static ddp_status check_products(void)
{
	const char *failure = dk_failure();

	return failure == NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "PowerSGD: %s", failure);
}

/* Waits for the left factors of bucket k, or has the queue do so, and sends the right ones. */
static ddp_status advance(ddp_model *model, int k)
{
	powersgd *p = powersgd_of(model);
	const ddp_powersgd_bucket *bucket = &p->plan.buckets[k];
	char name[32];

	snprintf(name, sizeof(name), "bucket %d", k);
	ddp_status status = ddp_reducer_end(&model->reducer, k, name,
	                                    bucket->first_count * (int64_t)sizeof(float));
	if (status != DDP_OK)
		return status;
	p->advanced = k + 1;
	copy_ranges(model, bucket, true);
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		const ddp_matrix *matrix = &p->plan.matrices[i];
		float *left = p->travel + matrix->left;
		dk_orthonormalize(left, matrix->rank, matrix->rows, false, 0);
		multiply_right(matrix, values_of(model, matrix), left, p->travel + matrix->right);
	}
	status = check_products();
	return status == DDP_OK ? send(model, k, bucket->second, bucket->second_count, RIGHT_LANE)
	                        : status;
}

/* On a device the answer is always no: ranks would see it at different times, and the device's one lane has one
   order for all. */
static bool is_back(const ddp_model *model, int k)
{
	const ddp_request *request = model->reducer.requests[k];

	return model->place.device == NULL && (request == NULL || ddp_request_done(request));
}

static ddp_status start(ddp_model *model, int k)
{
	powersgd *p = powersgd_of(model);
	const ddp_powersgd_bucket *bucket = &p->plan.buckets[k];
	ddp_status status = DDP_OK;

	if (!compresses(model))
		return ddp_all_reduce_strategy.start(model, k);
	if (k == 0)
		p->advanced = p->ended = 0;
	while (p->advanced < k && is_back(model, p->advanced) && status == DDP_OK)
		status = advance(model, p->advanced);
	p->started = k + 1;
	if (status != DDP_OK)
		return status;
	copy_ranges(model, bucket, false);
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++)
		begin_matrix(model, &p->plan.matrices[i]);
	status = check_products();
	return status == DDP_OK ? send(model, k, bucket->first, bucket->first_count, 0) : status;
}

static ddp_status wait(ddp_model *model, int k)
{
	powersgd *p = powersgd_of(model);
	const ddp_powersgd_bucket *bucket = &p->plan.buckets[k];
	const bool *unused = ddp_uses_counts(&model->uses) ? model->uses.unused : NULL;
	const float share = 1 / (float)ddp_comm_size(model->comm);
	ddp_status status = DDP_OK;
	char name[32];

	if (!compresses(model))
		return ddp_all_reduce_strategy.wait(model, k);
	if (k < p->ended || k >= p->started)
		return DDP_OK;
	/* All that are sent, so that none waits for another's way there and back. */
	while (p->advanced < p->started && status == DDP_OK)
		status = advance(model, p->advanced);
	snprintf(name, sizeof(name), "bucket %d, right", k);
	if (status == DDP_OK)
		status = ddp_reducer_end(&model->reducer, k, name,
		                         bucket->second_count * (int64_t)sizeof(float));
	if (status != DDP_OK)
		return status;
	p->ended = k + 1;
	for (int i = bucket->first_matrix; i < bucket->end_matrix; i++) {
		const ddp_matrix *matrix = &p->plan.matrices[i];
		float *grads = model->grads + matrix->slot->offset;
		const dk_factors factors = { p->travel + matrix->left, p->travel + matrix->right,
		                             matrix->rank, matrix->rows, matrix->columns };
		/* The error that was kept of it, and still is (see keep()), is no gradient of this step. */
		if (unused != NULL && unused[matrix->slot->param])
			dk_zero(grads, matrix->slot->count);
		else
			dk_restore(grads, p->next != NULL ? p->next + matrix->kept : NULL, share, &factors);
	}
	return DDP_OK;
}

/* ---- the end of a step -------------------------------------------------------------------- */

/* The step's errors and factors count from now on. */
static void keep(ddp_model *model, const ddp_update *update)
{
	powersgd *p = powersgd_of(model);
	float *kept = p->kept;

	/* The update takes nothing of a parameter that no rank used: all stays kept back. */
	for (int i = 0; i < p->plan.matrix_count && update->unused != NULL && kept != NULL; i++) {
		const ddp_matrix *matrix = &p->plan.matrices[i];
		if (update->unused[matrix->slot->param])
			dk_copy(p->next + matrix->kept, kept + matrix->kept,
			        (size_t)(matrix->rows * matrix->columns) * sizeof(*kept));
	}
	p->kept = p->next;
	p->next = kept;
	for (int i = 0; i < p->plan.matrix_count; i++) {
		const ddp_matrix *matrix = &p->plan.matrices[i];
		dk_copy(p->starts + matrix->start, p->travel + matrix->right,
		        (size_t)(matrix->rank * matrix->columns) * sizeof(*p->starts));
	}
}

static ddp_status update(ddp_model *model, const ddp_update *update, bool reduced, double *squares)
{
	ddp_status status = ddp_all_reduce_update(model, update, reduced, squares);

	if (status == DDP_OK && compresses(model))
		keep(model, update);
	return status;
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static ddp_status settle(ddp_model *model)
{
	ddp_comm *comm = model->comm;
	powersgd *p = powersgd_of(model);

	for (int64_t at = 0; p->kept != NULL && at < p->plan.kept; at += SETTLE_ELEMENTS) {
		const int64_t left = p->plan.kept - at, count = left < SETTLE_ELEMENTS ? left : SETTLE_ELEMENTS;
		const ddp_operation operation = {
			.kind = DDP_REDUCE, .recv = p->kept + at, .count = (size_t)count,
			.type = DDP_F32, .op = DDP_SUM,
			.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
		};
		ddp_status status = ddp_run(comm, &operation);
		if (status == DDP_OK && ddp_comm_rank(comm) > 0)
			status = ddp_place_clear(&model->place, p->kept + at, (size_t)count * sizeof(*p->kept));
		if (status != DDP_OK)
			return ddp_fail_context(status, "what PowerSGD keeps");
	}
	return DDP_OK;
}

/* A checkpoint was loaded, with the sum of what all ranks had kept. */
static void set_steps(ddp_model *model, int64_t steps)
{
	powersgd *p = powersgd_of(model);

	(void)steps;
	/* Only a device can fail here. Its next call then returns the error. */
	if (p->kept != NULL && ddp_comm_rank(model->comm) > 0)
		(void)ddp_place_clear(&model->place, p->kept, (size_t)p->plan.kept * sizeof(*p->kept));
}

static int extra_count(const ddp_model *model)
{
	const powersgd *p = powersgd_of(model);

	return p->plan.matrix_count * ((p->kept != NULL) + model->settings.options.powersgd.warm_start);
}

static ddp_status fill_extra(const ddp_matrix *matrix, const char *kind, int64_t *shape, float *data,
                             ddp_tensor *tensor)
{
	if (asprintf(&tensor->name, DDP_EXTRA_PREFIX "powersgd.%s.%s", kind, matrix->slot->name) < 0) {
		tensor->name = NULL;
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the name of tensor \"%s\"", matrix->slot->name);
	}
	tensor->ndim = 2;
	tensor->shape = shape;
	tensor->data = data;
	return DDP_OK;
}

static ddp_status fill_extras(const ddp_model *model, ddp_tensor *list)
{
	powersgd *p = powersgd_of(model);
	ddp_status status = DDP_OK;

	for (int i = 0; i < p->plan.matrix_count; i++) {
		ddp_matrix *matrix = &p->plan.matrices[i];
		if (p->kept != NULL && status == DDP_OK)
			status = fill_extra(matrix, "kept", matrix->kept_shape, p->kept + matrix->kept, list++);
		if (model->settings.options.powersgd.warm_start && status == DDP_OK)
			status = fill_extra(matrix, "right", matrix->right_shape, p->starts + matrix->start, list++);
	}
	return status;
}

const ddp_strategy ddp_powersgd_strategy = {
	.name = "PowerSGD", .shard = DDP_SHARD_NONE, .moves_rows = true,
	.prepare = prepare, .open = open_memory, .close = close_memory,
	.start = start, .wait = wait, .add_rows = ddp_all_reduce_add_rows,
	.reduce = ddp_all_reduce_finish, .update = update,
	.settle = settle, .extra_count = extra_count, .fill_extras = fill_extras, .forget = forget,
	.set_steps = set_steps,
};
