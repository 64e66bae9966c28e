/* SPDX-License-Identifier: Apache-2.0 */
/* host_kernels: the host's kernels (kernels/cpu) on the streams of the fake GPU. Each function of kernels.h is one
   piece of work, which finds its memory by fake_gpu_view(): so the GPU sees what it reads and writes, and in which
   order. */
#include <stdlib.h>

#include "cpu/cpu.h"
#include "tests/device/host_task.h"

/* ---- elements --------------------------------------------------------------------------- */

HOST_KERNEL(host_zero, (dk_queue *queue, float *x, int64_t n),
	FIELDS(.n = { n }), dk_zero(at[0], t->n[0]),
	writes_tensor(x, n))

HOST_KERNEL(host_update, (dk_queue *queue, float *param, float *grad, float *first, float *second, int64_t n,
	    const dk_update_args *args),
	FIELDS(.n = { n }, .update = *args),
	t->update.rounded = at[4]; dk_update(at[0], at[1], at[2], at[3], t->n[0], &t->update),
	writes(param, n), writes(grad, n), writes(first, n), writes(second, n), writes_short(args->rounded, n))

static void run_largest(task *t, void **at)
{
	t->queue->result = dk_largest(at[0], t->n[0]);
}

static float host_largest(dk_queue *queue, const float *x, int64_t n)
{
	return (float)ddp_host_fetch(queue, &(task){ .run = run_largest, .n = { n }, .operands = { reads(x, n) } });
}

static void run_sum_squares(task *t, void **at)
{
	t->queue->result = dk_sum_squares(at[0], t->n[0]);
}

static double host_sum_squares(dk_queue *queue, const float *x, int64_t n)
{
	return ddp_host_fetch(queue, &(task){ .run = run_sum_squares, .n = { n }, .operands = { reads(x, n) } });
}

static void run_largest_at(task *t, void **at)
{
	dk_largest_at(at[0], &(dk_array){ at[1], t->n[0] }, 1);
}

static void host_largest_at(dk_queue *queue, float *largest, const dk_array *arrays, int64_t count)
{
	for (const dk_array *a = arrays; a < arrays + count; a++)
		ddp_host_enqueue(queue, &(task){ .run = run_largest_at, .n = { a->n },
		                        .operands = { writes(largest++, 1), reads(a->x, a->n) } });
}

static void run_squares_at(task *t, void **at)
{
	dk_squares_at(at[0], &(dk_array){ at[1], t->n[0] }, 1, t->n[1]);
}

static void host_squares_at(dk_queue *queue, double *sums, const dk_array *arrays, int64_t count, int64_t piece)
{
	for (const dk_array *a = arrays; a < arrays + count; a++) {
		const int64_t pieces = (a->n + piece - 1) / piece;
		ddp_host_enqueue(queue, &(task){ .run = run_squares_at, .n = { a->n, piece },
		                        .operands = { writes_double(sums, pieces), reads(a->x, a->n) } });
		sums += pieces;
	}
}

HOST_KERNEL(host_checksum_at, (dk_queue *queue, uint64_t *sums, const float *x, int64_t n, int64_t piece),
	FIELDS(.n = { n, piece }), dk_checksum_at(at[0], at[1], t->n[0], t->n[1]),
	(operand){ sums, (size_t)((n + piece - 1) / piece) * sizeof(*sums), true, false }, reads(x, n))

HOST_KERNEL(host_scale, (dk_queue *queue, float *x, int64_t n, float factor),
	FIELDS(.n = { n }, .factor = factor), dk_scale(at[0], t->n[0], t->factor),
	writes(x, n))

HOST_KERNEL(host_to_bf16, (dk_queue *queue, uint16_t *out, const float *in, int64_t n),
	FIELDS(.n = { n }), dk_to_bf16(at[0], at[1], t->n[0]),
	writes_short(out, n), reads(in, n))

HOST_KERNEL(host_from_bf16, (dk_queue *queue, float *out, const uint16_t *in, int64_t n),
	FIELDS(.n = { n }), dk_from_bf16(at[0], at[1], t->n[0]),
	writes(out, n), reads_short(in, n))

