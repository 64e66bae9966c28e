/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "splitmix.h"

static _Thread_local gpu_running running;

const gpu_running *fake_gpu_running(void)
{
	return running.stream != NULL ? &running : NULL;
}

cudaError_t fake_gpu_break_locked(fake_gpu_device *gpu, const char *format, ...)
{
	va_list arguments;

	if (!gpu->broken) {
		gpu->broken = true;
		va_start(arguments, format);
		vsnprintf(gpu->reason, sizeof(gpu->reason), format, arguments);
		va_end(arguments);
		pthread_cond_broadcast(&gpu->changed);
	}
	return fake_gpu_fail(cudaErrorLaunchFailure, "the GPU is broken: %s", gpu->reason);
}

void fake_gpu_mark_release_locked(gpu_mark *mark)
{
	if (mark != NULL && --mark->references == 0)
		free(mark);
}

cudaError_t fake_gpu_access_locked(gpu_stream *stream, const gpu_clock *clock, const char *what, const void *address,
                                   size_t bytes, bool writes)
{
	fake_gpu_device *gpu = stream->gpu;
	const gpu_access access = {
		.address = address, .bytes = bytes, .writes = writes, .stream = stream->number, .what = what,
		.clock = *clock,
	};
	gpu_access other;

	if (!gpu->check_order || fake_gpu_order_note(&gpu->order, &access, &other))
		return cudaSuccess;
	return fake_gpu_break_locked(gpu, "stream %d's %s %s %zu bytes at %p, stream %d's "
	                             "%s %s %zu bytes at %p, and no event puts one before the other",
	                             access.stream, what, writes ? "writes" : "reads", bytes, address,
	                             other.stream, other.what, other.writes ? "writes" : "reads",
	                             other.bytes, other.address);
}

void fake_gpu_host_knows_locked(fake_gpu_device *gpu, const gpu_clock *clock)
{
	fake_gpu_order_host_knows(&gpu->order, clock);
	gpu_clock common = gpu->order.host;
	for (const gpu_stream *stream = gpu->streams; stream != NULL; stream = stream->next) {
		for (const gpu_work *work = stream->first; work != NULL; work = work->next) {
			if (work->kind == GPU_LAUNCH)
				fake_gpu_order_meet(&common, &work->clock);
		}
	}
	fake_gpu_order_prune(&gpu->order, &common);
}

/* ---- the stream's thread ---- */

/* Half of the time none, so that streams get far ahead of each other. */
static void delay(gpu_stream *stream)
{
	const uint64_t longest_ns = 1000u * (uint64_t)stream->gpu->delay_us;
	const uint64_t drawn = dk_splitmix_next(&stream->random);

	if (longest_ns == 0 || drawn % 2 == 0)
		return;
	const uint64_t ns = drawn / 2 % longest_ns;
	const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u),
	                               .tv_nsec = (long)(ns % 1000000000u) };
	nanosleep(&time, NULL);
}

static void do_work(gpu_stream *stream, const gpu_work *work)
{
	const gpu_memory *memory = &stream->gpu->memory;
	const size_t half = work->bytes / 2;
	unsigned char *to = fake_gpu_memory_view(memory, work->to);
	const unsigned char *from = fake_gpu_memory_view(memory, work->from);

	delay(stream);
	if (work->kind == GPU_COPY) {
		memcpy(to, from, half);
		delay(stream);
		memcpy(to + half, from + half, work->bytes - half);
	} else if (work->kind == GPU_FILL) {
		memset(to, work->value, half);
		delay(stream);
		memset(to + half, work->value, work->bytes - half);
	} else {
		running = (gpu_running){ .stream = stream, .work = work };
		work->function(work->argument);
		running.stream = NULL;
	}
}

static void start_locked(gpu_stream *stream, const gpu_work *work)
{
	fake_gpu_device *gpu = stream->gpu;

	if (work->kind == GPU_WAIT) {
		while (!work->mark->reached && !gpu->broken)
			pthread_cond_wait(&gpu->changed, &gpu->lock);
		return;
	}
	if (work->kind == GPU_RECORD) {
		work->mark->reached = true;
		work->mark->reached_ns = ddp_now_ns();
		return;
	}
	if (work->kind == GPU_LAUNCH) {
		/* The function may tell the host of all before it. */
		gpu_clock earlier = work->clock;
		earlier.at[stream->number]--;
		fake_gpu_host_knows_locked(gpu, &earlier);
	}
	stream->working = true;
	pthread_mutex_unlock(&gpu->lock);
	do_work(stream, work);
	pthread_mutex_lock(&gpu->lock);
	stream->working = false;
}

