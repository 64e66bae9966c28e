#include "cpu/inner.h"

const struct dk_inner DK_NAME(inner) = {
	.adamw = DK_NAME(adamw),
	.sgd = DK_NAME(sgd),
	.sum_squares = DK_NAME(sum_squares),
	.largest_bits = DK_NAME(largest_bits),
	.bias_rows = DK_NAME(bias_rows),
	.column_sums = DK_NAME(column_sums),
	.add = DK_NAME(add),
	.layernorm = DK_NAME(layernorm),
	.layernorm_input = DK_NAME(layernorm_input),
	.layernorm_params = DK_NAME(layernorm_params),
	.gelu = DK_NAME(gelu),
	.gelu_grad = DK_NAME(gelu_grad),
	.softmax_row = DK_NAME(softmax_row),
	.scale = DK_NAME(scale),
	.exp_row = DK_NAME(exp_row),
	.highest = DK_NAME(highest),
	.dot = DK_NAME(dot),
	.softmax_grad = DK_NAME(softmax_grad),
};
