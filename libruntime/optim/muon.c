/* SPDX-License-Identifier: Apache-2.0 */
/* Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): a
   matrix moves by its momentum made orthogonal, by Newton-Schulz iterations with a
   polynomial of degree five. The rest is updated by AdamW. Products of matrices do not have
   the same bits on unlike processors, and are dear, so one rank updates a matrix for all. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "optim/rule.h"

enum { MOMENTUM, M, V };

/* The polynomial that Jordan et al. tuned for a large slope at zero. */
static const float A = 3.4445f, B = -4.7750f, C = 2.0315f;
static const double LEAST_NORM = 1e-7;

static bool is_orthogonal(const ddp_slot *slot)
{
	return slot->ndim == 2 && slot->sparse_rows == 0 && !slot->group.adamw;
}

static int shape(const ddp_model_options *options, int i, const ddp_slot *slot, int64_t *dims)
{
	(void)options;
	memcpy(dims, slot->shape, (size_t)slot->ndim * sizeof(*dims));
	return (i == MOMENTUM) == is_orthogonal(slot) ? slot->ndim : -1;
}

static int64_t shorter(const ddp_slot *slot)
{
	return slot->shape[0] < slot->shape[1] ? slot->shape[0] : slot->shape[1];
}

static int64_t work(const ddp_slot *slot)
{
	return is_orthogonal(slot) ? DDP_ALIGN_ELEMENTS + slot->count + 2 * shorter(slot) * shorter(slot) : 0;
}

static double cost(const ddp_slot *slot)
{
	return is_orthogonal(slot) ? (double)slot->count * (double)shorter(slot) : 0;
}

/* square = x x^T, or x^T x if x has more rows than columns. */
static void multiply_by_itself(float *square, const float *x, int64_t rows, int64_t columns)
{
	const bool tall = rows > columns;
	const int64_t side = tall ? columns : rows;

	dk_gemm(&(dk_gemm_args){
		.transpose_a = tall, .transpose_b = !tall, .m = side, .n = side, .k = tall ? rows : columns,
		.a = x, .lda = columns, .b = x, .ldb = columns, .c = square, .ldc = side,
	});
}

/* x moves nearer to the orthogonal matrix of its directions: A x + (B s + C s s) x, s being
   its square. All but x is work. */
static void iterate(float *x, float *before, float *square, float *factor, int64_t rows, int64_t columns)
{
	const bool tall = rows > columns;
	const int64_t side = tall ? columns : rows;

	multiply_by_itself(square, x, rows, columns);
	dk_copy(factor, square, (size_t)(side * side) * sizeof(float));
	dk_gemm(&(dk_gemm_args){
		.m = side, .n = side, .k = side, .a = square, .lda = side, .b = square, .ldb = side,
		.beta = B / C, .c = factor, .ldc = side,
	});
	dk_scale(factor, side * side, C);
	dk_copy(before, x, (size_t)(rows * columns) * sizeof(float));
	dk_gemm(&(dk_gemm_args){
		.m = rows, .n = columns, .k = side,
		.a = tall ? before : factor, .lda = side, .b = tall ? factor : before, .ldb = columns,
		.beta = A, .c = x, .ldc = columns,
	});
}

static void orthogonalise(const ddp_optim_span *s)
{
	const int64_t rows = s->slot->shape[0], columns = s->slot->shape[1];
	double *squares = ddp_optim_doubles(s);
	float *before = s->work + DDP_ALIGN_ELEMENTS, *square = before + s->count;
	float *factor = square + shorter(s->slot) * shorter(s->slot);
	const dk_ratio inverse_norm = { .under = squares, .under_least = LEAST_NORM, .count = 1 };

	dk_sum_squares_at(squares, s->grads, s->count);
	dk_mix(s->grads, s->grads, 0, 1, &inverse_norm, s->count);
	for (int i = 0; i < s->options->muon.iterations; i++)
		iterate(s->grads, before, square, factor, rows, columns);
}

/* By what the learning rate of a matrix of that shape is multiplied. */
static double adjustment(const ddp_optim_span *s)
{
	const double rows = (double)s->slot->shape[0], columns = (double)s->slot->shape[1];

	return s->options->muon.match_rms ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
}

static void update(const ddp_optim_span *s)
{
	const double momentum = s->options->momentum;
	const float share = (float)((1 - momentum) * s->grad_scale);

	if (!is_orthogonal(s->slot)) {
		ddp_optim_span rest = *s;
		memcpy(rest.state, s->state + M, 2 * sizeof(*rest.state));
		ddp_adamw_rule.update(&rest);
		return;
	}
	dk_mix(s->state[MOMENTUM], s->grads, (float)momentum, share, NULL, s->count);
	if (!s->elsewhere) {
		/* Nesterov's: where the momentum will be when this gradient has moved it once more. */
		dk_mix(s->grads, s->state[MOMENTUM], share, momentum, NULL, s->count);
		orthogonalise(s);
		dk_mix(s->params, s->grads, (float)(1 - s->learning_rate * s->weight_decay),
		       -s->learning_rate * adjustment(s), NULL, s->count);
	}
	dk_zero(s->grads, s->count);
}

const ddp_optim_rule ddp_muon_rule = {
	.name = "Muon", .whole = true, .states = 3, .state_names = { "momentum", "m", "v" },
	.shape = shape, .work = work, .cost = cost, .update = update,
	.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .momentum = 0.95, .momentum_is_mean = true, .has_nesterov = true,
};
