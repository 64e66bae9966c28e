/* SPDX-License-Identifier: Apache-2.0 */
/* cuda: a GPU as a device, the module libddp_cuda.so. A queue is a cudaStream_t, an event
   a cudaEvent_t, so that a program can give its own. CUDA's runtime is linked in; what a
   node needs is NVIDIA's driver.

   The GPU that a thread has chosen by cudaSetDevice() stays its choice: each call here
   changes to the device's own, and back (cuda/gpu.h). */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gpu.h"
#include "device/backend.h"

typedef struct cuda_device {
	int index;
	dk_gpu gpu;
	int highest_priority;
	cudaEvent_t probe; /* never recorded: to ask for it is to ask whether the GPU is well */
	ddp_status (*fail)(ddp_status status, const char *format, ...)
		__attribute__((format(printf, 2, 3)));
} cuda_device;

/* ---- errors, and the thread's GPU ---- */

static ddp_status status_of(cudaError_t error)
{
	switch (error) {
	case cudaErrorMemoryAllocation: return DDP_ERR_NOMEM;
	case cudaErrorInvalidValue:
	case cudaErrorInvalidResourceHandle: return DDP_ERR_INVALID;
	default: return DDP_ERR_IO;
	}
}

static ddp_status result(const cuda_device *device, cudaError_t error, const char *call)
{
	if (error == cudaSuccess)
		return DDP_OK;
	cudaGetLastError(); /* the program's next call of CUDA is not to be blamed for ours */
	return device->fail(status_of(error), "device cuda:%d: %s: %s (%s)", device->index, call,
	                    cudaGetErrorString(error), cudaGetErrorName(error));
}

