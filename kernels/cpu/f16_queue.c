/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of type DK_MIXED_F16. Each function widens its operands, computes as the host does in f32, and rounds
   what comes out: what a processor without arithmetic of f16 can do. What works on f32 in both types is that of
   DK_MIXED. */
#include <math.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "cpu/mixed.h"

enum { OPERANDS = 6 };

typedef struct f16_queue {
	dk_mixed mixed;
	dk_table table;
	float *wide[OPERANDS]; /* scratch, of a function at a time */
	int64_t room[OPERANDS];
} f16_queue;

/* n numbers of f16, or, if `from` is NULL, room for n of f32. */
typedef struct operand {
	const float *from;
	int64_t n; /* 0: none, which stays NULL */
} operand;

static void close_queue(dk_queue *queue)
{
	f16_queue *q = (f16_queue *)queue;

	for (int i = 0; i < OPERANDS; i++)
		free(q->wide[i]);
	free(q);
}

static float *make_room(f16_queue *q, int i, int64_t n)
{
	if (n <= q->room[i])
		return q->wide[i];
	free(q->wide[i]);
	q->wide[i] = dk_mixed_alloc(&q->mixed, (size_t)n * sizeof(float));
	q->room[i] = q->wide[i] != NULL ? n : 0;
	return q->wide[i];
}

/* Sets wide [count] to the operands in f32. False: there is no memory, and the queue keeps the failure. */
static bool widen(dk_queue *queue, float **wide, const operand *operands, int count)
{
	for (int i = 0; i < count; i++) {
		const operand *o = &operands[i];
		wide[i] = o->n > 0 ? make_room((f16_queue *)queue, i, o->n) : NULL;
		if (o->n > 0 && wide[i] == NULL)
			return false;
		if (o->n > 0 && o->from != NULL)
			dk_cpu_from_f16(wide[i], dk_narrow_const(o->from), o->n, 1);
	}
	return true;
}

#define WIDEN(queue, wide, ...) \
	float *wide[sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)]; \
	if (!widen(queue, wide, (operand[]){__VA_ARGS__}, (int)(sizeof(wide) / sizeof(wide[0])))) \
		return

static void narrow(float *out, const float *wide, int64_t n)
{
	dk_cpu_to_f16(dk_narrow(out), wide, n, 1);
}

/* ---- products ------------------------------------------------------------------------ */

static int64_t stored(int64_t rows, int64_t columns, int64_t ld)
{
	return (rows - 1) * ld + columns;
}

static void gemm(dk_queue *queue, const dk_gemm_args *g)
{
	dk_gemm_args in_f32 = *g;
	const int64_t a = g->transpose_a ? stored(g->k, g->m, g->lda) : stored(g->m, g->k, g->lda);
	const int64_t b = g->transpose_b ? stored(g->n, g->k, g->ldb) : stored(g->k, g->n, g->ldb);
	const int64_t c = stored(g->m, g->n, g->ldc);

	WIDEN(queue, x, {g->a, a}, {g->b, b}, {g->c, c});
	in_f32.a = x[0];
	in_f32.b = x[1];
	in_f32.c = x[2];
	dk_cpu_gemm(&in_f32);
	narrow(g->c, x[2], c);
}

static void linear_forward(dk_queue *queue, float *out, const float *in, const float *weight, const float *bias,
                           const float *residual, int64_t rows, int64_t inputs, int64_t outputs)
{
	WIDEN(queue, x, {in, rows * inputs}, {weight, inputs * outputs}, {bias, outputs},
	      {residual, residual != NULL ? rows * outputs : 0}, {NULL, rows * outputs});
	dk_cpu_linear_forward(x[4], x[0], x[1], x[2], x[3], rows, inputs, outputs);
	narrow(out, x[4], rows * outputs);
}

