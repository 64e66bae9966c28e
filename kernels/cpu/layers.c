/* SPDX-License-Identifier: Apache-2.0 */
/* Linear, embedding, layernorm and GELU layers: cut over rows or columns. */
#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/product.h"

/* Elements that are worth a thread of their own. */
enum { GRAIN = 16384 };

static int64_t row_grain(int64_t width)
{
	return width < GRAIN ? GRAIN / width : 1;
}

struct span_args {
	float *out, *out2, *out3;
	const float *in, *in2, *mean, *rstd, *gain, *bias;
	const int32_t *tokens;
	int64_t rows, width, length;
};

/* ---- linear ------------------------------------------------------------------- */

void dk_cpu_linear_forward(float *out, const float *in, const float *weight, const float *bias,
                           const float *residual, int64_t rows, int64_t inputs, int64_t outputs)
{
	dk_cpu_product(&(dk_product_args){.gemm = {.m = rows, .n = outputs, .k = inputs, .a = in, .lda = inputs,
		.b = weight, .ldb = outputs, .c = out, .ldc = outputs}, .bias = bias, .residual = residual});
}

void dk_cpu_linear_backward_params(float *dweight, float *dbias, const float *dout,
                                   const float *in, int64_t rows, int64_t inputs,
                                   int64_t outputs)
{
	dk_cpu_product(&(dk_product_args){.gemm = {.transpose_a = true, .m = inputs, .n = outputs, .k = rows,
		.a = in, .lda = inputs, .b = dout, .ldb = outputs, .beta = 1, .c = dweight,
		.ldc = outputs}, .sums = dbias});
}

void dk_cpu_linear_backward_input(float *din, const float *dout, const float *weight,
                                  int64_t rows, int64_t inputs, int64_t outputs)
{
	dk_cpu_gemm(&(dk_gemm_args){.transpose_b = true, .m = rows, .n = inputs, .k = outputs,
		.a = dout, .lda = outputs, .b = weight, .ldb = outputs, .c = din, .ldc = inputs});
}

/* GELU, or its gradient, of rows of which a product has just computed these columns. What is not near from that is
   fetched some rows ahead: the processor does not expect the next row. */
enum { ROWS_AHEAD = 4, LINE = 16 };

static void gelu_part(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	const struct span_args *s = user;

	for (int64_t at = row * s->width + column; rows > 0; rows--, at += s->width)
		dk_inner()->gelu(s->out + at, s->in + at, columns);
}

static void gelu_gradient_part(void *user, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
	const struct span_args *s = user;

	for (int64_t at = row * s->width + column; rows > 0; rows--, at += s->width) {
		for (int64_t i = 0; i < columns; i += LINE)
			__builtin_prefetch(s->in + at + ROWS_AHEAD * s->width + i);
		dk_inner()->gelu_grad(s->out + at, s->in + at, columns);
	}
}

void dk_cpu_linear_gelu_forward(float *out, float *before, const float *in, const float *weight,
                                const float *bias, int64_t rows, int64_t inputs, int64_t outputs)
{
	struct span_args s = {.out = out, .in = before, .width = outputs};

	dk_cpu_product(&(dk_product_args){.gemm = {.m = rows, .n = outputs, .k = inputs, .a = in, .lda = inputs,
		.b = weight, .ldb = outputs, .c = before, .ldc = outputs}, .bias = bias, .done = gelu_part, .user = &s});
}

void dk_cpu_linear_gelu_backward(float *dbefore, const float *dout, const float *weight, const float *before,
                                 int64_t rows, int64_t inputs, int64_t outputs)
{
	struct span_args s = {.out = dbefore, .in = before, .width = inputs};

	dk_cpu_product(&(dk_product_args){.gemm = {.transpose_b = true, .m = rows, .n = inputs, .k = outputs,
		.a = dout, .lda = outputs, .b = weight, .ldb = outputs, .c = dbefore, .ldc = inputs},
		.done = gelu_gradient_part, .user = &s});
}

/* ---- embedding ------------------------------------------------------------------ */

static void embed_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	for (int64_t r = first; r < last; r++)
		dk_inner()->add(s->out + r * s->width, s->in + s->tokens[r] * s->width,
		                s->in2 + r % s->length * s->width, s->width);
}

