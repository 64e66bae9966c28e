/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime, and what device/cuda takes of the driver, on the host's threads. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "tests/device/runtime.h"

enum { GPUS_MAX = 8, LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

static int *current_of_thread(void);
static int last_of_thread(void);
static int view_for_tests(const void *address, size_t bytes, bool writes, void **view);

fake_gpu_switches fake_gpu = {
	.seed = 1, .delay_us = 200, .check_order = true, .count = 1, .capability = 80,
	.current = current_of_thread, .last = last_of_thread, .view = view_for_tests,
};

/* ---- errors ---- */

static _Thread_local cudaError_t last;
static _Thread_local char reason[FAKE_GPU_TEXT]; /* of the thread's last error */

cudaError_t fake_gpu_fail(cudaError_t error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	last = error;
	return error;
}

const char *fake_gpu_reason(void)
{
	return reason;
}

static int last_of_thread(void)
{
	return last;
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t error = last;

	last = cudaSuccess;
	return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOther";
}

/* Right after the call that failed. */
const char *cudaGetErrorString(cudaError_t error)
{
	if (error == cudaErrorContextIsDestroyed)
		return "context is destroyed";
	return reason;
}

static cudaError_t broken_locked(const fake_gpu_device *gpu)
{
	return gpu->broken ? fake_gpu_fail(cudaErrorLaunchFailure, "the GPU is broken: %s", gpu->reason) : cudaSuccess;
}

/* ---- captures ---- */

static _Thread_local struct {
	bool on;
	const char *refused;
} capture;

void fake_gpu_capture_begin(void)
{
	capture.on = true;
	capture.refused = NULL;
}

const char *fake_gpu_capture_end(void)
{
	capture.on = false;
	return capture.refused;
}

static const char allocates[] = "memory is allocated, which ends CUDA's captures";
static const char frees[] = "memory is freed, which ends CUDA's captures";
static const char waits[] = "the host asks or waits for a stream, which ends CUDA's captures";
static const char works[] = "a stream is given work by CUDA's own functions, and the graph will lack that";
static const char joins[] = "a stream waits for an event, or records one, and the graph will not";

/* ---- the thread's GPU ---- */

static fake_gpu_device *gpus[GPUS_MAX];
static pthread_mutex_t gpus_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current = FAKE_GPU_NONE, below[8], depth;

static int *current_of_thread(void)
{
	return &current;
}

fake_gpu_device *fake_gpu_here(void)
{
	return current != FAKE_GPU_NONE ? gpus[current] : NULL;
}

static void set_objects(fake_gpu_device *gpu, int change)
{
	atomic_fetch_add(&gpu->objects, change);
	fake_gpu.objects = atomic_load(&gpu->objects);
}

/* What a stream's function does not call, nor a thread that captures: `captured` is wrong with it. If it is
   cudaSuccess, the thread's GPU is locked, until leave(). */
static cudaError_t enter(const char *call, const char *captured, fake_gpu_device **gpu)
{
	if (fake_gpu.broken)
		return fake_gpu_fail(cudaErrorIllegalAddress, "something else");
	if (fake_gpu.failing != NULL && strcmp(fake_gpu.failing, call) == 0)
		return fake_gpu_fail((cudaError_t)fake_gpu.error, "%s", fake_gpu.error == cudaErrorMemoryAllocation ? "out of memory" : "something else");
	if (fake_gpu_running() != NULL)
		return fake_gpu_fail(cudaErrorNotPermitted, "a function that a stream runs must not call CUDA");
	if (capture.on && captured != NULL) {
		capture.refused = capture.refused != NULL ? capture.refused : captured;
		/* The caller may ask whether the GPU is well before it asks for the sentence. */
		return last == cudaErrorStreamCaptureUnsupported ? last
			: fake_gpu_fail(cudaErrorStreamCaptureUnsupported, "while the thread captures a graph, %s", captured);
	}
	*gpu = fake_gpu_here();
	if (*gpu == NULL)
		return fake_gpu_fail(cudaErrorInvalidValue, "the thread has no GPU's context");
	pthread_mutex_lock(&(*gpu)->lock);
	const cudaError_t error = broken_locked(*gpu);
	if (error != cudaSuccess)
		pthread_mutex_unlock(&(*gpu)->lock);
	return error;
}

static cudaError_t leave(fake_gpu_device *gpu, cudaError_t error)
{
	pthread_mutex_unlock(&gpu->lock);
	return error;
}

/* The same for calls with a stream, NULL being the default one. */
static cudaError_t enter_stream(const char *call, const char *captured, cudaStream_t *stream, fake_gpu_device **gpu)
{
	const cudaError_t error = enter(call, captured, gpu);

	if (error != cudaSuccess)
		return error;
	if (*stream == NULL)
		*stream = (*gpu)->standard;
	if ((*stream)->gpu != *gpu)
		return leave(*gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is a stream of another GPU"));
	return cudaSuccess;
}

/* The same for calls with an event. */
static cudaError_t enter_event(const char *call, const char *captured, cudaEvent_t event, fake_gpu_device **gpu)
{
	const cudaError_t error = enter(call, captured, gpu);

	if (error == cudaSuccess && (event == NULL || event->gpu != *gpu))
		return leave(*gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU"));
	return error;
}

/* ---- GPUs ---- */

static fake_gpu_device *make_gpu(int index)
{
	fake_gpu_device *gpu = calloc(1, sizeof(*gpu));

	if (gpu == NULL)
		return NULL;
	gpu->owner = getpid();
	gpu->seed = fake_gpu.seed + ((uint64_t)index << 40);
	gpu->delay_us = fake_gpu.delay_us;
	gpu->check_order = fake_gpu.check_order;
	pthread_mutex_init(&gpu->lock, NULL);
	pthread_cond_init(&gpu->changed, NULL);
	if (fake_gpu_memory_open(&gpu->memory) == cudaSuccess && fake_gpu_stream_create(gpu, &gpu->standard) == cudaSuccess)
		return gpu;
	fake_gpu_memory_close(&gpu->memory);
	free(gpu);
	return NULL;
}

static void close_gpu(fake_gpu_device *gpu)
{
	while (gpu->streams != NULL)
		fake_gpu_stream_free(gpu->streams);
	fake_gpu_order_close(&gpu->order);
	fake_gpu_memory_close(&gpu->memory);
	pthread_cond_destroy(&gpu->changed);
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

/* The GPU of whoever opens it: one that a parent process had is not this one's, and has no threads here. */
static fake_gpu_device *renew(int index)
{
	pthread_mutex_lock(&gpus_lock);
	fake_gpu_device *gpu = gpus[index];
	if (gpu != NULL && gpu->owner == getpid() && (gpu->broken || atomic_load(&gpu->objects) == 0))
		close_gpu(gpu);
	else if (gpu != NULL && gpu->owner == getpid()) {
		pthread_mutex_unlock(&gpus_lock);
		return gpu;
	}
	gpu = gpus[index] = make_gpu(index);
	pthread_mutex_unlock(&gpus_lock);
	return gpu;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = fake_gpu.count;
	if (fake_gpu.driver > 0 && fake_gpu.failing == NULL)
		return fake_gpu_fail(cudaErrorInsufficientDriver, "the driver is too old");
	if (fake_gpu.failing != NULL && strcmp(fake_gpu.failing, "cudaGetDeviceCount") == 0)
		return fake_gpu_fail((cudaError_t)fake_gpu.error, "%s", fake_gpu.error == cudaErrorMemoryAllocation ? "out of memory" : "something else");
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = fake_gpu.driver;
	return cudaSuccess;
}

static CUresult find_gpu(CUdevice *device, int index)
{
	*device = index;
	return CUDA_SUCCESS;
}

static bool fails(const char *call)
{
	return fake_gpu.failing != NULL && strcmp(fake_gpu.failing, call) == 0;
}

/* A context is where its GPU is kept. */
static CUresult retain(CUcontext *context, CUdevice device)
{
	fake_gpu_fail(cudaSuccess, "something else");
	if (fails("cuDevicePrimaryCtxRetain") || renew(device) == NULL)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	*context = (CUcontext)(void *)&gpus[device];
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
	if (fails("cuCtxPushCurrent") || depth == sizeof(below) / sizeof(below[0]))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	below[depth++] = current;
	current = (int)((fake_gpu_device **)(void *)context - gpus);
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	if (depth == 0)
		abort();
	*context = (CUcontext)(void *)&gpus[current];
	current = below[--depth];
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
	static const struct { const char *name; void (*function)(void); } functions[] = {
		{ "cuDeviceGet", (void (*)(void))find_gpu }, { "cuDevicePrimaryCtxRetain", (void (*)(void))retain },
		{ "cuCtxPushCurrent", (void (*)(void))push }, { "cuCtxPopCurrent", (void (*)(void))pop },
	};

	(void)version;
	(void)flags;
	*found = cudaDriverEntryPointSymbolNotFound;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].name, symbol) != 0)
			continue;
		memcpy(function, &functions[i].function, sizeof(*function));
		*found = cudaDriverEntryPointSuccess;
	}
	return cudaSuccess;
}