HOST_KERNEL(host_to_f16, (dk_queue *queue, uint16_t *out, const float *in, int64_t n, float factor),
	FIELDS(.n = { n }, .factor = factor), dk_to_f16(at[0], at[1], t->n[0], t->factor),
	writes_short(out, n), reads(in, n))

HOST_KERNEL(host_from_f16, (dk_queue *queue, float *out, const uint16_t *in, int64_t n, float factor),
	FIELDS(.n = { n }, .factor = factor), dk_from_f16(at[0], at[1], t->n[0], t->factor),
	writes(out, n), reads_short(in, n))

/* ---- matrix products --------------------------------------------------------------------- */

static void run_gemm(task *t, void **at)
{
	t->gemm.a = at[0];
	t->gemm.b = at[1];
	t->gemm.c = at[2];
	dk_gemm(&t->gemm);
}

/* Of a stored matrix. */
static int64_t extent(int64_t rows, int64_t columns, int64_t stride)
{
	return rows > 0 ? (rows - 1) * stride + columns : 0;
}

static void host_gemm(dk_queue *queue, const dk_gemm_args *g)
{
	const int64_t a = g->transpose_a ? extent(g->k, g->m, g->lda) : extent(g->m, g->k, g->lda);
	const int64_t b = g->transpose_b ? extent(g->n, g->k, g->ldb) : extent(g->k, g->n, g->ldb);

	ddp_host_enqueue(queue, &(task){ .run = run_gemm, .gemm = *g, .operands = {
		reads_tensor(g->a, a), reads_tensor(g->b, b), writes_tensor(g->c, extent(g->m, g->n, g->ldc)) } });
}

HOST_KERNEL(host_linear_forward, (dk_queue *queue, float *out, const float *in, const float *weight,
	    const float *bias, const float *residual, int64_t rows, int64_t inputs, int64_t outputs),
	FIELDS(.n = { rows, inputs, outputs }),
	dk_linear_forward(at[0], at[1], at[2], at[3], at[4], t->n[0], t->n[1], t->n[2]),
	writes_tensor(out, rows * outputs), reads_tensor(in, rows * inputs),
	reads_tensor(weight, inputs * outputs), reads_tensor(bias, outputs),
	reads_tensor(residual, rows * outputs))

HOST_KERNEL(host_linear_backward_params, (dk_queue *queue, float *dweight, float *dbias, const float *dout,
	    const float *in, int64_t rows, int64_t inputs, int64_t outputs),
	FIELDS(.n = { rows, inputs, outputs }),
	dk_linear_backward_params(at[0], at[1], at[2], at[3], t->n[0], t->n[1], t->n[2]),
	writes(dweight, inputs * outputs), writes(dbias, outputs), reads_tensor(dout, rows * outputs),
	reads_tensor(in, rows * inputs))

HOST_KERNEL(host_linear_backward_input, (dk_queue *queue, float *din, const float *dout, const float *weight,
	    int64_t rows, int64_t inputs, int64_t outputs),
	FIELDS(.n = { rows, inputs, outputs }),
	dk_linear_backward_input(at[0], at[1], at[2], t->n[0], t->n[1], t->n[2]),
	writes_tensor(din, rows * inputs), reads_tensor(dout, rows * outputs),
	reads_tensor(weight, inputs * outputs))

/* ---- layers ------------------------------------------------------------------------------ */

/* Up to the last row that one of the indices names; false: it cannot be seen. */
static bool look_at_rows(task *t, const int32_t *index, int64_t count, int64_t width, void **at)
{
	int64_t rows = 0;

	for (int64_t i = 0; i < count; i++)
		rows = index[i] >= rows ? index[i] + 1 : rows;
	t->table.bytes = (size_t)(rows * width) * sizeof(float);
	return ddp_host_look(t, &t->table, at);
}

static void run_embedding_forward(task *t, void **at)
{
	void *wte;

	if (look_at_rows(t, at[1], t->n[0] * t->n[1], t->n[2], &wte))
		dk_embedding_forward(at[0], at[1], wte, at[2], t->n[0], t->n[1], t->n[2]);
}

