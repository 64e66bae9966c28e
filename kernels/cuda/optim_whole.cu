/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers update whole tensors by these, with the same bits as on the host: the order of sums is
   that of kernels.h, and nothing is rounded once that the host rounds twice. */
#include "cuda/functions.cuh"
#include "cuda/optim.cuh"

enum { THREADS = 256 };

/* Blocks of so many threads, one for each of n. */
static dim3 blocks_of(int64_t n)
{
	return dim3((unsigned)ceil_div(n, THREADS));
}

/* ---- AdamW's direction ---- */

__global__ void direction_kernel(const float *param, float *grad, float *m, float *v, int64_t n,
                                 dk_update_consts c)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	const float g = times(grad[i], c.grad_scale);
	const float mi = plus(times(m[i], c.beta1), times(g, c.one_beta1));
	const float vi = plus(times(v[i], c.beta2), times(times(g, c.one_beta2), g));
	const float denominator = plus(__fdiv_rn(__fsqrt_rn(vi), c.root_correction2), c.epsilon);
	const float step = __fdiv_rn(times(mi, -c.minus_step_size), denominator);
	m[i] = mi;
	v[i] = vi;
	grad[i] = plus(step, times(param[i], c.coupled));
}

void dk_cuda_adamw_direction(dk_queue *queue, const float *param, float *grad, float *m, float *v,
                             int64_t n, const dk_update_args *args)
{
	dk_update_consts c = dk_update_consts_of(args);

	c.coupled = (float)args->weight_decay;
	if (n > 0)
		launch(own(queue), "adamw direction", direction_kernel, blocks_of(n), THREADS, 0, param, grad, m, v,
		       n, c);
}

/* ---- sums of two tensors ---- */

/* One thread's: what y is multiplied by. */
__global__ void ratio_kernel(float *factor, double b, dk_ratio r)
{
	const double count = (double)r.count;
	const double over = r.over != NULL ? fmax(r.over_least, sqrt(*r.over / count)) : 1;
	const double under = fmax(r.under_least, sqrt(*r.under / count));

	*factor = (float)(b * (over > 0 && under > 0 ? over / under : 1));
}

/* `factor` takes the place of b, unless it is NULL. */
__global__ void mix_kernel(float *x, const float *y, float a, float b, const float *factor, int64_t n)
{
	const int64_t i = grid_thread();

	if (i < n)
		x[i] = plus(times(x[i], a), times(y[i], factor != NULL ? *factor : b));
}

void dk_cuda_mix(dk_queue *queue, float *x, const float *y, float a, double b, const dk_ratio *ratio,
                 int64_t n)
{
	dk_cuda_queue *q = own(queue);
	float *factor = ratio != NULL ? dk_cuda_scratch(q, 1) : NULL;

	if (n == 0)
		return;
	if (factor != NULL)
		launch(q, "ratio", ratio_kernel, dim3(1), 1, 0, factor, b, *ratio);
	launch(q, "mix", mix_kernel, blocks_of(n), THREADS, 0, x, y, a, (float)b, factor, n);
}

__global__ void mix_squares_kernel(float *x, const float *y, float a, float b, int64_t n)
{
	const int64_t i = grid_thread();

	if (i < n)
		x[i] = plus(times(x[i], a), times(times(y[i], b), y[i]));
}

void dk_cuda_mix_squares(dk_queue *queue, float *x, const float *y, float a, float b, int64_t n)
{
	if (n > 0)
		launch(own(queue), "mix of squares", mix_squares_kernel, blocks_of(n), THREADS, 0, x, y, a, b, n);
}

/* ---- means of squares ---- */

/* A thread's column, of rows blockIdx.y DK_ROWS_AT_ONCE and on; where they do not overlap,
   those of all matrices lie side by side. */
__global__ void column_kernel(double *sums, const float *x, int64_t all, int64_t rows, int64_t columns)
{
	const int64_t at = grid_thread(), first = (int64_t)blockIdx.y * DK_ROWS_AT_ONCE;
	const int64_t end = first + DK_ROWS_AT_ONCE < rows ? first + DK_ROWS_AT_ONCE : rows;
	double sum = 0;

	if (at >= all)
		return;
	x += at / columns * rows * columns + at % columns;
	for (int64_t i = first; i < end; i++) {
		const double value = x[i * columns];
		sum += value * value; /* the product is exact */
	}
	sums[(int64_t)blockIdx.y * all + at] = sum;
}

