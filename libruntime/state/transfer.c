/* SPDX-License-Identifier: Apache-2.0 */
#include "state/transfer.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"
#include "half.h"
#include "kernels.h"
#include "reduce/model.h"
#include "state/leader.h"

enum {
	CHUNK_ELEMENTS = 1 << 20, /* 4 MiB: all that a transfer needs besides the model, on each rank */
	BLOCK_ELEMENTS = 1 << 16, /* a processor's own cache holds what is read, summed and searched */
};

/* So many elements of a file's tensor are converted at once. */
enum { PART_ELEMENTS = 4096 };

static void shape_text(int ndim, const int64_t *shape, char *text, size_t bytes)
{
	size_t used = 0;

	snprintf(text, bytes, "%s", ndim == 0 ? "of a single number" : "");
	for (int i = 0; i < ndim && used < bytes; i++)
		used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? "x" : "", shape[i]);
}

ddp_status ddp_transfer_check_shape(const ddp_safetensors *file, const ddp_safetensor *have,
                                    const ddp_tensor *want)
{
	char has[192], wants[192];

	if (have->ndim == want->ndim &&
	    memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof(*want->shape)) == 0)
		return DDP_OK;
	shape_text(have->ndim, have->shape, has, sizeof(has));
	shape_text(want->ndim, want->shape, wants, sizeof(wants));
	return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has shape %s, the model has %s", file->path,
	                have->name, has, wants);
}

static int64_t all_elements(const ddp_transfer *transfer)
{
	int64_t elements = 0;

	for (int i = 0; i < transfer->tensors.count; i++)
		elements += transfer->taken[i] ? ddp_tensor_elements(&transfer->tensors.list[i]) : 0;
	return elements;
}

ddp_status ddp_transfer_make(ddp_model *model, ddp_transfer *transfer)
{
	*transfer = (ddp_transfer){ .model = model, .file = { .fd = -1 } };
	ddp_status status = ddp_model_tensors(model, false, &transfer->tensors);

	if (status != DDP_OK)
		return status;
	const size_t count = (size_t)transfer->tensors.count;
	transfer->taken = malloc(count + 1);
	transfer->origins = calloc(count + 1, sizeof(*transfer->origins));
	if (transfer->taken == NULL || transfer->origins == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a list of %zu tensors", count);
	memset(transfer->taken, 1, count);
	const int64_t elements = all_elements(transfer);
	/* A rank alone broadcasts nothing, so it takes blocks, which stay in the processor's cache until they are stored. */
	transfer->room = ddp_comm_size(ddp_model_comm(model)) > 1 ? CHUNK_ELEMENTS : BLOCK_ELEMENTS;
	const size_t bytes = sizeof(float) * (size_t)(elements < transfer->room ? elements : transfer->room);
	transfer->chunk = malloc(bytes);
	return transfer->chunk != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of a checkpoint", bytes);
}

void ddp_transfer_free(ddp_transfer *transfer)
{
	ddp_safetensors_close(&transfer->file);
	ddp_tensors_free(&transfer->tensors);
	free(transfer->taken);
	free(transfer->origins);
	free(transfer->chunk);
	*transfer = (ddp_transfer){ .file = { .fd = -1 } };
}

/* ---- types of a file ------------------------------------------------------------- */

static float from_f32(const char *from)
{
	float value;

	memcpy(&value, from, sizeof(value));
	return value;
}

static float from_f64(const char *from)
{
	double value;

	memcpy(&value, from, sizeof(value));
	return (float)value;
}

static float from_f16(const char *from)
{
	uint16_t value;

	memcpy(&value, from, sizeof(value));
	return dk_half_to_float(value);
}

static float from_bf16(const char *from)
{
	char bytes[4] = { 0, 0, from[0], from[1] };

	return from_f32(bytes);
}

static const struct type {
	const char *name;
	size_t bytes;
	float (*convert)(const char *from);
} types[] = {
	{ "F32", 4, from_f32 }, { "BF16", 2, from_bf16 }, { "F16", 2, from_f16 }, { "F64", 8, from_f64 },
};

/* NULL: it cannot be read as F32. */
static const struct type *type_of(const ddp_safetensor *tensor)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (strcmp(tensor->dtype, types[i].name) == 0)
			return &types[i];
	}
	return NULL;
}

bool ddp_transfer_reads(const ddp_safetensor *tensor)
{
	return type_of(tensor) != NULL;
}

static ddp_status check_part(const ddp_safetensors *file, const ddp_safetensor *have, const double *part,
                             int64_t first, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		if (isfinite(part[i]) && fabs(part[i]) > FLT_MAX)
			return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has the value %g at %" PRId64 ", which is beyond F32 "
			                "(%g)", file->path, have->name, part[i], first + i, (double)FLT_MAX);
	}
	return DDP_OK;
}