void dk_cpu_embedding_forward(float *out, const int32_t *tokens, const float *wte,
                              const float *wpe, int64_t batch, int64_t length, int64_t width)
{
	struct span_args s = {.out = out, .tokens = tokens, .in = wte, .in2 = wpe,
		.length = length, .width = width};

	dk_parallel(batch * length, row_grain(width), embed_span, &s);
}

/* Rows in order, one span of columns per thread: a token may come twice. */
static void embed_backward_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	for (int64_t r = 0; r < s->rows; r++) {
		const float *d = s->in + r * s->width + first;
		if (s->out != NULL) {
			float *token = s->out + s->tokens[r] * s->width + first;
			dk_inner()->add(token, token, d, last - first);
		}
		if (s->out2 != NULL) {
			float *position = s->out2 + r % s->length * s->width + first;
			dk_inner()->add(position, position, d, last - first);
		}
	}
}

void dk_cpu_embedding_backward(float *dwte, float *dwpe, const float *dout,
                               const int32_t *tokens, int64_t batch, int64_t length,
                               int64_t width)
{
	struct span_args s = {.out = dwte, .out2 = dwpe, .in = dout, .tokens = tokens,
		.rows = batch * length, .length = length, .width = width};

	dk_parallel(width, 64, embed_backward_span, &s);
}

void dk_cpu_add_rows(float *out, const int32_t *rows, const float *values, int64_t count,
                     int64_t width)
{
	struct span_args s = {.out = out, .in = values, .tokens = rows, .rows = count,
		.width = width, .length = 1};

	dk_parallel(width, 64, embed_backward_span, &s);
}

/* ---- layernorm ------------------------------------------------------------------ */

static void layernorm_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	dk_inner()->layernorm(s->out + first * s->width, s->out2 + first, s->out3 + first,
	                      s->in + first * s->width, s->gain, s->bias, last - first,
	                      s->width);
}

void dk_cpu_layernorm_forward(float *out, float *mean, float *rstd, const float *in,
                              const float *gain, const float *bias, int64_t rows,
                              int64_t width)
{
	struct span_args s = {.out = out, .out2 = mean, .out3 = rstd, .in = in, .gain = gain,
		.bias = bias, .width = width};

	dk_parallel(rows, row_grain(width), layernorm_span, &s);
}

static void layernorm_input_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	dk_inner()->layernorm_input(s->out + first * s->width, s->in + first * s->width,
	                            s->in2 + first * s->width, s->mean + first,
	                            s->rstd + first, s->gain, last - first, s->width);
}

static void layernorm_params_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	dk_inner()->layernorm_params(s->out2, s->out3, s->in, s->in2, s->mean, s->rstd, s->rows,
	                             s->width, first, last);
}

void dk_cpu_layernorm_backward(float *din, float *dgain, float *dbias, const float *dout,
                               const float *in, const float *mean, const float *rstd,
                               const float *gain, int64_t rows, int64_t width)
{
	struct span_args s = {.out = din, .out2 = dgain, .out3 = dbias, .in = dout, .in2 = in,
		.mean = mean, .rstd = rstd, .gain = gain, .rows = rows, .width = width};

	dk_parallel(width, 64, layernorm_params_span, &s);
	dk_parallel(rows, row_grain(width), layernorm_input_span, &s);
}

/* ---- GELU ----------------------------------------------------------------------- */

static void gelu_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	dk_inner()->gelu(s->out + first, s->in + first, last - first);
}

void dk_cpu_gelu_forward(float *out, const float *in, int64_t n)
{
	dk_parallel(n, GRAIN, gelu_span, &(struct span_args){.out = out, .in = in});
}

static void gelu_backward_span(void *arg, int64_t first, int64_t last)
{
	struct span_args *s = arg;

	dk_inner()->gelu_grad(s->out + first, s->in + first, last - first);
}

void dk_cpu_gelu_backward(float *grad, const float *in, int64_t n)
{
	dk_parallel(n, GRAIN, gelu_backward_span, &(struct span_args){.out = grad, .in = in});
}