/* Adds up so many parts of each column. */
__global__ void parts_kernel(double *sums, const double *parts, int64_t all, int64_t count)
{
	const int64_t at = grid_thread();
	double sum = 0;

	if (at >= all)
		return;
	for (int64_t i = 0; i < count; i++)
		sum += parts[i * all + at];
	sums[at] = sum;
}

/* Sums columns first .. first + count - 1 of one matrix, or all columns. */
static void sum_columns(dk_cuda_queue *q, double *sums, const float *x, int64_t count, int64_t rows,
                        int64_t columns)
{
	const int64_t parts = ceil_div(rows, DK_ROWS_AT_ONCE);
	const dim3 blocks((unsigned)ceil_div(count, THREADS), (unsigned)parts);

	if (parts == 1) {
		launch(q, "squares of columns", column_kernel, blocks, THREADS, 0, sums, x, count, rows, columns);
		return;
	}
	double *made = reinterpret_cast<double *>(dk_cuda_scratch(q, 2 * parts * count));
	if (made == NULL)
		return;
	launch(q, "squares of columns", column_kernel, blocks, THREADS, 0, made, x, count, rows, columns);
	launch(q, "squares of columns", parts_kernel, blocks_of(count), THREADS, 0, sums, made, count, parts);
}

void dk_cuda_column_squares(dk_queue *queue, double *sums, const float *x, int64_t matrices, int64_t rows,
                            int64_t columns)
{
	dk_cuda_queue *q = own(queue);
	const int64_t parts = ceil_div(rows, DK_ROWS_AT_ONCE);
	const int64_t fit = parts > 1 ? q->scratch_size / (2 * parts) : matrices * columns;

	if (matrices * columns <= fit) {
		sum_columns(q, sums, x, matrices * columns, rows, columns);
		return;
	}
	for (int64_t i = 0; i < matrices; i++)
		for (int64_t j = 0; j < columns; j += fit)
			sum_columns(q, sums + i * columns + j, x + i * rows * columns + j,
			            columns - j < fit ? columns - j : fit, rows, columns);
}

/* A block's matrix. */
__global__ void move_kernel(float *means, double *mean, const double *sums, int64_t n, double each,
                            double weight)
{
	double *lanes = static_cast<double *>(launch_memory());
	const int lane = (int)threadIdx.x;
	double sum = 0;

	means += blockIdx.x * n;
	sums += blockIdx.x * n;
	for (int64_t i = lane; i < n; i += THREADS) {
		const float moved =
			(float)__dadd_rn(__dmul_rn(1 - weight, means[i]), __dmul_rn(weight, sums[i] / each));
		means[i] = moved;
		sum += moved;
	}
	sum = sum_of_block(lanes, THREADS, sum);
	if (lane == 0 && mean != NULL)
		mean[blockIdx.x] = sum / (double)n;
}

void dk_cuda_move_means(dk_queue *queue, float *means, double *mean, const double *sums, int64_t matrices,
                        int64_t n, int64_t each, double weight)
{
	launch(own(queue), "means of squares", move_kernel, dim3((unsigned)matrices), THREADS,
	       THREADS * sizeof(double), means, mean, sums, n, (double)each, weight);
}

__global__ void roots_kernel(float *x, int64_t n, dk_estimate e)
{
	const int64_t i = grid_thread();

	if (i >= n)
		return;
	const int64_t row = i / e.width, matrix = row / e.height;
	const float factor = e.rows != NULL ? (float)(e.rows[row] / fmax(e.mean[matrix], e.least_mean)) : 1;
	const float square = times(e.columns[matrix * e.width + (i - row * e.width)], factor);

	x[i] = __fdiv_rn(x[i], __fsqrt_rn(square > e.least ? square : e.least));
}

void dk_cuda_divide_by_roots(dk_queue *queue, float *x, const dk_estimate *estimate)
{
	const int64_t n = estimate->matrices * estimate->height * estimate->width;

	if (n > 0)
		launch(own(queue), "division by roots", roots_kernel, blocks_of(n), THREADS, 0, x, n, *estimate);
}
