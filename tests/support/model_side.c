/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/model_side.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "table.h"
#include "tests/device/nccl_standin.h"

/* Once: its threads look at what this sets. */
static void prepare_nccl(ddp_device *device)
{
	static const ddp_device *prepared;

	if (prepared != device)
		test_nccl_standin()->polls = 1;
	prepared = device;
}

void side_open(model_side *s, ddp_context *context, bool there)
{
	*s = (model_side){ .context = context };
	if (!there)
		return;
	prepare_nccl(context->device);
	CHECK_OK(ddp_device_queue_create(context->device, DDP_DEVICE_NORMAL, &s->stream));
	CHECK_OK(ddp_kernels_open(context, DK_TABLE_VERSION, DK_F32, s->stream, &s->kernels));
}

static size_t bytes_of(const model_side *s, int param)
{
	return (size_t)ddp_model_param_count(s->model, param) * sizeof(float);
}

void side_make(model_side *s, const ddp_param *params, int count, const ddp_model_options *given, float apart)
{
	ddp_model_options options = *given;

	options.memory = s->stream != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	options.stream = s->stream;
	CHECK_OK(ddp_model_create(s->context, params, count, &options, &s->model));
	CHECK((s->model->place.device != NULL) == (s->stream != NULL));
	for (int p = 0; p < count; p++) {
		CHECK(ddp_model_param_count(s->model, p) <= SIDE_ELEMENTS);
		for (int64_t i = 0; i < ddp_model_param_count(s->model, p); i++)
			s->host[i] = sinf((float)(p * 1000 + i)) + apart;
		side_copy(s, ddp_model_param_data(s->model, p), s->host, bytes_of(s, p));
	}
}

void side_close(model_side *s)
{
	ddp_comm_info info;

	CHECK_OK(ddp_comm_describe(ddp_world(s->context), &info));
	if (s->stream != NULL && ddp_comm_size(ddp_world(s->context)) > 1)
		CHECK(strcmp(info.device_backend, "nccl") == 0);
	ddp_model_free(s->model);
	ddp_kernels_close(s->kernels);
	if (s->stream != NULL)
		CHECK_OK(ddp_device_queue_free(s->context->device, s->stream));
}

/* NCCL's lane has a piece of memory for what it tells. */
void side_all_freed(ddp_context *context)
{
	CHECK(ddp_device_freed(context->device) == DDP_ERR_STATE &&
	      strstr(ddp_last_error(), "still in use: 1 pieces of memory") != NULL);
}

int side_rank(const model_side *s)
{
	return ddp_comm_rank(ddp_world(s->context));
}

void side_copy(const model_side *s, void *to, const void *from, size_t bytes)
{
	if (s->stream == NULL) {
		memcpy(to, from, bytes);
		return;
	}
	CHECK_OK(ddp_device_copy(s->context->device, s->stream, to, from, bytes));
	CHECK_OK(ddp_device_queue_sync(s->context->device, s->stream));
}

void side_draw(model_side *s, int step, int param, float factor)
{
	for (int64_t i = 0; i < ddp_model_param_count(s->model, param); i++)
		s->host[i] = factor * cosf((float)(step * 77 + param * 1009 + side_rank(s) * 31) + (float)i * 0.7f);
}

void side_copy_gradient(model_side *s, int param)
{
	side_copy(s, ddp_model_param_grad(s->model, param), s->host, bytes_of(s, param));
}

static void same_bits(model_side *there, const void *got, const void *want, size_t bytes)
{
	CHECK((got == NULL) == (want == NULL));
	if (got == NULL)
		return;
	side_copy(there, there->host, got, bytes);
	CHECK(memcmp(there->host, want, bytes) == 0);
}

void sides_same(model_side *here, model_side *there)
{
	/* Without late_gather, a step has waited for them. */
	if (here->model->settings.options.late_gather) {
		CHECK_OK(ddp_model_param_wait(here->model, DDP_ALL_PARAMS));
		CHECK_OK(ddp_model_param_wait(there->model, DDP_ALL_PARAMS));
	}
	for (int p = 0; p < here->model->layout.count; p++) {
		same_bits(there, ddp_model_param_bf16(there->model, p), ddp_model_param_bf16(here->model, p), bytes_of(here, p) / 2);
		same_bits(there, ddp_model_param_data(there->model, p), ddp_model_param_data(here->model, p), bytes_of(here, p));
		same_bits(there, ddp_model_param_grad(there->model, p), ddp_model_param_grad(here->model, p), bytes_of(here, p));
	}
}