static void host_embedding_forward(dk_queue *queue, float *out, const int32_t *tokens,
                                   const float *wte, const float *wpe, int64_t batch, int64_t length,
                                   int64_t width)
{
	ddp_host_enqueue(queue, &(task){ .run = run_embedding_forward, .n = { batch, length, width },
	                        .table = reads_tensor(wte, 0),
	                        .operands = { writes_tensor(out, batch * length * width),
	                                      reads_indices(tokens, batch * length),
	                                      reads_tensor(wpe, length * width) } });
}

static void run_embedding_backward(task *t, void **at)
{
	void *dwte;

	if (look_at_rows(t, at[2], t->n[0] * t->n[1], t->n[2], &dwte))
		dk_embedding_backward(dwte, at[0], at[1], at[2], t->n[0], t->n[1], t->n[2]);
}

static void host_embedding_backward(dk_queue *queue, float *dwte, float *dwpe, const float *dout,
                                    const int32_t *tokens, int64_t batch, int64_t length,
                                    int64_t width)
{
	ddp_host_enqueue(queue, &(task){ .run = run_embedding_backward, .n = { batch, length, width },
	                        .table = writes(dwte, 0),
	                        .operands = { writes(dwpe, length * width),
	                                      reads_tensor(dout, batch * length * width),
	                                      reads_indices(tokens, batch * length) } });
}

static void run_add_rows(task *t, void **at)
{
	void *out;

	if (look_at_rows(t, at[0], t->n[0], t->n[1], &out))
		dk_add_rows(out, at[0], at[1], t->n[0], t->n[1]);
}

static void host_add_rows(dk_queue *queue, float *out, const int32_t *rows, const float *values,
                          int64_t count, int64_t width)
{
	ddp_host_enqueue(queue, &(task){ .run = run_add_rows, .n = { count, width }, .table = writes(out, 0),
	                        .operands = { reads_indices(rows, count), reads(values, count * width) } });
}

HOST_KERNEL(host_layernorm_forward, (dk_queue *queue, float *out, float *mean, float *rstd, const float *in,
	    const float *gain, const float *bias, int64_t rows, int64_t width),
	FIELDS(.n = { rows, width }),
	dk_layernorm_forward(at[0], at[1], at[2], at[3], at[4], at[5], t->n[0], t->n[1]),
	writes_tensor(out, rows * width), writes(mean, rows), writes(rstd, rows),
	reads_tensor(in, rows * width), reads_tensor(gain, width), reads_tensor(bias, width))

HOST_KERNEL(host_layernorm_backward, (dk_queue *queue, float *din, float *dgain, float *dbias,
	    const float *dout, const float *in, const float *mean, const float *rstd, const float *gain,
	    int64_t rows, int64_t width),
	FIELDS(.n = { rows, width }),
	dk_layernorm_backward(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], t->n[0], t->n[1]),
	writes_tensor(din, rows * width), writes(dgain, width), writes(dbias, width),
	reads_tensor(dout, rows * width), reads_tensor(in, rows * width), reads(mean, rows), reads(rstd, rows),
	reads_tensor(gain, width))

HOST_KERNEL(host_gelu_forward, (dk_queue *queue, float *out, const float *in, int64_t n),
	FIELDS(.n = { n }), dk_gelu_forward(at[0], at[1], t->n[0]),
	writes_tensor(out, n), reads_tensor(in, n))

HOST_KERNEL(host_gelu_backward, (dk_queue *queue, float *grad, const float *in, int64_t n),
	FIELDS(.n = { n }), dk_gelu_backward(at[0], at[1], t->n[0]),
	writes_tensor(grad, n), reads_tensor(in, n))

HOST_KERNEL(host_add, (dk_queue *queue, float *out, const float *a, const float *b, int64_t n),
	FIELDS(.n = { n }), dk_add(at[0], at[1], at[2], t->n[0]),
	writes_tensor(out, n), reads_tensor(a, n), reads_tensor(b, n))

