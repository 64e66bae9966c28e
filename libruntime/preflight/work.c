/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/work.h"

#include <stdlib.h>
#include <time.h>

#include "kernels.h"
#include "table.h"

enum {
	SIDE = 256,                /* of a matrix, for one thread: 33 million operations */
	SIDE_MOST = 2048,
	SIDE_GPU = 4096,
	TRIAD = 4 << 20,           /* elements of each of three arrays, more than most caches hold for a core */
	TRIAD_SLICE = 1 << 18,     /* elements of a slice, so that a slice is shorter than a time slice of the kernel */
	BYTES_GPU = 256 << 20,
	SIDE_SMALL = 128,
	BYTES_SMALL = 1 << 20,
	LEAST_SLICES = 3,
};

struct preflight_bench {
	float *a, *b, *c;          /* matrices */
	int side;
	float *x, *y, *z;          /* arrays */
	int64_t next;              /* where the next slice of the arrays begins */
	ddp_comm *world;           /* NULL: no GPU */
	struct dk_queue *queue;
	float *gpu;                /* two matrices, or two halves to copy */
	int64_t gpu_side, gpu_bytes;
	double sink;
};

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Also touches it, so that the memory is the node's that the rank runs on. */
static float *filled(int64_t count, float value)
{
	float *array = malloc((size_t)count * sizeof(*array));

	for (int64_t i = 0; array != NULL && i < count; i++)
		array[i] = value;
	return array;
}

static bool open_gpu(struct preflight_bench *bench, ddp_context *context, bool small)
{
	void *memory;

	bench->gpu_side = small ? SIDE_SMALL : SIDE_GPU;
	bench->gpu_bytes = small ? BYTES_SMALL : BYTES_GPU;
	if (ddp_kernels_open(context, DK_TABLE_VERSION, DK_TF32, NULL, &bench->queue) != DDP_OK ||
	    ddp_mem_alloc_on(ddp_world(context), DDP_MEMORY_DEVICE, (size_t)bench->gpu_bytes, &memory) != DDP_OK)
		return false;
	bench->world = ddp_world(context);
	bench->gpu = memory;
	return true;
}

struct preflight_bench *preflight_bench_open(ddp_context *context, int threads, bool gpu, bool small)
{
	struct preflight_bench *bench = calloc(1, sizeof(*bench));
	int64_t n;

	if (bench == NULL) {
		ddp_set_error("no memory for the measurements");
		return NULL;
	}
	bench->side = SIDE;
	/* The same time for each thread. */
	while (bench->side < SIDE_MOST &&
	       (int64_t)bench->side * bench->side * bench->side < (int64_t)threads * SIDE * SIDE * SIDE)
		bench->side += SIDE / 2;
	n = (int64_t)bench->side * bench->side;
	bench->a = filled(n, 1);
	bench->b = filled(n, 0.5f);
	bench->c = filled(n, 0);
	bench->x = filled(TRIAD, 1);
	bench->y = filled(TRIAD, 2);
	bench->z = filled(TRIAD, 3);
	if (bench->a == NULL || bench->b == NULL || bench->c == NULL || bench->x == NULL || bench->y == NULL ||
	    bench->z == NULL) {
		ddp_set_error("no memory for the measurements");
		preflight_bench_close(bench);
		return NULL;
	}
	if (gpu && !open_gpu(bench, context, small)) {
		preflight_bench_close(bench);
		return NULL;
	}
	return bench;
}

void preflight_bench_close(struct preflight_bench *bench)
{
	if (bench == NULL)
		return;
	if (bench->gpu != NULL)
		(void)ddp_mem_free(bench->world, bench->gpu);
	ddp_kernels_close(bench->queue);
	free(bench->a);
	free(bench->b);
	free(bench->c);
	free(bench->x);
	free(bench->y);
	free(bench->z);
	free(bench);
}

bool preflight_bench_has(const struct preflight_bench *bench, enum preflight_work work)
{
	return work < PREFLIGHT_GPU_PRODUCT || bench->queue != NULL;
}

static void multiply(int64_t side, const float *a, const float *b, float *c)
{
	const dk_gemm_args args = {
		.m = side, .n = side, .k = side, .a = a, .lda = side, .b = b, .ldb = side, .c = c, .ldc = side
	};

	dk_gemm(&args);
}

static void triad(void *arg, int64_t first, int64_t last)
{
	struct preflight_bench *bench = arg;
	float *restrict x = bench->x + bench->next;
	const float *restrict y = bench->y + bench->next, *restrict z = bench->z + bench->next;

	for (int64_t i = first; i < last; i++)
		x[i] = y[i] + 0.5f * z[i];
}

/* A function with a result waits for the queue's work. */
static void wait_for_queue(struct preflight_bench *bench)
{
	bench->sink += (double)dk_largest(bench->gpu, 1);
}

/* Does one slice, and returns its operations or bytes. */
static double slice(struct preflight_bench *bench, enum preflight_work work)
{
	int64_t side = work == PREFLIGHT_GPU_PRODUCT ? bench->gpu_side : bench->side;

	switch (work) {
	case PREFLIGHT_PRODUCT:
		multiply(side, bench->a, bench->b, bench->c);
		return 2.0 * (double)side * (double)side * (double)side;
	case PREFLIGHT_MEMORY:
		dk_parallel(TRIAD_SLICE, 1 << 12, triad, bench);
		bench->next = (bench->next + TRIAD_SLICE) % TRIAD;
		return 3.0 * TRIAD_SLICE * sizeof(float);
	case PREFLIGHT_GPU_PRODUCT:
		multiply(side, bench->gpu, bench->gpu, bench->gpu + side * side);
		wait_for_queue(bench);
		return 2.0 * (double)side * (double)side * (double)side;
	case PREFLIGHT_GPU_MEMORY:
		dk_copy(bench->gpu, bench->gpu + bench->gpu_bytes / 2 / (int64_t)sizeof(float), (size_t)bench->gpu_bytes / 2);
		wait_for_queue(bench);
		return (double)bench->gpu_bytes;
	case PREFLIGHT_WORKS:
		break;
	}
	return 0;
}

struct preflight_figure preflight_bench_run(struct preflight_bench *bench, enum preflight_work work, int ms)
{
	struct preflight_figure figure = { 0, 0, 0 };
	double begin, cpu, done = 0, last, end;
	dk_queue *before;

	if (!preflight_bench_has(bench, work))
		return figure;
	before = dk_use(work < PREFLIGHT_GPU_PRODUCT ? NULL : bench->queue);
	if (work >= PREFLIGHT_GPU_PRODUCT)
		dk_zero(bench->gpu, bench->gpu_bytes / (int64_t)sizeof(float));
	begin = last = now(CLOCK_MONOTONIC);
	end = begin + ms * 1e-3;
	cpu = now(CLOCK_THREAD_CPUTIME_ID);
	for (int i = 0; i < LEAST_SLICES || last < end; i++) {
		double amount = slice(bench, work), time = now(CLOCK_MONOTONIC);
		if (time > last && amount / (time - last) > figure.peak)
			figure.peak = amount / (time - last);
		done += amount;
		last = time;
	}
	dk_use(before);
	figure.rate = done / (last - begin);
	figure.share = (now(CLOCK_THREAD_CPUTIME_ID) - cpu) / (last - begin);
	return figure;
}
