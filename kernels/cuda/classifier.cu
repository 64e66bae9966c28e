/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a large vocabulary. `work` holds the logits, whose rows begin
   on 16 bytes, so that matrix products are fast; forward turns them into their gradients
   at once, while a row is in the cache, and backward only multiplies. */
#include "cuda/functions.cuh"

enum {
	THREADS = 256, WARPS = THREADS / WARP, ROW_BYTES = 16,
	/* A long row has a block of so many: an SM holds two such rows, and the L2 cache those of
	   all SMs, so that the second pass over a row finds it there. */
	LONG_ROW = 4096, LONG_THREADS = 1024, LONG_BLOCKS = 2
};

/* Elements from one row of logits to the next: within dk_classifier_work(). */
template <typename T> static int64_t logits_stride(int64_t vocab)
{
	const int64_t unit = ROW_BYTES / sizeof(T);

	return ceil_div(vocab, unit) * unit;
}

/* e^(x - top), of infinities, too, where x is the top. */
__device__ inline float below(float x, float top)
{
	return x == top ? 1 : expf(x - top);
}

/* A row's loss; its logits become the loss's gradient. N elements at a time, of which the last
   may lie beyond the vocabulary, but not beyond the row. */
template <typename T, int N>
__global__ void __launch_bounds__(LONG_THREADS, LONG_BLOCKS)
cross_entropy_kernel(float *losses, T *logits, const int32_t *targets, int vocab, int64_t stride)
{
	float *shared = static_cast<float *>(launch_memory()); /* [warps] */
	const int64_t row = blockIdx.x;
	const int target = targets[row], step = (int)blockDim.x * N;
	float top = -INFINITY, sum = 0;

	logits += row * stride;
	for (int first = (int)threadIdx.x * N; first < vocab; first += step) {
		const pack<T, N> p = *reinterpret_cast<const pack<T, N> *>(logits + first);
		float highest = top;
		UNROLL
		for (int k = 0; k < N; k++)
			highest = first + k < vocab ? fmaxf(highest, wide(p.at[k])) : highest;
		if (highest > top)
			sum *= expf(top - highest);
		top = highest;
		/* A NaN is in the sum, whatever the maximum makes of it. */
		UNROLL
		for (int k = 0; k < N; k++)
			sum += first + k < vocab ? below(wide(p.at[k]), top) : 0;
	}
	const float highest = block_max(top, shared);
	const float total = block_sum(sum == 0 ? 0 : sum * expf(top - highest), shared);
	if (threadIdx.x == 0)
		losses[row] = logf(total) + highest - wide(logits[target]);
	__syncthreads(); /* the target's logit was read */
	const float share = 1 / total;
	for (int first = (int)threadIdx.x * N; first < vocab; first += step) {
		pack<T, N> p = *reinterpret_cast<const pack<T, N> *>(logits + first);
		UNROLL
		for (int k = 0; k < N; k++)
			put(&p.at[k], expf(wide(p.at[k]) - highest) * share - (first + k == target ? 1 : 0));
		*reinterpret_cast<pack<T, N> *>(logits + first) = p;
	}
}

/* The losses' sum, in an order that hangs on their number alone; or added to *result. */
__global__ void loss_total(const float *losses, int64_t rows, bool adds, double *result)
{
	double *shared = static_cast<double *>(launch_memory()); /* [WARPS] */
	double sum = 0;

	for (int64_t i = threadIdx.x; i < rows; i += THREADS)
		sum += losses[i];
	sum = warp_sum(sum);
	if (threadIdx.x % WARP == 0)
		shared[threadIdx.x / WARP] = sum;
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	sum = 0;
	for (int w = 0; w < WARPS; w++)
		sum += shared[w];
	*result = adds ? *result + sum : sum;
}

/* The rows' losses, added to *loss, or, if that is NULL, the queue's result. */
template <typename T>
static void entropy(dk_cuda_queue *q, T *logits, const int32_t *targets, int64_t rows, int64_t classes,
                    int64_t stride, double *loss)
{
	enum { N = ROW_BYTES / sizeof(T) };
	const bool aligned = stride % N == 0 && reinterpret_cast<uintptr_t>(logits) % ROW_BYTES == 0;
	const int threads = classes < LONG_ROW ? THREADS : LONG_THREADS;
	float *losses = dk_cuda_scratch(q, rows);

	if (losses == NULL)
		return;
	launch(q, "cross-entropy", aligned ? cross_entropy_kernel<T, N> : cross_entropy_kernel<T, 1>,
	       dim3((unsigned)rows), threads, (size_t)(threads / WARP) * sizeof(float), losses, logits, targets,
	       (int)classes, stride);
	launch(q, "loss", loss_total, dim3(1), THREADS, WARPS * sizeof(double), losses, rows, loss != NULL,
	       loss != NULL ? loss : q->result);
}

double dk_cuda_cross_entropy(dk_queue *queue, float *logits, const int32_t *targets, int64_t rows, int64_t classes)
{
	entropy(dk_cuda_of_images(queue), logits, targets, rows, classes, classes, NULL);
	return dk_cuda_fetch(own(queue));
}

void dk_cuda_cross_entropy_loss(dk_queue *queue, double *loss, float *logits, const int32_t *targets, int64_t rows,
                                int64_t classes)
{
	entropy(dk_cuda_of_images(queue), logits, targets, rows, classes, classes, loss);
}

template <typename T>
static void forward(T *logits, dk_cuda_queue *q, void *work, const void *in, const void *weight,
                    const int32_t *targets, int64_t rows, int64_t width, int64_t vocab, double *loss)
{
	const int64_t stride = logits_stride<T>(vocab);

	logits = static_cast<T *>(work);
	const dk_product_args p = {false, true, rows, vocab, width, in, width, weight, width, 0, logits,
		logits, stride, NULL, false};
	dk_cuda_product(q, &p);
	entropy(q, logits, targets, rows, vocab, stride, loss);
}

double dk_cuda_classifier_forward(dk_queue *queue, float *work, const float *in,
                                  const float *weight, const int32_t *targets, int64_t rows,
                                  int64_t width, int64_t vocab)
{
	double *const fetched = NULL;

	FOR_TYPE(queue, forward, own(queue), work, in, weight, targets, rows, width, vocab, fetched);
	return dk_cuda_fetch(own(queue));
}

void dk_cuda_classifier_loss(dk_queue *queue, double *loss, float *work, const float *in,
                             const float *weight, const int32_t *targets, int64_t rows,
                             int64_t width, int64_t vocab)
{
	FOR_TYPE(queue, forward, own(queue), work, in, weight, targets, rows, width, vocab, loss);
}

void dk_cuda_classifier_backward(dk_queue *queue, float *din, float *dweight, float *work,
                                 const float *in, const float *weight, const int32_t *,
                                 int64_t rows, int64_t width, int64_t vocab)
{
	const int64_t stride = dk_cuda_narrow(own(queue)) ? logits_stride<bf16>(vocab) : logits_stride<float>(vocab);
	const dk_product_args to_input = {false, false, rows, width, vocab, work, stride, weight, width, 0,
		din, din, width, NULL, false};
	const dk_product_args to_weight = {true, false, vocab, width, rows, work, stride, in, width, 1,
		dweight, dweight, width, NULL, queue->type == DK_MIXED};

	dk_cuda_product(own(queue), &to_input);
	dk_cuda_product(own(queue), &to_weight);
}