/* Of whatever GPU is the thread's. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
	memset(properties, 0, sizeof(*properties));
	if (fails("cudaGetDeviceProperties"))
		return fake_gpu_fail((cudaError_t)fake_gpu.error, "something else");
	snprintf(properties->name, sizeof(properties->name), "fake GPU number %d", device);
	properties->totalGlobalMem = (size_t)FAKE_GPU_MEMORY_GIB << 30;
	properties->major = fake_gpu.capability / 10;
	properties->minor = fake_gpu.capability % 10;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter("cudaDeviceGetStreamPriorityRange", NULL, &gpu);

	*least = LOWEST_PRIORITY;
	*greatest = HIGHEST_PRIORITY;
	return error == cudaSuccess ? leave(gpu, cudaSuccess) : error;
}

/* ---- memory ---- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
	memset(attributes, 0, sizeof(*attributes));
	if (fails("cudaPointerGetAttributes"))
		return fake_gpu_fail((cudaError_t)fake_gpu.error, "something else");
	for (int i = 0; i < GPUS_MAX; i++) {
		if (gpus[i] != NULL && fake_gpu_memory_owns(&gpus[i]->memory, address)) {
			attributes->type = cudaMemoryTypeDevice;
			attributes->device = i;
		}
	}
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter("cudaMalloc", allocates, &gpu);

	if (error != cudaSuccess)
		return error;
	error = fake_gpu_memory_alloc(&gpu->memory, bytes, memory);
	if (error == cudaSuccess)
		set_objects(gpu, 1);
	return leave(gpu, error);
}

static bool overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
	return (uintptr_t)one < (uintptr_t)other + other_bytes && (uintptr_t)other < (uintptr_t)one + one_bytes;
}

/* The stream that still has to copy or fill some of these bytes; NULL: none. */
static const gpu_stream *user_of_locked(const fake_gpu_device *gpu, const void *memory, size_t bytes)
{
	for (const gpu_stream *stream = gpu->streams; stream != NULL; stream = stream->next) {
		for (const gpu_work *work = stream->first; work != NULL; work = work->next) {
			if (overlap(work->to, work->bytes, memory, bytes) || overlap(work->from, work->bytes, memory, bytes))
				return stream;
		}
	}
	return NULL;
}