static void *serve(void *argument)
{
	gpu_stream *stream = argument;
	fake_gpu_device *gpu = stream->gpu;

	prctl(PR_SET_TIMERSLACK, 1000); /* ns: delays are short */
	pthread_mutex_lock(&gpu->lock);
	for (;;) {
		gpu_work *work = stream->first;
		if (work == NULL && stream->closing)
			break;
		if (work == NULL) {
			pthread_cond_wait(&gpu->changed, &gpu->lock);
			continue;
		}
		if (!gpu->broken)
			start_locked(stream, work);
		stream->first = work->next;
		if (stream->first == NULL)
			stream->last = &stream->first;
		stream->done++;
		fake_gpu_mark_release_locked(work->mark);
		free(work);
		pthread_cond_broadcast(&gpu->changed);
	}
	pthread_mutex_unlock(&gpu->lock);
	return NULL;
}

/* ---- what the runtime calls ---- */

cudaError_t fake_gpu_stream_create(fake_gpu_device *gpu, gpu_stream **created)
{
	gpu_stream *stream = calloc(1, sizeof(*stream));

	if (stream == NULL)
		return fake_gpu_fail(cudaErrorMemoryAllocation, "out of memory for a stream");
	stream->gpu = gpu;
	stream->last = &stream->first;
	pthread_mutex_lock(&gpu->lock);
	stream->number = fake_gpu_order_add(&gpu->order);
	pthread_mutex_unlock(&gpu->lock);
	if (stream->number < 0) {
		free(stream);
		return fake_gpu_fail(cudaErrorMemoryAllocation, "the GPU has %d streams, no more", FAKE_GPU_STREAMS);
	}
	stream->random = gpu->seed + ((uint64_t)stream->number << 32);
	int error = ddp_thread_start(&stream->thread, serve, stream);
	pthread_mutex_lock(&gpu->lock);
	if (error != 0) {
		fake_gpu_order_remove(&gpu->order, stream->number);
	} else {
		stream->next = gpu->streams;
		gpu->streams = stream;
	}
	pthread_mutex_unlock(&gpu->lock);
	if (error != 0) {
		free(stream);
		return fake_gpu_fail(cudaErrorMemoryAllocation, "cannot start a thread for a stream: error %d", error);
	}
	*created = stream;
	return cudaSuccess;
}

void fake_gpu_stream_free(gpu_stream *stream)
{
	fake_gpu_device *gpu = stream->gpu;

	pthread_mutex_lock(&gpu->lock);
	stream->closing = true;
	pthread_cond_broadcast(&gpu->changed);
	pthread_mutex_unlock(&gpu->lock);
	pthread_join(stream->thread, NULL);
	pthread_mutex_lock(&gpu->lock);
	fake_gpu_host_knows_locked(gpu, &gpu->order.streams[stream->number]);
	fake_gpu_order_remove(&gpu->order, stream->number);
	gpu_stream **link = &gpu->streams;
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	pthread_mutex_unlock(&gpu->lock);
	free(stream);
}

cudaError_t fake_gpu_give_locked(gpu_stream *stream, const gpu_work *work)
{
	gpu_work *copy = malloc(sizeof(*copy));

	if (copy == NULL)
		return fake_gpu_fail(cudaErrorMemoryAllocation, "out of memory for a stream's work");
	*copy = *work;
	copy->next = NULL;
	*stream->last = copy;
	stream->last = &copy->next;
	stream->given++;
	pthread_cond_broadcast(&stream->gpu->changed);
	return cudaSuccess;
}

void fake_gpu_stream_wait_locked(gpu_stream *stream, uint64_t given)
{
	while (stream->done < given && (!stream->gpu->broken || stream->working))
		pthread_cond_wait(&stream->gpu->changed, &stream->gpu->lock);
}