/* For one call, which leave() ends: no other GPU is asked for what is meant for this one. */
static ddp_status enter(const cuda_device *device)
{
	const cudaError_t error = dk_gpu_enter(&device->gpu);

	if (error == cudaSuccess)
		return DDP_OK;
	return device->fail(DDP_ERR_IO, "device cuda:%d: cuCtxPushCurrent: %s (%s): its context is gone, with all that "
	                    "libddp has on this GPU, as after a cudaDeviceReset() in this process: leave that out, or call "
	                    "it after ddp_finalize()", device->index, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* `error` is what `call` returned. */
static ddp_status leave(const cuda_device *device, cudaError_t error, const char *call)
{
	const ddp_status status = result(device, error, call);

	dk_gpu_leave(&device->gpu);
	return status;
}

/* The thread asks by a call that it may make: in a capture, or in a function of a stream, CUDA refuses all. */
static bool is_broken(const cuda_device *device)
{
	const cudaError_t error = cudaEventQuery(device->probe);

	return error != cudaSuccess && error != cudaErrorStreamCaptureUnsupported && error != cudaErrorNotPermitted;
}

/* The same for what frees: on a GPU that is broken, or whose context is gone, nothing is left
   to be freed. */
static ddp_status leave_free(const cuda_device *device, cudaError_t error, const char *call)
{
	if (error != cudaSuccess && is_broken(device)) {
		cudaGetLastError();
		error = cudaSuccess;
	}
	return leave(device, error, call);
}

/* ---- device ---- */

static ddp_status no_gpu(const ddp_device_request *request, cudaError_t error)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int driver = 0;

	cudaGetLastError();
	if (error == cudaErrorInsufficientDriver) {
		if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
			return request->fail(DDP_ERR_UNSUPPORTED, "device cuda: this node has no NVIDIA driver "
			                     "(libcuda.so.1), so no GPU: use one that has, or device cpu");
		return request->fail(DDP_ERR_UNSUPPORTED, "device cuda: the driver of this node's GPU is for "
		                     "CUDA %d.%d, and libddp_cuda.so needs one for %d.%d: install a newer "
		                     "driver, or a libddp built with an older CUDA", driver / 1000,
		                     driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
	}
	if (error != cudaSuccess && error != cudaErrorNoDevice)
		return request->fail(DDP_ERR_UNSUPPORTED, "device cuda: no GPU can be used: "
		                     "cudaGetDeviceCount: %s (%s)", cudaGetErrorString(error),
		                     cudaGetErrorName(error));
	if (visible != NULL)
		return request->fail(DDP_ERR_UNSUPPORTED, "device cuda: this process sees no GPU, with "
		                     "CUDA_VISIBLE_DEVICES='%s': ask srun for one (--gpus-per-node)", visible);
	return request->fail(DDP_ERR_UNSUPPORTED, "device cuda: this process sees no GPU: use a node that "
	                     "has one, and ask srun for it (--gpus-per-node)");
}

static ddp_status describe(const cuda_device *device, ddp_device_info *info)
{
	struct cudaDeviceProp properties;
	cudaError_t error = cudaGetDeviceProperties(&properties, device->index);

	if (error != cudaSuccess)
		return result(device, error, "cudaGetDeviceProperties");
	snprintf(info->name, sizeof(info->name), "%s", properties.name);
	info->memory_bytes = properties.totalGlobalMem;
	info->capability = 10 * properties.major + properties.minor;
	info->is_host_memory = false;
	return DDP_OK;
}

static ddp_status start(cuda_device *device)
{
	int lowest = 0;
	const ddp_status status = enter(device);

	if (status != DDP_OK)
		return status;
	const cudaError_t error = cudaDeviceGetStreamPriorityRange(&lowest, &device->highest_priority);
	if (error != cudaSuccess)
		return leave(device, error, "cudaDeviceGetStreamPriorityRange");
	return leave(device, cudaEventCreateWithFlags(&device->probe, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

static void destroy_probe(const cuda_device *device)
{
	if (enter(device) == DDP_OK)
		(void)leave_free(device, cudaEventDestroy(device->probe), "cudaEventDestroy");
}

static ddp_status cuda_open(const ddp_device_request *request, ddp_device_info *info, void **self)
{
	int count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);

	if (error != cudaSuccess || count == 0)
		return no_gpu(request, error);
	if (request->index >= count)
		return request->fail(DDP_ERR_INVALID, "there is no device cuda:%d: this process sees %d "
		                     "GPU%s, counted from 0: name %s, or ask srun for more (--gpus-per-node)",
		                     request->index, count, count == 1 ? "" : "s", count == 1 ? "that" : "one of them");
	cuda_device *device = calloc(1, sizeof(*device));
	if (device == NULL)
		return request->fail(DDP_ERR_NOMEM, "out of memory for device cuda:%d", request->index);
	device->index = request->index;
	device->fail = request->fail;
	ddp_status status = result(device, dk_gpu_open(&device->gpu, device->index), "cuDevicePrimaryCtxRetain");
	if (status == DDP_OK)
		status = start(device);
	if (status == DDP_OK)
		status = describe(device, info);
	if (status != DDP_OK) {
		if (device->probe != NULL)
			destroy_probe(device);
		free(device);
	} else {
		*self = device;
	}
	return status;
}

static void cuda_close(void *self)
{
	destroy_probe(self);
	free(self);
}

static ddp_status cuda_error(void *self)
{
	const cuda_device *device = self;
	const ddp_status status = enter(device);

	return status == DDP_OK
		? leave(device, cudaEventQuery(device->probe), "work enqueued earlier") : status;
}

static ddp_status cuda_within(void *self, ddp_device_function function, void *argument)
{
	const cuda_device *device = self;
	const ddp_status status = enter(device);

	if (status != DDP_OK)
		return status;
	function(argument);
	dk_gpu_leave(&device->gpu);
	return DDP_OK;
}

/* ---- memory ---- */

static ddp_status cuda_alloc(void *self, size_t bytes, void **memory)
{
	ddp_status status = enter(self);
	void *got = NULL;

	if (status == DDP_OK)
		status = leave(self, cudaMalloc(&got, bytes), "cudaMalloc");
	if (status == DDP_OK)
		*memory = got;
	return status;
}

static ddp_status cuda_free(void *self, void *memory)
{
	return enter(self) == DDP_OK ? leave_free(self, cudaFree(memory), "cudaFree") : DDP_OK;
}

static ddp_status cuda_host_alloc(void *self, size_t bytes, void **memory)
{
	ddp_status status = enter(self);
	void *got = NULL;

	if (status == DDP_OK)
		status = leave(self, cudaHostAlloc(&got, bytes, cudaHostAllocPortable), "cudaHostAlloc");
	if (status == DDP_OK)
		*memory = got;
	return status;
}

static ddp_status cuda_host_free(void *self, void *memory)
{
	return enter(self) == DDP_OK ? leave_free(self, cudaFreeHost(memory), "cudaFreeHost") : DDP_OK;
}

static bool cuda_owns(void *self, const void *address)
{
	const cuda_device *device = self;
	struct cudaPointerAttributes attributes;

	if (address == NULL || dk_gpu_enter(&device->gpu) != cudaSuccess)
		return false;
	const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
	if (error != cudaSuccess)
		cudaGetLastError();
	dk_gpu_leave(&device->gpu);
	return error == cudaSuccess && attributes.type == cudaMemoryTypeDevice && attributes.device == device->index;
}

/* ---- queues ---- */

static ddp_status cuda_queue_create(void *self, ddp_device_priority priority,
                                    ddp_device_queue **queue)
{
	const cuda_device *device = self;
	ddp_status status = enter(device);
	const int chosen = priority == DDP_DEVICE_HIGH ? device->highest_priority : 0;
	cudaStream_t stream = NULL;

	if (status == DDP_OK)
		status = leave(device, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, chosen),
		               "cudaStreamCreateWithPriority");
	if (status == DDP_OK)
		*queue = (ddp_device_queue *)stream;
	return status;
}

static ddp_status cuda_queue_free(void *self, ddp_device_queue *queue)
{
	const cudaStream_t stream = (cudaStream_t)queue;

	if (enter(self) != DDP_OK)
		return DDP_OK;
	const cudaError_t error = cudaStreamSynchronize(stream);
	if (error != cudaSuccess)
		return leave_free(self, error, "cudaStreamSynchronize");
	return leave_free(self, cudaStreamDestroy(stream), "cudaStreamDestroy");
}

static ddp_status cuda_queue_query(void *self, ddp_device_queue *queue, bool *done)
{
	const ddp_status status = enter(self);

	if (status != DDP_OK)
		return status;
	cudaError_t error = cudaStreamQuery((cudaStream_t)queue);
	if (error == cudaSuccess || error == cudaErrorNotReady)
		*done = error == cudaSuccess;
	if (error == cudaErrorNotReady) {
		cudaGetLastError();
		error = cudaSuccess;
	}
	return leave(self, error, "cudaStreamQuery");
}

static ddp_status cuda_queue_sync(void *self, ddp_device_queue *queue)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaStreamSynchronize((cudaStream_t)queue), "cudaStreamSynchronize")
		: status;
}

static ddp_status cuda_queue_wait(void *self, ddp_device_queue *queue, ddp_device_event *event)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaStreamWaitEvent((cudaStream_t)queue, (cudaEvent_t)event, 0), "cudaStreamWaitEvent")
		: status;
}

