/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of kernels.h go to the host's, or to those of the queue in use. */
#include "kernels.h"

#include "cpu/cpu.h"
#include "table.h"

static _Thread_local dk_queue *in_use;

dk_queue *dk_use(dk_queue *queue)
{
	dk_queue *before = in_use;

	if (before == queue)
		return before;
	if (before != NULL && before->table->leave != NULL)
		before->table->leave(before);
	in_use = queue;
	if (queue != NULL && queue->table->enter != NULL)
		queue->table->enter(queue);
	return before;
}

dk_queue *dk_in_use(void)
{
	return in_use;
}

/* Calls the function of this name of the queue that the calling thread uses, or of the host. */
#define CALL(name, ...) \
	(in_use == NULL ? dk_cpu_##name(__VA_ARGS__) : in_use->table->name(in_use, __VA_ARGS__))

/* The function of kernels.h of this name, which only calls. */
#define FORWARD(call, type, name, parameters, ...) \
	type dk_##name parameters \
	{ \
		return call(name, __VA_ARGS__); \
	}

FORWARD(CALL, void, copy, (void *to, const void *from, size_t bytes), to, from, bytes)
FORWARD(CALL, void, zero, (float *x, int64_t n), x, n)
FORWARD(CALL, void, update, (float *param, float *grad, float *first, float *second, int64_t n,
	const dk_update_args *args), param, grad, first, second, n, args)

/* ---- of whole tensors ---- */

#define CALL_WHOLE(name, ...) \
	(in_use == NULL || in_use->table->whole == NULL ? dk_cpu_##name(__VA_ARGS__) \
	                                                : in_use->table->whole->name(in_use, __VA_ARGS__))

FORWARD(CALL_WHOLE, void, mix, (float *x, const float *y, float a, double b, const dk_ratio *ratio, int64_t n),
	x, y, a, b, ratio, n)
FORWARD(CALL_WHOLE, void, adamw_direction, (const float *param, float *grad, float *m, float *v, int64_t n,
	const dk_update_args *args), param, grad, m, v, n, args)
FORWARD(CALL_WHOLE, void, sum_squares_at, (double *sum, const float *x, int64_t n), sum, x, n)
FORWARD(CALL_WHOLE, void, mix_squares, (float *x, const float *y, float a, float b, int64_t n), x, y, a, b, n)
FORWARD(CALL_WHOLE, void, column_squares, (double *sums, const float *x, int64_t matrices, int64_t rows,
	int64_t columns), sums, x, matrices, rows, columns)
FORWARD(CALL_WHOLE, void, move_means, (float *means, double *mean, const double *sums, int64_t matrices,
	int64_t n, int64_t each, double weight), means, mean, sums, matrices, n, each, weight)
FORWARD(CALL_WHOLE, void, divide_by_roots, (float *x, const dk_estimate *estimate), x, estimate)

/* ---- factors of low rank ---- */

#define CALL_FACTORS(name, ...) \
	(in_use == NULL || in_use->table->factors == NULL ? dk_cpu_##name(__VA_ARGS__) \
	                                                  : in_use->table->factors->name(in_use, __VA_ARGS__))

FORWARD(CALL_FACTORS, void, random_rows, (float *values, int64_t rows, int64_t columns, uint64_t stream),
	values, rows, columns, stream)
FORWARD(CALL_FACTORS, void, orthonormalize, (float *factor, int64_t rank, int64_t length, bool refill,
	uint64_t stream), factor, rank, length, refill, stream)
FORWARD(CALL_FACTORS, void, restore, (float *values, float *rest, float share, const dk_factors *factors),
	values, rest, share, factors)

/* ---- norms, copies, products ---- */

FORWARD(CALL, float, largest, (const float *x, int64_t n), x, n)
FORWARD(CALL, double, sum_squares, (const float *x, int64_t n), x, n)
FORWARD(CALL, void, largest_at, (float *largest, const dk_array *arrays, int64_t count), largest, arrays, count)
FORWARD(CALL, void, squares_at, (double *sums, const dk_array *arrays, int64_t count, int64_t piece), sums,
	arrays, count, piece)
FORWARD(CALL, void, checksum_at, (uint64_t *sums, const float *x, int64_t n, int64_t piece), sums, x, n, piece)
FORWARD(CALL, void, scale, (float *x, int64_t n, float factor), x, n, factor)
FORWARD(CALL, void, to_bf16, (uint16_t *out, const float *in, int64_t n), out, in, n)
FORWARD(CALL, void, from_bf16, (float *out, const uint16_t *in, int64_t n), out, in, n)
FORWARD(CALL, void, to_f16, (uint16_t *out, const float *in, int64_t n, float factor), out, in, n, factor)
FORWARD(CALL, void, from_f16, (float *out, const uint16_t *in, int64_t n, float factor), out, in, n, factor)
FORWARD(CALL, void, gemm, (const dk_gemm_args *args), args)
FORWARD(CALL, void, linear_forward, (float *out, const float *in, const float *weight, const float *bias,
	const float *residual, int64_t rows, int64_t inputs, int64_t outputs), out, in, weight, bias, residual,
	rows, inputs, outputs)
FORWARD(CALL, void, linear_backward_params, (float *dweight, float *dbias, const float *dout, const float *in,
	int64_t rows, int64_t inputs, int64_t outputs), dweight, dbias, dout, in, rows, inputs, outputs)
FORWARD(CALL, void, linear_backward_input, (float *din, const float *dout, const float *weight, int64_t rows,
	int64_t inputs, int64_t outputs), din, dout, weight, rows, inputs, outputs)

void dk_linear_gelu_forward(float *out, float *before, const float *in, const float *weight,
		const float *bias, int64_t rows, int64_t inputs, int64_t outputs)
{
	if (in_use == NULL) {
		dk_cpu_linear_gelu_forward(out, before, in, weight, bias, rows, inputs, outputs);
		return;
	}
	if (in_use->table->linear_gelu_forward != NULL &&
	    in_use->table->linear_gelu_forward(in_use, out, before, in, weight, bias, rows, inputs, outputs))
		return;
	dk_linear_forward(before, in, weight, bias, NULL, rows, inputs, outputs);
	dk_gelu_forward(out, before, rows * outputs);
}

void dk_linear_gelu_backward(float *dbefore, const float *dout, const float *weight, const float *before,
		int64_t rows, int64_t inputs, int64_t outputs)
{
	if (in_use == NULL) {
		dk_cpu_linear_gelu_backward(dbefore, dout, weight, before, rows, inputs, outputs);
		return;
	}
	if (in_use->table->linear_gelu_backward != NULL &&
	    in_use->table->linear_gelu_backward(in_use, dbefore, dout, weight, before, rows, inputs, outputs))
		return;
	dk_linear_backward_input(dbefore, dout, weight, rows, inputs, outputs);
	dk_gelu_backward(dbefore, before, rows * inputs);
}

FORWARD(CALL, void, embedding_forward, (float *out, const int32_t *tokens, const float *wte, const float *wpe,
	int64_t batch, int64_t length, int64_t width), out, tokens, wte, wpe, batch, length, width)
FORWARD(CALL, void, embedding_backward, (float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
	int64_t batch, int64_t length, int64_t width), dwte, dwpe, dout, tokens, batch, length, width)
FORWARD(CALL, void, add_rows, (float *out, const int32_t *rows, const float *values, int64_t count,
	int64_t width), out, rows, values, count, width)
FORWARD(CALL, void, layernorm_forward, (float *out, float *mean, float *rstd, const float *in,
	const float *gain, const float *bias, int64_t rows, int64_t width), out, mean, rstd, in, gain, bias,
	rows, width)
FORWARD(CALL, void, layernorm_backward, (float *din, float *dgain, float *dbias, const float *dout,
	const float *in, const float *mean, const float *rstd, const float *gain, int64_t rows, int64_t width),
	din, dgain, dbias, dout, in, mean, rstd, gain, rows, width)
FORWARD(CALL, void, gelu_forward, (float *out, const float *in, int64_t n), out, in, n)
FORWARD(CALL, void, gelu_backward, (float *grad, const float *in, int64_t n), grad, in, n)
FORWARD(CALL, void, add, (float *out, const float *a, const float *b, int64_t n), out, a, b, n)
FORWARD(CALL, void, dropout, (float *out, const float *in, int64_t n, double probability,
	const dk_random *random, uint64_t ahead), out, in, n, probability, random, ahead)
FORWARD(CALL, void, attention_forward, (float *out, float *lse, const float *qkv, int64_t batch, int64_t length,
	int64_t heads, int64_t width), out, lse, qkv, batch, length, heads, width)
FORWARD(CALL, void, attention_backward, (float *dqkv, const float *dout, const float *qkv, const float *out,
	const float *lse, int64_t batch, int64_t length, int64_t heads, int64_t width), dqkv, dout, qkv, out,
	lse, batch, length, heads, width)
FORWARD(CALL, double, classifier_forward, (float *work, const float *in, const float *weight,
	const int32_t *targets, int64_t rows, int64_t width, int64_t vocab), work, in, weight, targets, rows,
	width, vocab)
FORWARD(CALL, void, classifier_loss, (double *loss, float *work, const float *in, const float *weight,
	const int32_t *targets, int64_t rows, int64_t width, int64_t vocab), loss, work, in, weight, targets,
	rows, width, vocab)
FORWARD(CALL, void, classifier_backward, (float *din, float *dweight, float *work, const float *in,
	const float *weight, const int32_t *targets, int64_t rows, int64_t width, int64_t vocab), din, dweight,
	work, in, weight, targets, rows, width, vocab)

/* ---- images ---- */

#define CALL_IMAGES(name, ...) \
	(in_use == NULL || in_use->table->images == NULL ? dk_cpu_##name(__VA_ARGS__) \
	                                                 : in_use->table->images->name(in_use, __VA_ARGS__))

size_t dk_convolution_work(const dk_window *window, int64_t outputs)
{
	const dk_image_table *images = in_use != NULL ? in_use->table->images : NULL;

	return images != NULL && images->needs_no_work ? 0 : dk_cpu_convolution_work(window, outputs);
}

FORWARD(CALL_IMAGES, void, convolution_forward, (float *out, float *work, const float *in, const float *weight,
	const float *bias, const dk_window *window, int64_t outputs), out, work, in, weight, bias, window,
	outputs)
FORWARD(CALL_IMAGES, void, convolution_backward_params, (float *dweight, float *dbias, float *work,
	const float *dout, const float *in, const dk_window *window, int64_t outputs), dweight, dbias, work,
	dout, in, window, outputs)
FORWARD(CALL_IMAGES, void, convolution_backward_input, (float *din, float *work, const float *dout,
	const float *weight, const dk_window *window, int64_t outputs), din, work, dout, weight, window, outputs)
FORWARD(CALL_IMAGES, void, max_pool_forward, (float *out, int32_t *which, const float *in,
	const dk_window *window), out, which, in, window)
FORWARD(CALL_IMAGES, void, max_pool_backward, (float *din, const float *dout, const int32_t *which,
	const dk_window *window), din, dout, which, window)
FORWARD(CALL_IMAGES, void, average_pool_forward, (float *out, const float *in, const dk_window *window), out,
	in, window)
FORWARD(CALL_IMAGES, void, average_pool_backward, (float *din, const float *dout, const dk_window *window), din,
	dout, window)
FORWARD(CALL_IMAGES, void, batch_norm_moments, (double *moments, float *work, const float *in, int64_t rows,
	int64_t channels), moments, work, in, rows, channels)
FORWARD(CALL_IMAGES, void, batch_norm_statistics, (float *mean, float *rstd, float *running_mean,
	float *running_variance, double momentum, const double *moments, int64_t all_rows, int64_t channels),
	mean, rstd, running_mean, running_variance, momentum, moments, all_rows, channels)
FORWARD(CALL_IMAGES, void, batch_norm_apply, (float *out, float *work, const float *in, const float *mean,
	const float *rstd, const float *gain, const float *bias, int64_t rows, int64_t channels), out, work, in,
	mean, rstd, gain, bias, rows, channels)
FORWARD(CALL_IMAGES, void, batch_norm_sums, (double *sums, float *dgain, float *dbias, float *work,
	const float *dout, const float *in, const float *mean, const float *rstd, int64_t rows,
	int64_t channels), sums, dgain, dbias, work, dout, in, mean, rstd, rows, channels)
FORWARD(CALL_IMAGES, void, batch_norm_input, (float *din, float *work, const float *dout, const float *in,
	const float *mean, const float *rstd, const float *gain, const double *sums, int64_t all_rows,
	int64_t rows, int64_t channels), din, work, dout, in, mean, rstd, gain, sums, all_rows, rows, channels)
FORWARD(CALL_IMAGES, void, batch_norm_eval, (float *out, const float *in, const float *gain, const float *bias,
	const float *running_mean, const float *running_variance, int64_t rows, int64_t channels), out, in,
	gain, bias, running_mean, running_variance, rows, channels)
FORWARD(CALL_IMAGES, void, relu_forward, (float *out, const float *in, int64_t n), out, in, n)
FORWARD(CALL_IMAGES, void, relu_backward, (float *grad, const float *out, int64_t n), grad, out, n)
FORWARD(CALL_IMAGES, double, cross_entropy, (float *logits, const int32_t *targets, int64_t rows,
	int64_t classes), logits, targets, rows, classes)
FORWARD(CALL_IMAGES, void, cross_entropy_loss, (double *loss, float *logits, const int32_t *targets,
	int64_t rows, int64_t classes), loss, logits, targets, rows, classes)

const char *dk_failure(void)
{
	return in_use == NULL ? dk_cpu_failure() : in_use->table->failure(in_use);
}

bool dk_graph_begin(void)
{
	return in_use != NULL && in_use->table->graph_begin != NULL && in_use->table->graph_begin(in_use);
}

dk_graph *dk_graph_end(const char **why)
{
	dk_graph *graph = in_use->table->graph_end(in_use, why);

	if (graph != NULL)
		graph->queue = in_use;
	return graph;
}

void dk_graph_launch(const dk_graph *graph)
{
	graph->queue->table->graph_launch(graph->queue, graph);
}

void dk_graph_free(dk_graph *graph)
{
	if (graph != NULL)
		graph->queue->table->graph_free(graph->queue, graph);
}

/* ---- normalisation without other processes ---- */

void dk_batch_norm_forward(float *out, float *mean, float *rstd, float *running_mean,
                           float *running_variance, double momentum, float *work,
                           const float *in, const float *gain, const float *bias,
                           int64_t rows, int64_t channels)
{
	double *moments = dk_cpu_batch_norm_own_sums(work, rows, channels);

	dk_batch_norm_moments(moments, work, in, rows, channels);
	dk_batch_norm_statistics(mean, rstd, running_mean, running_variance, momentum, moments, rows,
	                         channels);
	dk_batch_norm_apply(out, work, in, mean, rstd, gain, bias, rows, channels);
}

void dk_batch_norm_backward(float *din, float *dgain, float *dbias, float *work,
                            const float *dout, const float *in, const float *mean,
                            const float *rstd, const float *gain, int64_t rows,
                            int64_t channels)
{
	double *sums = dk_cpu_batch_norm_own_sums(work, rows, channels);

	dk_batch_norm_sums(sums, dgain, dbias, work, dout, in, mean, rstd, rows, channels);
	dk_batch_norm_input(din, work, dout, in, mean, rstd, gain, sums, rows, rows, channels);
}

void dk_batch_norm_relu_forward(float *out, float *mean, float *rstd, float *running_mean,
                                float *running_variance, double momentum, float *work,
                                const float *in, const float *gain, const float *bias,
                                int64_t rows, int64_t channels)
{
	if (in_use == NULL) {
		dk_cpu_batch_norm_relu_forward(out, mean, rstd, running_mean, running_variance, momentum, work, in, gain,
		                               bias, rows, channels);
		return;
	}
	dk_batch_norm_forward(out, mean, rstd, running_mean, running_variance, momentum, work, in, gain, bias, rows,
	                      channels);
	dk_relu_forward(out, out, rows * channels);
}

void dk_batch_norm_relu_backward(float *din, float *dgain, float *dbias, float *work, float *dout,
                                 const float *out, const float *in, const float *mean,
                                 const float *rstd, const float *gain, const float *bias,
                                 int64_t rows, int64_t channels)
{
	if (in_use == NULL) {
		dk_cpu_batch_norm_relu_backward(din, dgain, dbias, work, dout, in, mean, rstd, gain, bias, rows, channels);
		return;
	}
	dk_relu_backward(dout, out, rows * channels);
	dk_batch_norm_backward(din, dgain, dbias, work, dout, in, mean, rstd, gain, rows, channels);
}