static void linear_backward_params(dk_queue *queue, float *dweight, float *dbias, const float *dout, const float *in,
                                   int64_t rows, int64_t inputs, int64_t outputs)
{
	WIDEN(queue, x, {dout, rows * outputs}, {in, rows * inputs});
	dk_cpu_linear_backward_params(dweight, dbias, x[0], x[1], rows, inputs, outputs);
}

static void linear_backward_input(dk_queue *queue, float *din, const float *dout, const float *weight, int64_t rows,
                                  int64_t inputs, int64_t outputs)
{
	WIDEN(queue, x, {dout, rows * outputs}, {weight, inputs * outputs}, {NULL, rows * inputs});
	dk_cpu_linear_backward_input(x[2], x[0], x[1], rows, inputs, outputs);
	narrow(din, x[2], rows * inputs);
}

/* ---- layers -------------------------------------------------------------------------- */

static void embedding_forward(dk_queue *queue, float *out, const int32_t *tokens, const float *wte, const float *wpe,
                              int64_t batch, int64_t length, int64_t width)
{
	const int64_t rows = batch * length;

	/* A batch has few words of a large vocabulary: only their rows are widened. */
	WIDEN(queue, x, {NULL, rows * width}, {wpe, length * width});
	for (int64_t r = 0; r < rows; r++)
		dk_cpu_from_f16(x[0] + r * width, dk_narrow_const(wte) + tokens[r] * width, width, 1);
	for (int64_t b = 0; b < batch; b++)
		dk_cpu_add(x[0] + b * length * width, x[0] + b * length * width, x[1], length * width);
	narrow(out, x[0], rows * width);
}

static void embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                               int64_t batch, int64_t length, int64_t width)
{
	WIDEN(queue, x, {dout, batch * length * width});
	dk_cpu_embedding_backward(dwte, dwpe, x[0], tokens, batch, length, width);
}

static void layernorm_forward(dk_queue *queue, float *out, float *mean, float *rstd, const float *in, const float *gain,
                              const float *bias, int64_t rows, int64_t width)
{
	WIDEN(queue, x, {in, rows * width}, {gain, width}, {bias, width}, {NULL, rows * width});
	dk_cpu_layernorm_forward(x[3], mean, rstd, x[0], x[1], x[2], rows, width);
	narrow(out, x[3], rows * width);
}

static void layernorm_backward(dk_queue *queue, float *din, float *dgain, float *dbias, const float *dout,
                               const float *in, const float *mean, const float *rstd, const float *gain, int64_t rows,
                               int64_t width)
{
	WIDEN(queue, x, {dout, rows * width}, {in, rows * width}, {gain, width}, {din, rows * width});
	dk_cpu_layernorm_backward(x[3], dgain, dbias, x[0], x[1], mean, rstd, x[2], rows, width);
	narrow(din, x[3], rows * width);
}

static void gelu_forward(dk_queue *queue, float *out, const float *in, int64_t n)
{
	WIDEN(queue, x, {in, n});
	dk_cpu_gelu_forward(x[0], x[0], n);
	narrow(out, x[0], n);
}

static void gelu_backward(dk_queue *queue, float *grad, const float *in, int64_t n)
{
	WIDEN(queue, x, {in, n}, {grad, n});
	dk_cpu_gelu_backward(x[1], x[0], n);
	narrow(grad, x[1], n);
}

static void add(dk_queue *queue, float *out, const float *a, const float *b, int64_t n)
{
	WIDEN(queue, x, {a, n}, {b, n});
	dk_cpu_add(x[0], x[0], x[1], n);
	narrow(out, x[0], n);
}

static void dropout(dk_queue *queue, float *out, const float *in, int64_t n, double probability,
                    const dk_random *random, uint64_t ahead)
{
	WIDEN(queue, x, {in, n});
	dk_cpu_dropout(x[0], x[0], n, probability, random, ahead);
	narrow(out, x[0], n);
}

