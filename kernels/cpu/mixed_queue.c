/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of type DK_MIXED: which functions it has. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/mixed.h"

static void close_queue(dk_queue *queue)
{
	dk_mixed *q = dk_mixed_of(queue);

	free(q->memory[0]);
	free(q->memory[1]);
	free(q);
}

/* ON_HOST() makes a function that leaves the queue alone, and does on f32 what the host does. */
#define ON_HOST(type, name, parameters, ...) \
	static type name parameters \
	{ \
		(void)queue; \
		return dk_cpu_##name(__VA_ARGS__); \
	}

ON_HOST(void, copy, (dk_queue *queue, void *to, const void *from, size_t bytes), to, from, bytes)

static void zero(dk_queue *queue, float *x, int64_t n)
{
	(void)queue;
	if (n > 0)
		memset(x, 0, (size_t)n * sizeof(uint16_t));
}

/* Arrays that are f32 with this type, too, are updated as on the host. */
ON_HOST(void, update, (dk_queue *queue, float *param, float *grad, float *first, float *second, int64_t n,
	const dk_update_args *args), param, grad, first, second, n, args)
ON_HOST(float, largest, (dk_queue *queue, const float *x, int64_t n), x, n)
ON_HOST(double, sum_squares, (dk_queue *queue, const float *x, int64_t n), x, n)
ON_HOST(void, largest_at, (dk_queue *queue, float *largest, const dk_array *arrays, int64_t count),
	largest, arrays, count)
ON_HOST(void, squares_at, (dk_queue *queue, double *sums, const dk_array *arrays, int64_t count, int64_t piece),
	sums, arrays, count, piece)
ON_HOST(void, checksum_at, (dk_queue *queue, uint64_t *sums, const float *x, int64_t n, int64_t piece),
	sums, x, n, piece)

static void classifier_loss(dk_queue *queue, double *loss, float *work, const float *in,
                            const float *weight, const int32_t *targets, int64_t rows, int64_t width,
                            int64_t vocab)
{
	*loss += dk_mixed_classifier_forward(queue, work, in, weight, targets, rows, width, vocab);
}

ON_HOST(void, scale, (dk_queue *queue, float *x, int64_t n, float factor), x, n, factor)
ON_HOST(void, to_bf16, (dk_queue *queue, uint16_t *out, const float *in, int64_t n), out, in, n)
ON_HOST(void, from_bf16, (dk_queue *queue, float *out, const uint16_t *in, int64_t n), out, in, n)
ON_HOST(void, to_f16, (dk_queue *queue, uint16_t *out, const float *in, int64_t n, float factor),
	out, in, n, factor)
ON_HOST(void, from_f16, (dk_queue *queue, float *out, const uint16_t *in, int64_t n, float factor),
	out, in, n, factor)
ON_HOST(void, add_rows, (dk_queue *queue, float *out, const int32_t *rows, const float *values, int64_t count,
	int64_t width), out, rows, values, count, width)

static const char *failure(dk_queue *queue)
{
	return atomic_load(&dk_mixed_of(queue)->failure);
}

static const dk_table table = {
	.version = DK_TABLE_VERSION, .bytes = sizeof(dk_table), .close = close_queue,
	.copy = copy, .zero = zero, .update = update, .largest = largest,
	.largest_at = largest_at, .sum_squares = sum_squares, .squares_at = squares_at,
	.checksum_at = checksum_at, .scale = scale, .to_bf16 = to_bf16, .from_bf16 = from_bf16,
	.to_f16 = to_f16, .from_f16 = from_f16,
	.gemm = dk_mixed_gemm,
	.linear_forward = dk_mixed_linear_forward,
	.linear_backward_params = dk_mixed_linear_backward_params,
	.linear_backward_input = dk_mixed_linear_backward_input,
	.embedding_forward = dk_mixed_embedding_forward,
	.embedding_backward = dk_mixed_embedding_backward,
	.add_rows = add_rows,
	.layernorm_forward = dk_mixed_layernorm_forward,
	.layernorm_backward = dk_mixed_layernorm_backward,
	.gelu_forward = dk_mixed_gelu_forward,
	.gelu_backward = dk_mixed_gelu_backward,
	.add = dk_mixed_add,
	.dropout = dk_mixed_dropout,
	.attention_forward = dk_mixed_attention_forward,
	.attention_backward = dk_mixed_attention_backward,
	.classifier_forward = dk_mixed_classifier_forward,
	.classifier_backward = dk_mixed_classifier_backward,
	.classifier_loss = classifier_loss,
	.failure = failure,
};

const dk_table *dk_mixed_table(void)
{
	return &table;
}

dk_queue *dk_open_mixed(void)
{
	dk_mixed *q = calloc(1, sizeof(*q));

	if (q == NULL)
		return NULL;
	q->base = (dk_queue){.table = &table, .type = DK_MIXED};
	q->set = dk_bf16();
	return &q->base;
}

void dk_close(dk_queue *queue)
{
	if (queue != NULL)
		queue->table->close(queue);
}
