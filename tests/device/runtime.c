/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime on the host's threads: memory, streams and events. */
#include <stdlib.h>
#include <string.h>

#include "tests/device/runtime.h"
#include "tests/support/sanitizers.h"

#if ADDRESS_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

/* What is wrong with calls in a capture. */
static const char allocates[] = "memory is allocated, which ends CUDA's captures";
static const char frees[] = "memory is freed, which ends CUDA's captures";
static const char waits[] = "the host asks or waits for a stream, which ends CUDA's captures";
static const char works[] = "a stream is given work by CUDA's own functions, and the graph will lack that";
static const char joins[] = "a stream waits for an event, or records one, and the graph will not";

/* ---- memory ---- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
	memset(attributes, 0, sizeof(*attributes));
	for (int i = 0; i < FAKE_GPUS; i++) {
		if (fake_gpus[i] != NULL && fake_gpu_memory_owns(&fake_gpus[i]->memory, address)) {
			attributes->type = cudaMemoryTypeDevice;
			attributes->device = i;
		}
	}
	return fake_gpu_refuse("cudaPointerGetAttributes");
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter("cudaMalloc", allocates, &gpu);

	if (error != cudaSuccess)
		return error;
	error = fake_gpu_memory_alloc(&gpu->memory, bytes, memory);
	if (error == cudaSuccess)
		fake_gpu_count(gpu, 1);
	return fake_gpu_leave(gpu, error);
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
	cudaError_t error = fake_gpu_enter("cudaFree", frees, &gpu);

	if (error != cudaSuccess)
		return error;
	const size_t bytes = fake_gpu_memory_size(&gpu->memory, memory);
	if (bytes == 0)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "%p is no memory that the GPU gave", memory));
	error = refuse_use_locked(gpu, memory, bytes);
	if (error != cudaSuccess)
		return fake_gpu_leave(gpu, error);
	fake_gpu_order_forget(&gpu->order, memory, bytes);
	fake_gpu_memory_free(&gpu->memory, memory);
	fake_gpu_count(gpu, -1);
	return fake_gpu_leave(gpu, cudaSuccess);
}

/* Of what a GPU has, the GPU counts what is not given back. If it is broken, or its context is gone, nothing is. */
static void leave_out_of_leaks(const void *object)
{
#if ADDRESS_SANITIZER
	__lsan_ignore_object(object);
#endif
	(void)object;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter("cudaHostAlloc", allocates, &gpu);
	void *got = NULL;

	if (error != cudaSuccess)
		return error;
	if (flags != cudaHostAllocPortable)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "memory of the host for one GPU alone"));
	if (posix_memalign(&got, FAKE_GPU_ALIGNMENT, bytes) != 0)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "the host is out of memory for %zu bytes", bytes));
	memset(got, 0xff, bytes);
	leave_out_of_leaks(got);
	*memory = got;
	fake_gpu_count(gpu, 1);
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter("cudaFreeHost", frees, &gpu);

	if (error != cudaSuccess)
		return error;
	error = refuse_use_locked(gpu, memory, 1);
	if (error == cudaSuccess) {
		free(memory);
		fake_gpu_count(gpu, -1);
	}
	return fake_gpu_leave(gpu, error);
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

/* ---- streams ---- */