static cudaError_t refuse_use_locked(const fake_gpu_device *gpu, const void *memory, size_t bytes)
{
	const gpu_stream *user = user_of_locked(gpu, memory, bytes);

	return user == NULL ? cudaSuccess : fake_gpu_fail(cudaErrorInvalidValue, "memory at %p is freed while stream %d has "
	                                                  "work that uses it", memory, user->number);
}

cudaError_t cudaFree(void *memory)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter("cudaFree", frees, &gpu);

	if (error != cudaSuccess)
		return error;
	const size_t bytes = fake_gpu_memory_size(&gpu->memory, memory);
	if (bytes == 0)
		return leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "%p is no memory that the GPU gave", memory));
	error = refuse_use_locked(gpu, memory, bytes);
	if (error != cudaSuccess)
		return leave(gpu, error);
	fake_gpu_order_forget(&gpu->order, memory, bytes);
	fake_gpu_memory_free(&gpu->memory, memory);
	set_objects(gpu, -1);
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter("cudaHostAlloc", allocates, &gpu);
	void *got = NULL;

	if (error != cudaSuccess)
		return error;
	if (flags != cudaHostAllocPortable)
		return leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "memory of the host for one GPU alone"));
	if (posix_memalign(&got, FAKE_GPU_ALIGNMENT, bytes) != 0)
		return leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "the host is out of memory for %zu bytes", bytes));
	memset(got, 0xff, bytes);
	*memory = got;
	set_objects(gpu, 1);
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter("cudaFreeHost", frees, &gpu);

	if (error != cudaSuccess)
		return error;
	error = refuse_use_locked(gpu, memory, 1);
	if (error == cudaSuccess) {
		free(memory);
		set_objects(gpu, -1);
	}
	return leave(gpu, error);
}

