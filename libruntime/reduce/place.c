/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/place.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "device/kernel_queue.h"

enum { STAGING_BYTES = 4 << 20 };

ddp_status ddp_place_open(const ddp_context *context, ddp_memory memory, void *stream,
                          ddp_place *place)
{
	ddp_place made = { .stream = stream };

	*place = (ddp_place){ 0 };
	if (memory == DDP_MEMORY_HOST)
		return DDP_OK;
	if (context->device == NULL)
		return ddp_fail(DDP_ERR_STATE, "a model on a device's memory, but no device: name one in "
		                "ddp_options");
	if (ddp_device_describe(context->device)->is_host_memory)
		return DDP_OK;
	made.device = context->device;
	ddp_status status = ddp_kernel_queue_open(made.device, stream, DK_F32, &made.kernels);
	if (status == DDP_OK)
		status = ddp_device_host_alloc(made.device, STAGING_BYTES, &made.staging);
	if (status != DDP_OK) {
		ddp_place_close(&made);
		return status;
	}
	*place = made;
	return DDP_OK;
}

void ddp_place_close(ddp_place *place)
{
	ddp_kernel_queue_close(place->kernels);
	if (place->staging != NULL)
		(void)ddp_device_host_free(place->device, place->staging);
	*place = (ddp_place){ 0 };
}

/* A kernel that failed tells so by its queue, and leaves the device as it is. */
static ddp_status check_kernels(const ddp_place *place)
{
	dk_queue *before = dk_use(place->kernels);
	const char *failure = dk_failure();

	dk_use(before);
	return failure == NULL ? DDP_OK : ddp_fail(DDP_ERR_IO, "%s", failure);
}

ddp_status ddp_place_sync(const ddp_place *place)
{
	if (place->device == NULL)
		return DDP_OK;
	ddp_status status = ddp_device_queue_sync(place->device, place->stream);
	return status == DDP_OK ? check_kernels(place) : status;
}

static size_t part_of(size_t bytes)
{
	return bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
}

ddp_status ddp_place_read(const ddp_place *place, void *to, const void *from, size_t bytes)
{
	ddp_status status = DDP_OK;

	if (place->device == NULL)
		memcpy(to, from, bytes);
	for (size_t at = 0, part; at < bytes && place->device != NULL && status == DDP_OK; at += part) {
		part = part_of(bytes - at);
		status = ddp_device_copy(place->device, place->stream, place->staging, (const char *)from + at,
		                         part);
		if (status == DDP_OK)
			status = ddp_place_sync(place);
		if (status == DDP_OK)
			memcpy((char *)to + at, place->staging, part);
	}
	return status;
}

ddp_status ddp_place_write(const ddp_place *place, void *to, const void *from, size_t bytes)
{
	ddp_status status = DDP_OK;

	if (place->device == NULL)
		memcpy(to, from, bytes);
	for (size_t at = 0, part; at < bytes && place->device != NULL && status == DDP_OK; at += part) {
		part = part_of(bytes - at);
		memcpy(place->staging, (const char *)from + at, part);
		status = ddp_device_copy(place->device, place->stream, (char *)to + at, place->staging, part);
		if (status == DDP_OK)
			status = ddp_place_sync(place);
	}
	return status;
}

ddp_status ddp_place_copy(const ddp_place *place, void *to, const void *from, size_t bytes)
{
	if (place->device != NULL)
		return ddp_device_copy(place->device, place->stream, to, from, bytes);
	memcpy(to, from, bytes);
	return DDP_OK;
}

ddp_status ddp_place_clear(const ddp_place *place, void *memory, size_t bytes)
{
	if (place->device != NULL)
		return ddp_device_fill(place->device, place->stream, memory, 0, bytes);
	memset(memory, 0, bytes);
	return DDP_OK;
}

ddp_status ddp_place_alloc(const ddp_place *place, size_t bytes, void **memory)
{
	void *made;

	if (place->device == NULL) {
		*memory = calloc(1, bytes);
		return *memory != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes", bytes);
	}
	ddp_status status = ddp_device_alloc(place->device, bytes, &made);
	if (status != DDP_OK)
		return status;
	status = ddp_place_clear(place, made, bytes);
	if (status == DDP_OK)
		*memory = made;
	else
		(void)ddp_device_free(place->device, made);
	return status;
}

void ddp_place_free(const ddp_place *place, void *memory)
{
	if (place->device == NULL)
		free(memory);
	else if (memory != NULL)
		(void)ddp_device_free(place->device, memory);
}

ddp_status ddp_place_alloc_host(const ddp_place *place, size_t bytes, void **memory)
{
	return place->device != NULL ? ddp_device_host_alloc(place->device, bytes, memory)
	                             : ddp_place_alloc(place, bytes, memory);
}

void ddp_place_free_host(const ddp_place *place, void *memory)
{
	if (place->device != NULL)
		(void)ddp_device_host_free(place->device, memory);
	else
		free(memory);
}