HOST_KERNEL(host_dropout, (dk_queue *queue, float *out, const float *in, int64_t n, double probability,
	    const dk_random *random, uint64_t ahead),
	FIELDS(.n = { n }, .dropout = { probability, ahead }),
	dk_dropout(at[0], at[1], t->n[0], t->dropout.probability, at[2], t->dropout.ahead),
	writes_tensor(out, n), reads_tensor(in, n), (operand){ random, sizeof(*random), false, false })

HOST_KERNEL(host_attention_forward, (dk_queue *queue, float *out, float *lse, const float *qkv,
	    int64_t batch, int64_t length, int64_t heads, int64_t width),
	FIELDS(.n = { batch, length, heads, width }),
	dk_attention_forward(at[0], at[1], at[2], t->n[0], t->n[1], t->n[2], t->n[3]),
	writes_tensor(out, batch * length * width), writes(lse, batch * length * heads),
	reads_tensor(qkv, 3 * batch * length * width))

HOST_KERNEL(host_attention_backward, (dk_queue *queue, float *dqkv, const float *dout, const float *qkv,
	    const float *out, const float *lse, int64_t batch, int64_t length, int64_t heads, int64_t width),
	FIELDS(.n = { batch, length, heads, width }),
	dk_attention_backward(at[0], at[1], at[2], at[3], at[4], t->n[0], t->n[1], t->n[2], t->n[3]),
	writes_tensor(dqkv, 3 * batch * length * width), reads_tensor(dout, batch * length * width),
	reads_tensor(qkv, 3 * batch * length * width), reads_tensor(out, batch * length * width),
	reads(lse, batch * length * heads))

/* ---- classifier -------------------------------------------------------------------------- */

static void run_classifier_loss(task *t, void **at)
{
	double *loss = at[4] != NULL ? at[4] : &t->queue->result;
	const double before = at[4] != NULL ? *loss : 0;

	*loss = before + dk_classifier_forward(at[0], at[1], at[2], at[3], t->n[0], t->n[1], t->n[2]);
}

/* `loss` NULL: the result is the queue's. */
static task classifier_task(double *loss, const float *work, const float *in, const float *weight,
                            const int32_t *targets, int64_t rows, int64_t width, int64_t vocab)
{
	return (task){ .run = run_classifier_loss, .n = { rows, width, vocab }, .operands = {
		writes(work, (int64_t)dk_classifier_work(rows, vocab)), reads_tensor(in, rows * width),
		reads_tensor(weight, vocab * width), reads_indices(targets, rows), writes_double(loss, 1) } };
}

static double host_classifier_forward(dk_queue *queue, float *work, const float *in,
                                      const float *weight, const int32_t *targets, int64_t rows,
                                      int64_t width, int64_t vocab)
{
	const task t = classifier_task(NULL, work, in, weight, targets, rows, width, vocab);

	return ddp_host_fetch(queue, &t);
}

static void host_classifier_loss(dk_queue *queue, double *loss, float *work, const float *in,
                                 const float *weight, const int32_t *targets, int64_t rows,
                                 int64_t width, int64_t vocab)
{
	const task t = classifier_task(loss, work, in, weight, targets, rows, width, vocab);

	ddp_host_enqueue(queue, &t);
}

HOST_KERNEL(host_classifier_backward, (dk_queue *queue, float *din, float *dweight, float *work,
	    const float *in, const float *weight, const int32_t *targets, int64_t rows, int64_t width,
	    int64_t vocab),
	FIELDS(.n = { rows, width, vocab }),
	dk_classifier_backward(at[0], at[1], at[2], at[3], at[4], at[5], t->n[0], t->n[1], t->n[2]),
	writes_tensor(din, rows * width), writes(dweight, vocab * width),
	writes(work, (int64_t)dk_classifier_work(rows, vocab)), reads_tensor(in, rows * width),
	reads_tensor(weight, vocab * width), reads_indices(targets, rows))

/* ---- queue ------------------------------------------------------------------------------- */

static const char *host_failure(dk_queue *queue)
{
	host_queue *q = ddp_host_own(queue);

	pthread_mutex_lock(&q->lock);
	const bool failed = q->failure[0] != '\0';
	pthread_mutex_unlock(&q->lock);
	if (failed)
		return q->failure;
	return q->mixed != NULL ? q->mixed->table->failure(q->mixed) : dk_cpu_failure();
}