static ddp_status cuda_copy(void *self, ddp_device_queue *queue, void *to, const void *from,
                            size_t bytes)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)queue), "cudaMemcpyAsync")
		: status;
}

static ddp_status cuda_fill(void *self, ddp_device_queue *queue, void *to, unsigned char value,
                            size_t bytes)
{
	const cuda_device *device = self;
	const ddp_status status = enter(device);

	if (status != DDP_OK)
		return status;
	/* Some GPUs reach the host's memory, too, and would fill that. */
	if (cuda_owns(self, to))
		return leave(device, cudaMemsetAsync(to, value, bytes, (cudaStream_t)queue), "cudaMemsetAsync");
	dk_gpu_leave(&device->gpu);
	return device->fail(DDP_ERR_INVALID, "fill: %p is not memory of device cuda:%d", to, device->index);
}

static ddp_status cuda_launch(void *self, ddp_device_queue *queue, ddp_device_function function,
                              void *argument)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaLaunchHostFunc((cudaStream_t)queue, function, argument), "cudaLaunchHostFunc")
		: status;
}

/* ---- events ---- */

static ddp_status cuda_event_create(void *self, bool timed, ddp_device_event **event)
{
	ddp_status status = enter(self);
	cudaEvent_t created = NULL;

	if (status == DDP_OK)
		status = leave(self, cudaEventCreateWithFlags(&created, timed ? cudaEventDefault : cudaEventDisableTiming),
		               "cudaEventCreateWithFlags");
	if (status == DDP_OK)
		*event = (ddp_device_event *)created;
	return status;
}

static ddp_status cuda_event_free(void *self, ddp_device_event *event)
{
	return enter(self) == DDP_OK
		? leave_free(self, cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy") : DDP_OK;
}

static ddp_status cuda_event_record(void *self, ddp_device_event *event, ddp_device_queue *queue)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaEventRecord((cudaEvent_t)event, (cudaStream_t)queue), "cudaEventRecord")
		: status;
}

static ddp_status cuda_event_query(void *self, ddp_device_event *event, bool *done)
{
	const ddp_status status = enter(self);

	if (status != DDP_OK)
		return status;
	cudaError_t error = cudaEventQuery((cudaEvent_t)event);
	if (error == cudaSuccess || error == cudaErrorNotReady)
		*done = error == cudaSuccess;
	if (error == cudaErrorNotReady) {
		cudaGetLastError();
		error = cudaSuccess;
	}
	return leave(self, error, "cudaEventQuery");
}

static ddp_status cuda_event_sync(void *self, ddp_device_event *event)
{
	const ddp_status status = enter(self);

	return status == DDP_OK
		? leave(self, cudaEventSynchronize((cudaEvent_t)event), "cudaEventSynchronize")
		: status;
}

static ddp_status cuda_event_seconds(void *self, ddp_device_event *from, ddp_device_event *to, double *seconds)
{
	float milliseconds = 0;
	ddp_status status = enter(self);

	if (status == DDP_OK)
		status = leave(self, cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to),
		               "cudaEventElapsedTime");
	if (status == DDP_OK)
		*seconds = milliseconds * 1e-3;
	return status;
}

DDP_API extern const ddp_device_backend ddp_device_module;
const ddp_device_backend ddp_device_module = {
	.version = DDP_DEVICE_VERSION, .bytes = sizeof(ddp_device_module), .kind = "cuda",
	.open = cuda_open, .close = cuda_close, .error = cuda_error,
	.within = cuda_within,
	.alloc = cuda_alloc, .free = cuda_free,
	.host_alloc = cuda_host_alloc, .host_free = cuda_host_free,
	.owns = cuda_owns,
	.queue_create = cuda_queue_create, .queue_free = cuda_queue_free,
	.queue_query = cuda_queue_query, .queue_sync = cuda_queue_sync, .queue_wait = cuda_queue_wait,
	.copy = cuda_copy, .fill = cuda_fill, .launch = cuda_launch,
	.event_create = cuda_event_create, .event_free = cuda_event_free,
	.event_record = cuda_event_record, .event_query = cuda_event_query,
	.event_sync = cuda_event_sync, .event_seconds = cuda_event_seconds,
};
