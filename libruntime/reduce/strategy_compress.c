/* SPDX-License-Identifier: Apache-2.0 */
/* compress: buckets are all-reduced in 16 bits, half the bytes of f32. Sums of bf16 have
   nearly the range of f32. For f16, gradients are scaled first, by a power of two that is the
   same on all ranks: by it the step before would have come to a 16th of the range. What
   all ranks' gradients come to at most is in the consensus, before any bucket is widened;
   if that was too much, this step's buckets are reduced again in f32, as the first step's
   are. The gradients themselves stay where they are until then. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/ops/kernels.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "reduce/strategy_all_reduce.h"

static const double F16_MAX = 65504;
enum { EXPONENT_MAX = 126 }; /* of the scale: it and its inverse are normal numbers of f32 */

typedef struct compress {
	ddp_type type;
	uint16_t *narrow; /* of ddp_mem_alloc_on(): what travels, laid out as the gradients */
	double scale;     /* of the step; 0: it goes by f32 */
} compress;

static compress *compress_of(const ddp_model *model)
{
	return model->own;
}

static ddp_status prepare(ddp_model *model)
{
	compress *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compress gradients");
	c->type = model->settings.options.compress == DDP_COMPRESS_BF16 ? DDP_BF16 : DDP_F16;
	model->own = c;
	return DDP_OK;
}

static ddp_status open_memory(ddp_model *model)
{
	void *memory;

	ddp_status status = ddp_mem_alloc_on(model->comm, ddp_place_memory(&model->place),
	                                     (size_t)model->layout.elements * sizeof(uint16_t), &memory);
	if (status != DDP_OK)
		return ddp_fail_context(status, "gradients in 16 bits");
	compress_of(model)->narrow = memory;
	return DDP_OK;
}

static void close_memory(ddp_model *model)
{
	compress *c = compress_of(model);

	if (c != NULL && c->narrow != NULL)
		ddp_mem_free(model->comm, c->narrow);
	free(c);
}

/* The last step's largest sum is the same number on all ranks. */
static double scale_of(const ddp_model *model, ddp_type type)
{
	int exponent;

	if (type == DDP_BF16)
		return 1;
	if (!(model->largest > 0))
		return 0;
	frexp(F16_MAX / 16 / model->largest, &exponent);
	return ldexp(1, exponent - 1 < EXPONENT_MAX ? exponent - 1 : EXPONENT_MAX);
}

/* Converts to 16 bits (`narrow`), or from them. */
static void convert(const ddp_model *model, const void *from, void *to, int64_t count, bool narrow)
{
	const compress *c = compress_of(model);
	const double scale = narrow ? c->scale : 1 / c->scale;
	const ddp_combination copy = {
		.type = c->type, .op = DDP_SUM, .wide_src = narrow, .wide_dst = !narrow,
		.nsrc = 1, .src = &from, .scale = scale != 1 ? &scale : NULL, .ndst = 1, .dst = &to,
	};

	if (model->place.device == NULL)
		ddp_combine(&copy, 0, (size_t)count);
	else if (c->type == DDP_BF16 && narrow)
		dk_to_bf16(to, from, count);
	else if (c->type == DDP_BF16)
		dk_from_bf16(to, from, count);
	else if (narrow)
		dk_to_f16(to, from, count, (float)scale);
	else
		dk_from_f16(to, from, count, (float)scale);
}

/* Sums gradients as they are. */
static ddp_operation sum_of(const ddp_model *model, const ddp_bucket *bucket)
{
	return (ddp_operation){
		.kind = DDP_ALL_REDUCE, .recv = model->grads + bucket->begin,
		.count = (size_t)(bucket->end - bucket->begin), .type = DDP_F32, .op = DDP_SUM,
		.memory = ddp_place_memory(&model->place), .stream = model->place.stream,
	};
}

static ddp_status start(ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];
	ddp_operation operation = sum_of(model, bucket);
	compress *c = compress_of(model);

	c->scale = scale_of(model, c->type);
	if (c->scale != 0) {
		operation.recv = c->narrow + bucket->begin;
		operation.type = c->type;
		convert(model, model->grads + bucket->begin, operation.recv, bucket->end - bucket->begin, true);
	}
	return ddp_reducer_issue(&model->reducer, k, &operation);
}

/* Half of the range is left for what ranks and nodes round up. */
static bool fits(const ddp_model *model, const compress *c)
{
	return model->largest * c->scale <= (c->type == DDP_F16 ? F16_MAX : FLT_MAX) / 2;
}

static ddp_status widen(ddp_model *model, const ddp_bucket *bucket)
{
	const ddp_operation again = sum_of(model, bucket);
	const compress *c = compress_of(model);

	if (c->scale == 0)
		return DDP_OK;
	if (!fits(model, c))
		return ddp_reducer_run(&model->reducer, "bucket again", &again);
	convert(model, c->narrow + bucket->begin, model->grads + bucket->begin,
	        bucket->end - bucket->begin, false);
	return DDP_OK;
}

static ddp_status wait(ddp_model *model, int k)
{
	const ddp_bucket *bucket = &model->plan.buckets[k];
	const size_t bytes = compress_of(model)->scale != 0 ? sizeof(uint16_t) : sizeof(float);
	char name[32];

	if (model->reducer.requests[k] == NULL)
		return DDP_OK;
	snprintf(name, sizeof(name), "bucket %d", k);
	ddp_status status = ddp_reducer_end(&model->reducer, k, name, (bucket->end - bucket->begin) * (int64_t)bytes);
	return status == DDP_OK ? widen(model, bucket) : status;
}

const ddp_strategy ddp_compress_strategy = {
	.name = "all_reduce in 16 bits", .shard = DDP_SHARD_NONE, .moves_rows = true, .recuts = true, .survives = true,
	.prepare = prepare, .open = open_memory, .close = close_memory,
	.start = start, .wait = wait, .add_rows = ddp_all_reduce_add_rows,
	.reduce = ddp_all_reduce_finish, .update = ddp_all_reduce_update,
};
