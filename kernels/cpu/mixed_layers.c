/* SPDX-License-Identifier: Apache-2.0 */
/* Layers in bf16, but for linear ones' products: by those of f32, a chunk or a tile at a time. */
#include <stdlib.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/mixed.h"
#include "cpu/numbers.h"

/* GRAIN: elements that are worth a thread; CHUNK, or a tile: that are widened at once. */
enum { GRAIN = 16384, CHUNK = 2048, TILE_ROWS = 16, TILE_COLUMNS = 256 };

static int64_t row_grain(int64_t width)
{
	return width < GRAIN ? GRAIN / width : 1;
}

struct span_args {
	dk_mixed *q;
	uint16_t *out;
	float *mean_out, *rstd_out, *sum, *sum2;
	const uint16_t *in, *in2, *gain, *bias;
	const float *mean, *rstd;
	const int32_t *tokens;
	int64_t rows, width, length;
	dk_dropping dropping;
};

/* Some rows and columns of a matrix. */
static void widen_rows(float *to, const uint16_t *from, int64_t rows, int64_t ld, int64_t columns)
{
	for (int64_t r = 0; r < rows; r++)
		dk_inner()->from_bf16(to + r * columns, from + r * ld, columns);
}

/* ---- linear ------------------------------------------------------------------------- */

static void column_sums_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float x[TILE_ROWS * TILE_COLUMNS];

	for (int64_t column = first; column < last; column += TILE_COLUMNS) {
		const int64_t columns = dk_smaller(TILE_COLUMNS, last - column);
		for (int64_t row = 0; row < s->rows; row += TILE_ROWS) {
			const int64_t rows = dk_smaller(TILE_ROWS, s->rows - row);
			widen_rows(x, s->in + row * s->width + column, rows, s->width, columns);
			dk_inner()->column_sums(s->sum + column, x, rows, columns, 0, columns);
		}
	}
}

void dk_mixed_linear_backward_params(dk_queue *queue, float *dweight, float *dbias, const float *dout,
                                     const float *in, int64_t rows, int64_t inputs, int64_t outputs)
{
	struct span_args s = {.sum = dbias, .in = dk_narrow_const(dout), .rows = rows, .width = outputs};
	const dk_side a = {dk_narrow_const(in), inputs, true, false, inputs, rows};
	const dk_side b = {dk_narrow_const(dout), outputs, true, true, outputs, rows};

	dk_parallel(outputs, 64, column_sums_span, &s);
	dk_mixed_product_f32(dk_mixed_of(queue), &a, &b, dweight, true);
}

/* ---- embedding ---------------------------------------------------------------------- */

static void embed_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float token[CHUNK], position[CHUNK];

	for (int64_t r = first; r < last; r++) {
		const uint16_t *a = s->in + s->tokens[r] * s->width, *b = s->in2 + r % s->length * s->width;
		for (int64_t i = 0; i < s->width; i += CHUNK) {
			const int64_t n = dk_smaller(CHUNK, s->width - i);
			dk_inner()->from_bf16(token, a + i, n);
			dk_inner()->from_bf16(position, b + i, n);
			dk_inner()->add(token, token, position, n);
			dk_inner()->to_bf16(s->out + r * s->width + i, token, n);
		}
	}
}

void dk_mixed_embedding_forward(dk_queue *queue, float *out, const int32_t *tokens, const float *wte,
                                const float *wpe, int64_t batch, int64_t length, int64_t width)
{
	struct span_args s = {.out = dk_narrow(out), .tokens = tokens, .in = dk_narrow_const(wte),
		.in2 = dk_narrow_const(wpe), .length = length, .width = width};

	(void)queue;
	dk_parallel(batch * length, row_grain(width), embed_span, &s);
}

/* Rows in order, one span of columns per thread: a token may come twice. */
static void embed_backward_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float d[TILE_COLUMNS];

	for (int64_t column = first; column < last; column += TILE_COLUMNS) {
		const int64_t columns = dk_smaller(TILE_COLUMNS, last - column);
		for (int64_t r = 0; r < s->rows; r++) {
			dk_inner()->from_bf16(d, s->in + r * s->width + column, columns);
			if (s->sum != NULL) {
				float *token = s->sum + s->tokens[r] * s->width + column;
				dk_inner()->add(token, token, d, columns);
			}
			float *position = s->sum2 + r % s->length * s->width + column;
			dk_inner()->add(position, position, d, columns);
		}
	}
}

void dk_mixed_embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
                                 const int32_t *tokens, int64_t batch, int64_t length, int64_t width)
{
	struct span_args s = {.sum = dwte, .sum2 = dwpe, .in = dk_narrow_const(dout), .tokens = tokens,
		.rows = batch * length, .length = length, .width = width};

	(void)queue;
	dk_parallel(width, 64, embed_backward_span, &s);
}

/* ---- layernorm ---------------------------------------------------------------------- */

static void layernorm_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	const int64_t width = s->width;
	float *in = dk_mixed_alloc(s->q, (size_t)(4 * width) * sizeof(*in));

	if (in == NULL)
		return;
	float *out = in + width, *gain = out + width, *bias = gain + width;
	dk_inner()->from_bf16(gain, s->gain, width);
	dk_inner()->from_bf16(bias, s->bias, width);
	for (int64_t r = first; r < last; r++) {
		dk_inner()->from_bf16(in, s->in + r * width, width);
		dk_inner()->layernorm(out, s->mean_out + r, s->rstd_out + r, in, gain, bias, 1, width);
		dk_inner()->to_bf16(s->out + r * width, out, width);
	}
	free(in);
}