ddp_status ddp_transfer_check_values(const ddp_safetensors *file, const ddp_safetensor *have)
{
	const int64_t count = (have->end - have->begin) / (int64_t)sizeof(double);
	ddp_status status = DDP_OK;
	double part[PART_ELEMENTS];
	uint32_t sum = 0;

	if (strcmp(have->dtype, "F64") != 0)
		return DDP_OK;
	for (int64_t at = 0; at < count && status == DDP_OK; at += PART_ELEMENTS) {
		const int64_t some = count - at < PART_ELEMENTS ? count - at : PART_ELEMENTS;
		status = ddp_safetensors_read_part(file, have, at * (int64_t)sizeof(double), (size_t)some * sizeof(double),
		                                   part, &sum);
		if (status == DDP_OK)
			status = check_part(file, have, part, at, some);
	}
	return status;
}

static ddp_status read_converted(ddp_transfer *transfer, const ddp_safetensor *tensor, const struct type *type,
                                 int64_t first, float *to, int64_t count)
{
	char part[PART_ELEMENTS * sizeof(double)];

	for (int64_t at = 0; at < count; at += PART_ELEMENTS) {
		const int64_t some = count - at < PART_ELEMENTS ? count - at : PART_ELEMENTS;
		ddp_status status = ddp_safetensors_read_part(&transfer->file, tensor, (first + at) * (int64_t)type->bytes,
		                                              (size_t)some * type->bytes, part, &transfer->sum);
		if (status != DDP_OK)
			return status;
		for (int64_t i = 0; i < some; i++)
			to[at + i] = type->convert(part + (size_t)i * type->bytes);
	}
	return DDP_OK;
}

static ddp_status read_elements(ddp_transfer *transfer, int i, int64_t first, float *to, int64_t count)
{
	const ddp_origin *origin = &transfer->origins[i];

	if (origin->tensor == NULL) {
		for (int64_t e = 0; e < count; e++)
			to[e] = origin->otherwise;
		return DDP_OK;
	}
	const struct type *type = type_of(origin->tensor);
	transfer->sum = first == 0 ? 0 : transfer->sum;
	if (type->convert != from_f32)
		return read_converted(transfer, origin->tensor, type, first, to, count);
	return ddp_safetensors_read_part(&transfer->file, origin->tensor, first * (int64_t)sizeof(float),
	                                 (size_t)count * sizeof(float), to, &transfer->sum);
}

/* ---- moving -------------------------------------------------------------------------- */

/* Returns how many elements of the tensor are left at *first, but at most `room`, and moves
   *tensor and *first behind them. */
static int64_t pass(const ddp_transfer *transfer, int *tensor, int64_t *first, int64_t room)
{
	const int64_t left = transfer->taken[*tensor] ? ddp_tensor_elements(&transfer->tensors.list[*tensor]) - *first : 0;

	if (left > room) {
		*first += room;
		return room;
	}
	*first = 0;
	(*tensor)++;
	return left;
}

/* A mask that is not trained may hold infinities. NULL: nothing is wrong. */
static const char *not_finite(const ddp_tensor *tensor, const float *values, int64_t count)
{
	/* They are in the host's memory, where the program's own queue may not reach. */
	dk_queue *before = dk_use(NULL);
	const float largest = dk_largest(values, count);

	dk_use(before);
	return isnan(largest) || (isinf(largest) && !tensor->untrained) ? tensor->name : NULL;
}

static ddp_status read_chunk(void *argument)
{
	ddp_transfer *transfer = argument;
	int tensor = transfer->tensor;
	int64_t first = transfer->first;
	ddp_status status = DDP_OK;

	for (int64_t at = 0, count; at < transfer->count && status == DDP_OK; at += count) {
		const int i = tensor;
		const int64_t from = first;
		const int64_t left = transfer->count - at;
		count = pass(transfer, &tensor, &first, left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS);
		if (count > 0)
			status = read_elements(transfer, i, from, transfer->chunk + at, count);
		if (count > 0 && status == DDP_OK && transfer->not_finite == NULL)
			transfer->not_finite = not_finite(&transfer->tensors.list[i], transfer->chunk + at, count);
	}
	return status;
}

static ddp_status store_chunk(ddp_transfer *transfer)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0, count; at < transfer->count && status == DDP_OK; at += count) {
		const int i = transfer->tensor;
		const int64_t from = transfer->first;
		count = pass(transfer, &transfer->tensor, &transfer->first, transfer->count - at);
		if (count > 0)
			status = ddp_model_store(transfer->model, &transfer->tensors, i, from, transfer->chunk + at, count);
	}
	return status;
}

ddp_status ddp_transfer_run(ddp_transfer *transfer)
{
	const int64_t elements = all_elements(transfer);
	ddp_comm *comm = ddp_model_comm(transfer->model);
	ddp_status status = DDP_OK;

	for (int64_t done = 0; done < elements && status == DDP_OK; done += transfer->count) {
		const int64_t left = elements - done;
		transfer->count = left < transfer->room ? left : transfer->room;
		status = ddp_leader_run(transfer->model, read_chunk, transfer, NULL, 0);
		if (status == DDP_OK)
			status = ddp_broadcast(comm, transfer->chunk, (size_t)transfer->count, DDP_F32, 0);
		if (status == DDP_OK)
			status = ddp_comm_agree(comm, store_chunk(transfer), "keep what it loaded");
	}
	return status;
}