static void host_close(dk_queue *queue)
{
	host_queue *q = ddp_host_own(queue);

	/* A broken GPU leaves work undone, and does not begin it any more. */
	(void)fake_gpu_sync(q->stream);
	while (q->tasks != NULL)
		ddp_host_forget(q->tasks);
	pthread_mutex_destroy(&q->lock);
	dk_close(q->mixed);
	free(q);
}

static dk_queue *host_open(int device, void *stream, dk_type type, const char **why);

DDP_API extern const dk_table dk_cuda_table;
const dk_table dk_cuda_table = {
	.version = DK_TABLE_VERSION, .bytes = sizeof(dk_cuda_table), .open = host_open, .close = host_close,
	.copy = ddp_host_copy, .zero = host_zero, .update = host_update,
	.largest = host_largest, .sum_squares = host_sum_squares, .largest_at = host_largest_at,
	.squares_at = host_squares_at, .checksum_at = host_checksum_at, .scale = host_scale, .to_bf16 = host_to_bf16,
	.from_bf16 = host_from_bf16, .to_f16 = host_to_f16, .from_f16 = host_from_f16,
	.gemm = host_gemm, .linear_forward = host_linear_forward,
	.linear_backward_params = host_linear_backward_params,
	.linear_backward_input = host_linear_backward_input,
	.embedding_forward = host_embedding_forward, .embedding_backward = host_embedding_backward,
	.add_rows = host_add_rows, .layernorm_forward = host_layernorm_forward,
	.layernorm_backward = host_layernorm_backward, .gelu_forward = host_gelu_forward,
	.gelu_backward = host_gelu_backward, .add = host_add, .dropout = host_dropout,
	.attention_forward = host_attention_forward,
	.attention_backward = host_attention_backward, .classifier_forward = host_classifier_forward,
	.classifier_loss = host_classifier_loss, .classifier_backward = host_classifier_backward,
	.images = &ddp_host_image_kernels, .whole = &ddp_host_whole_kernels,
	.factors = &ddp_host_factor_kernels, .failure = host_failure,
	.graph_begin = ddp_host_graph_begin, .graph_end = ddp_host_graph_end,
	.graph_launch = ddp_host_graph_launch, .graph_free = ddp_host_graph_free,
};

/* The work has the threads and the floating-point control of the thread that enqueues it. */
static dk_queue *host_open(int device, void *stream, dk_type type, const char **why)
{
	host_queue *q = calloc(1, sizeof(*q));

	*why = type == DK_BF16 ? "the fake GPU's kernels have no DK_BF16; take DK_MIXED" : "out of memory for a queue of kernels";
	if (q != NULL && type == DK_MIXED)
		q->mixed = dk_open_mixed();
	if (q == NULL || type == DK_BF16 || (type == DK_MIXED && q->mixed == NULL)) {
		free(q);
		return NULL;
	}
	q->base = (dk_queue){ .table = &dk_cuda_table, .type = type };
	q->stream = fake_gpu_stream_of(device, stream);
	pthread_mutex_init(&q->lock, NULL);
	return &q->base;
}

/* ---- optimizers for whole tensors, and factors ---- */

static void run_mix(task *t, void **at)
{
	t->mix.ratio.over = at[2];
	t->mix.ratio.under = at[3];
	dk_mix(at[0], at[1], t->mix.a, t->mix.b, t->mix.has_ratio ? &t->mix.ratio : NULL, t->n[0]);
}

static void mix(dk_queue *queue, float *x, const float *y, float a, double b, const dk_ratio *ratio,
                int64_t n)
{
	const dk_ratio none = { 0 }, *r = ratio != NULL ? ratio : &none;

	ddp_host_enqueue(queue, &(task){ .run = run_mix, .n = { n }, .mix = { a, b, *r, ratio != NULL },
		.operands = { writes(x, n), reads(y, n), reads_double(r->over, 1), reads_double(r->under, 1) } });
}