gpu_stream *fake_gpu_stream_of(int index, cudaStream_t stream)
{
	return stream != NULL ? stream : fake_gpus[index]->standard;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter("cudaStreamCreateWithPriority", NULL, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	if (flags != cudaStreamNonBlocking)
		return fake_gpu_fail(cudaErrorInvalidValue, "a stream that waits for the default one");
	fake_gpu.priority = priority; /* delays are what decides */
	error = fake_gpu_stream_create(gpu, stream);
	if (error == cudaSuccess)
		fake_gpu_count(gpu, 1);
	return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_stream("cudaStreamDestroy", waits, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	fake_gpu_stream_free(stream);
	fake_gpu_count(gpu, -1);
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_stream("cudaStreamQuery", waits, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (stream->done < stream->given)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorNotReady, "it has work"));
	fake_gpu_host_knows_locked(gpu, &gpu->order.streams[stream->number]);
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t fake_gpu_sync(gpu_stream *stream)
{
	fake_gpu_device *gpu = stream->gpu;

	pthread_mutex_lock(&gpu->lock);
	const gpu_clock clock = gpu->order.streams[stream->number];
	fake_gpu_stream_wait_locked(stream, stream->given);
	const cudaError_t error = fake_gpu_broken_locked(gpu);
	if (error == cudaSuccess)
		fake_gpu_host_knows_locked(gpu, &clock);
	return fake_gpu_leave(gpu, error);
}

/* Of a GPU that is broken, too: functions that have begun end. */
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_stream("cudaStreamSynchronize", waits, &stream, &gpu);

	if (error == cudaSuccess)
		pthread_mutex_unlock(&gpu->lock);
	if (error == cudaSuccess || (error == cudaErrorLaunchFailure && stream != NULL))
		return fake_gpu_sync(stream);
	return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter_stream("cudaStreamWaitEvent", joins, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (event == NULL || event->gpu != gpu || flags != 0)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU, or has flags"));
	gpu_mark *mark = event->mark;
	if (mark != NULL) {
		error = fake_gpu_give_locked(stream, &(gpu_work){ .kind = GPU_WAIT, .mark = mark });
		mark->references += error == cudaSuccess;
	}
	if (mark != NULL && error == cudaSuccess)
		fake_gpu_order_waits(&gpu->order, stream->number, &mark->clock);
	return fake_gpu_leave(gpu, error);
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
	const cudaError_t error = fake_gpu_broken_locked(stream->gpu);
	return fake_gpu_leave(stream->gpu, error == cudaSuccess ? copy_locked(stream, to, from, bytes) : error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_stream("cudaMemcpyAsync", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (kind != cudaMemcpyDefault)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorInvalidValue, "another kind of copy than the one by addresses"));
	return fake_gpu_leave(gpu, copy_locked(stream, to, from, bytes));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter_stream("cudaMemsetAsync", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	const gpu_work work = { .kind = GPU_FILL, .to = to, .value = (unsigned char)value, .bytes = bytes,
	                        .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	error = check_side_locked(stream, &work, "fill", to, true);
	return fake_gpu_leave(gpu, error == cudaSuccess ? fake_gpu_give_locked(stream, &work) : error);
}

cudaError_t fake_gpu_launch(gpu_stream *stream, cudaHostFn_t function, void *argument)
{
	fake_gpu_device *gpu = stream->gpu;

	pthread_mutex_lock(&gpu->lock);
	const cudaError_t error = fake_gpu_broken_locked(gpu);
	if (error != cudaSuccess)
		return fake_gpu_leave(gpu, error);
	const gpu_work work = { .kind = GPU_LAUNCH, .function = function, .argument = argument,
	                        .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	return fake_gpu_leave(gpu, fake_gpu_give_locked(stream, &work));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_stream("cudaLaunchHostFunc", works, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	pthread_mutex_unlock(&gpu->lock);
	return fake_gpu_launch(stream, function, argument);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *created, unsigned int flags)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter("cudaEventCreateWithFlags", NULL, &gpu);

	if (error != cudaSuccess)
		return error;
	gpu_event *event = calloc(1, sizeof(*event));
	if (event == NULL || (flags != cudaEventDisableTiming && flags != cudaEventDefault)) {
		free(event);
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "no memory for an event, or its flags"));
	}
	leave_out_of_leaks(event);
	event->gpu = gpu;
	event->timed = flags == cudaEventDefault;
	*created = event;
	fake_gpu_count(gpu, 1);
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_event("cudaEventDestroy", NULL, event, &gpu);

	if (error != cudaSuccess)
		return error;
	fake_gpu_mark_release_locked(event->mark);
	free(event);
	fake_gpu_count(gpu, -1);
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter_stream("cudaEventRecord", joins, &stream, &gpu);

	if (error != cudaSuccess)
		return error;
	if (event == NULL || event->gpu != gpu)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorInvalidResourceHandle, "this is an event of another GPU"));
	gpu_mark *mark = calloc(1, sizeof(*mark));
	if (mark == NULL)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorMemoryAllocation, "out of memory for an event"));
	*mark = (gpu_mark){ .references = 2, .clock = fake_gpu_order_next(&gpu->order, stream->number) };
	error = fake_gpu_give_locked(stream, &(gpu_work){ .kind = GPU_RECORD, .mark = mark, .clock = mark->clock });
	if (error != cudaSuccess) {
		free(mark);
		return fake_gpu_leave(gpu, error);
	}
	fake_gpu_mark_release_locked(event->mark);
	event->mark = mark;
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	const cudaError_t error = fake_gpu_enter_event("cudaEventQuery", waits, event, &gpu);

	if (error != cudaSuccess || event->mark == NULL)
		return error == cudaSuccess ? fake_gpu_leave(gpu, error) : error;
	if (!event->mark->reached)
		return fake_gpu_leave(gpu, fake_gpu_fail(cudaErrorNotReady, "its stream has not come to it"));
	fake_gpu_host_knows_locked(gpu, &event->mark->clock);
	return fake_gpu_leave(gpu, cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter_event("cudaEventSynchronize", waits, event, &gpu);

	if (error != cudaSuccess)
		return error;
	gpu_mark *mark = event->mark;
	if (mark == NULL)
		return fake_gpu_leave(gpu, cudaSuccess);
	mark->references++; /* the event may be recorded again, or freed, meanwhile */
	while (!mark->reached && !gpu->broken)
		pthread_cond_wait(&gpu->changed, &gpu->lock);
	error = fake_gpu_broken_locked(gpu);
	if (error == cudaSuccess)
		fake_gpu_host_knows_locked(gpu, &mark->clock);
	fake_gpu_mark_release_locked(mark);
	return fake_gpu_leave(gpu, error);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	fake_gpu_device *gpu;
	cudaError_t error = fake_gpu_enter_event("cudaEventElapsedTime", waits, from, &gpu);

	if (error != cudaSuccess)
		return error;
	if (to == NULL || !from->timed || !to->timed)
		error = fake_gpu_fail(cudaErrorInvalidResourceHandle, "the time between events: they are not timed");
	else if (from->mark == NULL || to->mark == NULL || !from->mark->reached || !to->mark->reached)
		error = fake_gpu_fail(cudaErrorNotReady, "the time between events: their streams have not come to both");
	else
		*milliseconds = (float)((double)(int64_t)(to->mark->reached_ns - from->mark->reached_ns) * 1e-6);
	return fake_gpu_leave(gpu, error);
}