static void attention_forward(dk_queue *queue, float *out, float *lse, const float *qkv, int64_t batch, int64_t length,
                              int64_t heads, int64_t width)
{
	const int64_t n = batch * length * width;

	WIDEN(queue, x, {qkv, 3 * n}, {NULL, n});
	dk_cpu_attention_forward(x[1], lse, x[0], batch, length, heads, width);
	narrow(out, x[1], n);
}

static void attention_backward(dk_queue *queue, float *dqkv, const float *dout, const float *qkv, const float *out,
                               const float *lse, int64_t batch, int64_t length, int64_t heads, int64_t width)
{
	const int64_t n = batch * length * width;

	WIDEN(queue, x, {dout, n}, {qkv, 3 * n}, {out, n}, {NULL, 3 * n});
	dk_cpu_attention_backward(x[3], x[0], x[1], x[2], lse, batch, length, heads, width);
	narrow(dqkv, x[3], 3 * n);
}

/* ---- classifier: work [rows, vocab] holds the logits in f32, and then their gradient ----- */

static double classifier_forward(dk_queue *queue, float *work, const float *in, const float *weight,
                                 const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	float *x[2];

	if (!widen(queue, x, (operand[]){{in, rows * width}, {weight, vocab * width}}, 2))
		return (double)NAN;
	dk_cpu_gemm(&(dk_gemm_args){.transpose_b = true, .m = rows, .n = vocab, .k = width, .a = x[0], .lda = width,
		.b = x[1], .ldb = width, .c = work, .ldc = vocab});
	return dk_cpu_cross_entropy(work, targets, rows, vocab);
}

static void classifier_loss(dk_queue *queue, double *loss, float *work, const float *in, const float *weight,
                            const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	*loss += classifier_forward(queue, work, in, weight, targets, rows, width, vocab);
}

static void classifier_backward(dk_queue *queue, float *din, float *dweight, float *work, const float *in,
                                const float *weight, const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	(void)targets;
	WIDEN(queue, x, {in, rows * width}, {weight, vocab * width}, {NULL, rows * width}, {NULL, rows * vocab});
	/* The first gradient is rounded, as all others are: too large a loss scale makes it infinite. */
	narrow(x[3], work, rows * vocab);
	dk_cpu_from_f16(work, dk_narrow_const(x[3]), rows * vocab, 1);
	dk_cpu_gemm(&(dk_gemm_args){.m = rows, .n = width, .k = vocab, .a = work, .lda = vocab, .b = x[1],
		.ldb = width, .c = x[2], .ldc = width});
	dk_cpu_gemm(&(dk_gemm_args){.transpose_a = true, .m = vocab, .n = width, .k = rows, .a = work, .lda = vocab,
		.b = x[0], .ldb = width, .beta = 1, .c = dweight, .ldc = width});
	narrow(din, x[2], rows * width);
}

/* ---- the queue ------------------------------------------------------------------------- */

static void take_functions(dk_table *t)
{
	*t = *dk_mixed_table();
	t->close = close_queue;
	t->gemm = gemm;
	t->linear_forward = linear_forward;
	t->linear_backward_params = linear_backward_params;
	t->linear_backward_input = linear_backward_input;
	t->embedding_forward = embedding_forward;
	t->embedding_backward = embedding_backward;
	t->layernorm_forward = layernorm_forward;
	t->layernorm_backward = layernorm_backward;
	t->gelu_forward = gelu_forward;
	t->gelu_backward = gelu_backward;
	t->add = add;
	t->dropout = dropout;
	t->attention_forward = attention_forward;
	t->attention_backward = attention_backward;
	t->classifier_forward = classifier_forward;
	t->classifier_backward = classifier_backward;
	t->classifier_loss = classifier_loss;
}

dk_queue *dk_open_f16(void)
{
	f16_queue *q = calloc(1, sizeof(*q));

	if (q == NULL)
		return NULL;
	take_functions(&q->table);
	q->mixed.base = (dk_queue){.table = &q->table, .type = DK_MIXED_F16};
	return &q->mixed.base;
}