cudaError_t fake_gpu_view(const void *address, size_t bytes, bool writes, void **view)
{
	const gpu_running *running = fake_gpu_running();

	if (running == NULL)
		return fake_gpu_fail(cudaErrorNotPermitted, "a view of the GPU's memory is for functions that its streams run");
	fake_gpu_device *gpu = running->stream->gpu;
	cudaError_t error = cudaSuccess;
	pthread_mutex_lock(&gpu->lock);
	if (!fake_gpu_memory_owns(&gpu->memory, address))
		error = cudaSuccess;
	else if (!fake_gpu_memory_holds(&gpu->memory, address, bytes))
		error = fake_gpu_break_locked(gpu, "a function of stream %d uses %zu bytes at %p, which are not all allocated",
		                              running->stream->number, bytes, address);
	else
		error = fake_gpu_access_locked(running->stream, &running->work->clock, "function", address, bytes, writes);
	pthread_mutex_unlock(&gpu->lock);
	if (error == cudaSuccess)
		*view = fake_gpu_memory_view(&gpu->memory, address);
	return error;
}

static int view_for_tests(const void *address, size_t bytes, bool writes, void **view)
{
	return fake_gpu_view(address, bytes, writes, view);
}

/* ---- streams ---- */

gpu_stream *fake_gpu_stream_of(int index, cudaStream_t stream)
{
	return stream != NULL ? stream : gpus[index]->standard;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter("cudaStreamCreateWithPriority", NULL, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	if (flags != cudaStreamNonBlocking)
		return fake_gpu_fail(cudaErrorInvalidValue, "a stream that waits for the default one");
	fake_gpu.priority = priority; /* delays are what decides */
	error = fake_gpu_stream_create(gpu, stream);
	if (error == cudaSuccess)
		set_objects(gpu, 1);
	return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_stream("cudaStreamDestroy", waits, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	fake_gpu_stream_free(stream);
	set_objects(gpu, -1);
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_stream("cudaStreamQuery", waits, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (stream->done < stream->given)
		return leave(gpu, fake_gpu_fail(cudaErrorNotReady, "it has work"));
	fake_gpu_host_knows_locked(gpu, &gpu->order.streams[stream->number]);
	return leave(gpu, cudaSuccess);
}

cudaError_t fake_gpu_sync(gpu_stream *stream)
{
	fake_gpu_device *gpu = stream->gpu;

	pthread_mutex_lock(&gpu->lock);
	const gpu_clock clock = gpu->order.streams[stream->number];
	fake_gpu_stream_wait_locked(stream, stream->given);
	const cudaError_t error = broken_locked(gpu);
	if (error == cudaSuccess)
		fake_gpu_host_knows_locked(gpu, &clock);
	return leave(gpu, error);
}

/* Of a GPU that is broken, too: functions that have begun end. */
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_stream("cudaStreamSynchronize", waits, &stream, &gpu);

	if (error == cudaSuccess)
		pthread_mutex_unlock(&gpu->lock);
	if (error == cudaSuccess || (error == cudaErrorLaunchFailure && stream != NULL))
		return fake_gpu_sync(stream);
	return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter_stream("cudaStreamWaitEvent", joins, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (event == NULL || event->gpu != gpu || flags != 0)
		return leave(gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU, or has flags"));
	gpu_mark *mark = event->mark;
	if (mark != NULL) {
		error = fake_gpu_give_locked(stream, &(gpu_work){ .kind = GPU_WAIT, .mark = mark });
		mark->references += error == cudaSuccess;
	}
	if (mark != NULL && error == cudaSuccess)
		fake_gpu_order_waits(&gpu->order, stream->number, &mark->clock);
	return leave(gpu, error);
}

/* One side of a copy or a fill. */
static cudaError_t check_side_locked(gpu_stream *stream, const gpu_work *work, const char *what, const void *address,
                                     bool writes)
{
	const gpu_memory *memory = &stream->gpu->memory;

	if (fake_gpu_memory_owns(memory, address) && !fake_gpu_memory_holds(memory, address, work->bytes))
		return fake_gpu_fail(cudaErrorInvalidValue, "%s: %zu bytes at %p are not all allocated on the GPU", what,
		                     work->bytes, address);
	return fake_gpu_access_locked(stream, &work->clock, what, address, work->bytes, writes);
}

static cudaError_t copy_locked(gpu_stream *stream, void *to, const void *from, size_t bytes)
{
	const gpu_work work = { .kind = GPU_COPY, .to = to, .from = from, .bytes = bytes,
	                        .clock = fake_gpu_order_next(&stream->gpu->order, stream->number) };
	cudaError_t error = check_side_locked(stream, &work, "copy", from, false);

	if (error == cudaSuccess)
		error = check_side_locked(stream, &work, "copy", to, true);
	return error == cudaSuccess ? fake_gpu_give_locked(stream, &work) : error;
}

cudaError_t fake_gpu_copy(gpu_stream *stream, void *to, const void *from, size_t bytes)
{
	pthread_mutex_lock(&stream->gpu->lock);
	const cudaError_t error = broken_locked(stream->gpu);
	return leave(stream->gpu, error == cudaSuccess ? copy_locked(stream, to, from, bytes) : error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_stream("cudaMemcpyAsync", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (kind != cudaMemcpyDefault)
		return leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "another kind of copy than the one by addresses"));
	return leave(gpu, copy_locked(stream, to, from, bytes));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter_stream("cudaMemsetAsync", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	const gpu_work work = { .kind = GPU_FILL, .to = to, .value = (unsigned char)value, .bytes = bytes,
	                        .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	error = check_side_locked(stream, &work, "fill", to, true);
	return leave(gpu, error == cudaSuccess ? fake_gpu_give_locked(stream, &work) : error);
}

cudaError_t fake_gpu_launch(gpu_stream *stream, cudaHostFn_t function, void *argument)
{
	fake_gpu_device *gpu = stream->gpu;

	pthread_mutex_lock(&gpu->lock);
	const cudaError_t error = broken_locked(gpu);
	if (error != cudaSuccess)
		return leave(gpu, error);
	const gpu_work work = { .kind = GPU_LAUNCH, .function = function, .argument = argument,
	                        .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	return leave(gpu, fake_gpu_give_locked(stream, &work));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_stream("cudaLaunchHostFunc", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	return fake_gpu_launch(stream, function, argument);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *created, unsigned int flags)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter("cudaEventCreateWithFlags", NULL, &gpu);

	if (error != cudaSuccess)
		return error;
	gpu_event *event = calloc(1, sizeof(*event));
	if (event == NULL || (flags != cudaEventDisableTiming && flags != cudaEventDefault)) {
		free(event);
		return leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "no memory for an event, or its flags"));
	}
	event->gpu = gpu;
	event->timed = flags == cudaEventDefault;
	*created = event;
	set_objects(gpu, 1);
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_event("cudaEventDestroy", NULL, event, &gpu);

	if (error != cudaSuccess)
		return error;
	fake_gpu_mark_release_locked(event->mark);
	free(event);
	set_objects(gpu, -1);
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter_stream("cudaEventRecord", joins, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (event == NULL || event->gpu != gpu)
		return leave(gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU"));
	gpu_mark *mark = calloc(1, sizeof(*mark));
	if (mark == NULL)
		return leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "out of memory for an event"));
	*mark = (gpu_mark){ .references = 2, .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	error = fake_gpu_give_locked(stream, &(gpu_work){ .kind = GPU_RECORD, .mark = mark, .clock = mark->clock });
	if (error != cudaSuccess) {
		free(mark);
		return leave(gpu, error);
	}
	fake_gpu_mark_release_locked(event->mark);
	event->mark = mark;
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	const cudaError_t error = enter_event("cudaEventQuery", waits, event, &gpu);

	if (error != cudaSuccess || event->mark == NULL)
		return error == cudaSuccess ? leave(gpu, error) : error;
	if (!event->mark->reached)
		return leave(gpu, fake_gpu_fail(cudaErrorNotReady, "its stream has not come to it"));
	fake_gpu_host_knows_locked(gpu, &event->mark->clock);
	return leave(gpu, cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter_event("cudaEventSynchronize", waits, event, &gpu);

	if (error != cudaSuccess)
		return error;
	gpu_mark *mark = event->mark;
	if (mark == NULL)
		return leave(gpu, cudaSuccess);
	mark->references++; /* the event may be recorded again, or freed, meanwhile */
	while (!mark->reached && !gpu->broken)
		pthread_cond_wait(&gpu->changed, &gpu->lock);
	error = broken_locked(gpu);
	if (error == cudaSuccess)
		fake_gpu_host_knows_locked(gpu, &mark->clock);
	fake_gpu_mark_release_locked(mark);
	return leave(gpu, error);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	fake_gpu_device *gpu;
	cudaError_t error = enter_event("cudaEventElapsedTime", waits, from, &gpu);

	if (error != cudaSuccess)
		return error;
	if (to == NULL || !from->timed || !to->timed)
		error = fake_gpu_fail(cudaErrorInvalidResourceHandle, "the time between events: they are not timed");
	else if (from->mark == NULL || to->mark == NULL || !from->mark->reached || !to->mark->reached)
		error = fake_gpu_fail(cudaErrorNotReady, "the time between events: their streams have not come to both");
	else
		*milliseconds = (float)((double)(int64_t)(to->mark->reached_ns - from->mark->reached_ns) * 1e-6);
	return leave(gpu, error);
}

/* ---- what is amiss ---- */

static int number(const char *variable, int otherwise)
{
	const char *given = getenv(variable);

	return given != NULL ? atoi(given) : otherwise;
}

/* FAKE_GPU_DRIVER: the version of CUDA that the driver is for, and is too old by. */
static __attribute__((constructor)) void choose(void)
{
	fake_gpu.count = number("FAKE_GPU_COUNT", fake_gpu.count);
	fake_gpu.capability = number("FAKE_GPU_CAPABILITY", fake_gpu.capability);
	fake_gpu.driver = number("FAKE_GPU_DRIVER", 0);
	if (fake_gpu.count > GPUS_MAX)
		fake_gpu.count = GPUS_MAX;
}