void dk_mixed_layernorm_forward(dk_queue *queue, float *out, float *mean, float *rstd, const float *in,
                                const float *gain, const float *bias, int64_t rows, int64_t width)
{
	struct span_args s = {.q = dk_mixed_of(queue), .out = dk_narrow(out), .mean_out = mean,
		.rstd_out = rstd, .in = dk_narrow_const(in), .gain = dk_narrow_const(gain),
		.bias = dk_narrow_const(bias), .width = width};

	dk_parallel(rows, row_grain(width), layernorm_span, &s);
}

static void layernorm_input_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	const int64_t width = s->width;
	float *in = dk_mixed_alloc(s->q, (size_t)(4 * width) * sizeof(*in));

	if (in == NULL)
		return;
	float *dout = in + width, *din = dout + width, *gain = din + width;
	dk_inner()->from_bf16(gain, s->gain, width);
	for (int64_t r = first; r < last; r++) {
		dk_inner()->from_bf16(in, s->in2 + r * width, width);
		dk_inner()->from_bf16(dout, s->in + r * width, width);
		dk_inner()->from_bf16(din, s->out + r * width, width);
		dk_inner()->layernorm_input(din, dout, in, s->mean + r, s->rstd + r, gain, 1, width);
		dk_inner()->to_bf16(s->out + r * width, din, width);
	}
	free(in);
}

static void layernorm_params_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float dout[TILE_ROWS * TILE_COLUMNS], in[TILE_ROWS * TILE_COLUMNS];

	for (int64_t column = first; column < last; column += TILE_COLUMNS) {
		const int64_t columns = dk_smaller(TILE_COLUMNS, last - column);
		for (int64_t row = 0; row < s->rows; row += TILE_ROWS) {
			const int64_t rows = dk_smaller(TILE_ROWS, s->rows - row);
			widen_rows(dout, s->in + row * s->width + column, rows, s->width, columns);
			widen_rows(in, s->in2 + row * s->width + column, rows, s->width, columns);
			dk_inner()->layernorm_params(s->sum + column, s->sum2 + column, dout, in, s->mean + row,
			                             s->rstd + row, rows, columns, 0, columns);
		}
	}
}

void dk_mixed_layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias,
                                 const float *dout, const float *in, const float *mean,
                                 const float *rstd, const float *gain, int64_t rows, int64_t width)
{
	struct span_args s = {.q = dk_mixed_of(queue), .out = dk_narrow(din), .sum = dgain, .sum2 = dbias,
		.in = dk_narrow_const(dout), .in2 = dk_narrow_const(in), .mean = mean, .rstd = rstd,
		.gain = dk_narrow_const(gain), .rows = rows, .width = width};

	dk_parallel(width, 64, layernorm_params_span, &s);
	dk_parallel(rows, row_grain(width), layernorm_input_span, &s);
}

/* ---- GELU --------------------------------------------------------------------------- */

static void gelu_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float x[CHUNK];

	for (int64_t i = first; i < last; i += CHUNK) {
		const int64_t n = dk_smaller(CHUNK, last - i);
		dk_inner()->from_bf16(x, s->in + i, n);
		dk_inner()->gelu(x, x, n);
		dk_inner()->to_bf16(s->out + i, x, n);
	}
}

void dk_mixed_gelu_forward(dk_queue *queue, float *out, const float *in, int64_t n)
{
	(void)queue;
	dk_parallel(n, GRAIN, gelu_span, &(struct span_args){.out = dk_narrow(out), .in = dk_narrow_const(in)});
}

static void gelu_backward_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float x[CHUNK], grad[CHUNK];

	for (int64_t i = first; i < last; i += CHUNK) {
		const int64_t n = dk_smaller(CHUNK, last - i);
		dk_inner()->from_bf16(x, s->in + i, n);
		dk_inner()->from_bf16(grad, s->out + i, n);
		dk_inner()->gelu_grad(grad, x, n);
		dk_inner()->to_bf16(s->out + i, grad, n);
	}
}

void dk_mixed_gelu_backward(dk_queue *queue, float *grad, const float *in, int64_t n)
{
	(void)queue;
	dk_parallel(n, GRAIN, gelu_backward_span,
	            &(struct span_args){.out = dk_narrow(grad), .in = dk_narrow_const(in)});
}

/* ---- sums and dropout --------------------------------------------------------------- */

static void add_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float a[CHUNK], b[CHUNK];

	for (int64_t i = first; i < last; i += CHUNK) {
		const int64_t n = dk_smaller(CHUNK, last - i);
		dk_inner()->from_bf16(a, s->in + i, n);
		dk_inner()->from_bf16(b, s->in2 + i, n);
		dk_inner()->add(a, a, b, n);
		dk_inner()->to_bf16(s->out + i, a, n);
	}
}

void dk_mixed_add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n)
{
	(void)queue;
	dk_parallel(n, GRAIN, add_span, &(struct span_args){.out = dk_narrow(out), .in = dk_narrow_const(a),
		.in2 = dk_narrow_const(b)});
}

/* A chunk begins with a counter: its length is a multiple of what each gives. */
static void dropout_span(void *arg, int64_t first, int64_t last)
{
	const struct span_args *s = arg;
	float x[CHUNK];

	for (int64_t i = first; i < last; i += CHUNK) {
		const int64_t n = dk_smaller(CHUNK, last - i);
		dk_dropping here = s->dropping;
		here.counter += (uint64_t)(i / 4);
		dk_inner()->from_bf16(x, s->in + i, n);
		dk_inner()->dropout(x, x, 0, n, &here);
		dk_inner()->to_bf16(s->out + i, x, n);
	}
}

void dk_mixed_dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
                      const dk_random *random, uint64_t ahead)
{
	(void)queue;
	dk_parallel(n, GRAIN, dropout_span, &(struct span_args){.out = dk_narrow(out), .in = dk_narrow_const(in),
		.dropping = dk_dropping_of(probability, random, ahead)});
}