HOST_KERNEL(adamw_direction, (dk_queue *queue, const float *param, float *grad, float *m, float *v, int64_t n,
	    const dk_update_args *args),
	FIELDS(.n = { n }, .update = *args),
	dk_adamw_direction(at[3], at[0], at[1], at[2], t->n[0], &t->update),
	writes(grad, n), writes(m, n), writes(v, n), reads(param, n))

HOST_KERNEL(sum_squares_at, (dk_queue *queue, double *sum, const float *x, int64_t n),
	FIELDS(.n = { n }), dk_sum_squares_at(at[0], at[1], t->n[0]),
	writes_double(sum, 1), reads(x, n))

HOST_KERNEL(mix_squares, (dk_queue *queue, float *x, const float *y, float a, float b, int64_t n),
	FIELDS(.n = { n }, .mix = { .a = a, .b = b }),
	dk_mix_squares(at[0], at[1], t->mix.a, (float)t->mix.b, t->n[0]),
	writes(x, n), reads(y, n))

HOST_KERNEL(column_squares, (dk_queue *queue, double *sums, const float *x, int64_t matrices, int64_t rows,
	    int64_t columns),
	FIELDS(.n = { matrices, rows, columns }), dk_column_squares(at[0], at[1], t->n[0], t->n[1], t->n[2]),
	writes_double(sums, matrices * columns), reads(x, matrices * rows * columns))

HOST_KERNEL(move_means, (dk_queue *queue, float *means, double *mean, const double *sums, int64_t matrices,
	    int64_t n, int64_t each, double weight),
	FIELDS(.n = { matrices, n, each }, .weight = weight),
	dk_move_means(at[0], at[1], at[2], t->n[0], t->n[1], t->n[2], t->weight),
	writes(means, matrices * n), writes_double(mean, matrices), reads_double(sums, matrices * n))

HOST_KERNEL(divide_by_roots, (dk_queue *queue, float *x, const dk_estimate *e),
	FIELDS(.estimate = *e),
	t->estimate.rows = at[1]; t->estimate.columns = at[2]; t->estimate.mean = at[3];
	dk_divide_by_roots(at[0], &t->estimate),
	writes(x, e->matrices * e->height * e->width), reads(e->rows, e->matrices * e->height),
	reads(e->columns, e->matrices * e->width), reads_double(e->mean, e->matrices))

const dk_whole_table ddp_host_whole_kernels = {
	.mix = mix, .adamw_direction = adamw_direction, .sum_squares_at = sum_squares_at,
	.mix_squares = mix_squares, .column_squares = column_squares, .move_means = move_means,
	.divide_by_roots = divide_by_roots,
};

/* ---- factors ---- */

HOST_KERNEL(random_rows, (dk_queue *queue, float *values, int64_t rows, int64_t columns, uint64_t stream),
	FIELDS(.n = { rows, columns }, .rows = { .stream = stream }),
	dk_random_rows(at[0], t->n[0], t->n[1], t->rows.stream),
	writes(values, rows * columns))

HOST_KERNEL(orthonormalize, (dk_queue *queue, float *factor, int64_t rank, int64_t length, bool refill,
	    uint64_t stream),
	FIELDS(.n = { rank, length }, .rows = { stream, refill }),
	dk_orthonormalize(at[0], t->n[0], t->n[1], t->rows.refill, t->rows.stream),
	writes(factor, rank * length))

static void run_restore(task *t, void **at)
{
	const dk_factors factors = { at[2], at[3], .rank = t->n[0], .rows = t->n[1], .columns = t->n[2] };

	dk_restore(at[0], at[1], t->factor, &factors);
}

static void restore(dk_queue *queue, float *values, float *rest, float share, const dk_factors *f)
{
	ddp_host_enqueue(queue, &(task){ .run = run_restore, .n = { f->rank, f->rows, f->columns }, .factor = share,
		.operands = { writes(values, f->rows * f->columns), writes(rest, f->rows * f->columns),
		              reads(f->left, f->rank * f->rows), reads(f->right, f->rank * f->columns) } });
}

const dk_factor_table ddp_host_factor_kernels = {
	.random_rows = random_rows, .orthonormalize = orthonormalize, .restore = restore,
};
