/* SPDX-License-Identifier: Apache-2.0 */
/* kernels: the numeric work of training, at once on the host in f32, or on a
   queue (dk_use()). Each function states shapes; matrices are row-major and
   dense unless a leading dimension is given. On the host, functions use OpenMP
   threads; the same number of threads gives the same bits, and but for matrix
   products so does any other number. Backward functions add to the gradients of
   parameters and set those of activations, unless said. */
#ifndef DDP_KERNELS_H
#define DDP_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- where the work is done --------------------------------------------------- */

/* A queue of a device, with what its kernels need beside it; a backend of the kernels
   makes it (table.h). While a thread uses one, the functions below enqueue there and
   return, in the order of the calls, and their pointers are the device's memory, but
   for those that are said to be the host's. Functions with a result wait for it. */
typedef struct dk_queue dk_queue;

/* The type of a queue's tensors. Where a comment says f32, they are f32 for each type:
   statistics, and the optimizer's state. An array of bf16 is given by its
   address, as a float *. DK_TF32: of f32, which matrix products may round to TF32.
   DK_MIXED: of bf16, but gradients of parameters are f32: what backward functions and
   dk_add_rows() add to, what the latter adds, and what dk_update(), dk_largest(),
   dk_sum_squares() and dk_scale() take. DK_MIXED_F16: the same with IEEE's f16 in place of bf16, on the host alone. */
typedef enum dk_type { DK_F32, DK_BF16, DK_TF32, DK_MIXED, DK_MIXED_F16 } dk_type;

/* From now on, the calling thread's functions work on `queue`; NULL: on the host, as at the start. Returns the
   queue that was used before. Until the thread uses another queue, or NULL, the queue stays open, and CUDA's own
   calls of this thread are for its GPU. */
dk_queue *dk_use(dk_queue *queue);
/* Returns the queue that the calling thread uses. */
dk_queue *dk_in_use(void);

/* A queue on the host of DK_MIXED, whose functions are done when they return, and use
   OpenMP threads: matrix products by AMX or by AVX-512's dot products of bf16 where the
   processor has them, and all sums in f32. NULL: no memory. */
dk_queue *dk_open_mixed(void);
/* This queue is of DK_MIXED_F16: each function widens its operands, and computes in f32. */
dk_queue *dk_open_f16(void);
/* Waits for its work. NULL is allowed. */
void dk_close(dk_queue *queue);

/* Within the memory where the work is done, or between it and the host's; they do not
   overlap. A queue may read the host's memory after the return: leave it alone until a
   result of later work is there. */
void dk_copy(void *to, const void *from, size_t bytes);

/* Sets n elements to zero. */
void dk_zero(float *x, int64_t n);

/* How many threads the functions use on the host: OpenMP's number (OMP_NUM_THREADS), or
   what the calling thread has set. 1 without OpenMP. */
int dk_threads(void);
void dk_set_threads(int threads);

/* Treats denormal numbers as zero in the calling thread and in the threads
   that it starts afterwards; they would slow arithmetic down many times. */
void dk_flush_denormals(void);

/* Works on items first .. last - 1. */
typedef void (*dk_span_fn)(void *arg, int64_t first, int64_t last);

/* Calls fn for spans that together are 0 .. n - 1, each a multiple of `grain`
   items long but for the last, on at most dk_threads() threads; returns when
   all are done. With one thread, or one grain of work, it is a plain call. */
void dk_parallel(int64_t n, int64_t grain, dk_span_fn fn, void *arg);

/* Why earlier work failed (of the host: a library for matrix products or convolutions that
   ran out of memory), or NULL if none has. To be asked once a step. */
const char *dk_failure(void);

/* Work that comes again and again with the same shapes and addresses, while what lies there
   changes, can be captured as a graph, which one call launches. From dk_graph_begin() to
   dk_graph_end() the queue in use does nothing of what it is given: it captures that.
   Functions that have a result, and dk_copy() from or to the host's memory, are not for graphs:
   dk_graph_end() says so, and so it does where the thread meanwhile allocates memory of the
   device, or waits for it, by other means.
   The same work has to be done once before, uncaptured, so that all that is made on the way is. */
typedef struct dk_graph dk_graph;

/* False: nothing is captured, here (on the host functions work at once) or now (the queue has
   failed); work goes on as without the call. */
bool dk_graph_begin(void);
/* NULL: it could not be captured, and *why, which stays until the next capture, says why. The
   queue is as before dk_graph_begin(), and its caller does the work uncaptured. */
dk_graph *dk_graph_end(const char **why);
/* Launches the graph on the queue that captured it, which is in use. */
void dk_graph_launch(const dk_graph *graph);
/* Call this before the graph's queue is closed, in any thread, while no other thread works on the queue. The
   graph may be under way. NULL is allowed. */
void dk_graph_free(dk_graph *graph);

/* ---- optimizer: the same bits on every processor ---------------------------- */

/* A rule updates each element by itself, and keeps state of the element in `first` and `second`. */
typedef enum dk_rule {
	DK_ADAMW, /* m and v. With `coupled` it is Adam */
	DK_SGD,   /* momentum, which may be NULL where `momentum` is 0, and of which step 1 looks at nothing; none.
	             Weight decay has to be `coupled` */
	DK_LION   /* m; none. epsilon is not used; weight decay cannot be `coupled` */
} dk_rule;
enum { DK_RULES = DK_LION + 1 };

typedef struct dk_update_args {
	dk_rule rule;
	double learning_rate, weight_decay;
	bool coupled;      /* weight decay is a part of the gradient */
	double beta1, beta2, epsilon; /* AdamW's; the first two Lion's, too */
	double momentum;   /* SGD's */
	bool nesterov;     /* the same */
	int64_t step;      /* from 1, for the bias correction */
	double grad_scale; /* gradients are multiplied by it first: mean and clip */
	uint16_t *rounded; /* the new parameters in bf16, too, unless NULL */
} dk_update_args;

/* Updates n elements in PyTorch's order of operations; sets grad to zero on the way, while it is in the
   cache. param, first, second: f32. */
void dk_update(float *param, float *grad, float *first, float *second, int64_t n,
               const dk_update_args *args);

/* ---- of optimizers for whole tensors: f32 on queues of each type, the host's bits ------ */

/* The root of *over / count over that of *under / count, each of which is at least its
   `least`; 1 if one of them is 0. over and under, which are sums of squares, are where the
   work is done; over NULL: a 1 is divided. */
typedef struct dk_ratio {
	const double *over, *under;
	double over_least, under_least;
	int64_t count;
} dk_ratio;

/* x = a x + b y, where b is first multiplied by the ratio, unless that is NULL. y may be x. */
void dk_mix(float *x, const float *y, float a, double b, const dk_ratio *ratio, int64_t n);
/* grad becomes what AdamW would subtract from the parameter, decay included, at the
   learning rate 1, which args->learning_rate has to be. */
void dk_adamw_direction(const float *param, float *grad, float *m, float *v, int64_t n,
                        const dk_update_args *args);
/* *sum, where the work is done: what dk_sum_squares() would return. */
void dk_sum_squares_at(double *sum, const float *x, int64_t n);

/* x = a x + b y y */
void dk_mix_squares(float *x, const float *y, float a, float b, int64_t n);
/* sums [matrices, columns] = of x [matrices, rows, columns] the sums of the columns'
   squares: of each DK_ROWS_AT_ONCE rows in their order, and then of those sums. */
enum { DK_ROWS_AT_ONCE = 512 };
void dk_column_squares(double *sums, const float *x, int64_t matrices, int64_t rows, int64_t columns);
/* means [matrices, n] move towards sums / each by `weight`; mean [matrices] = their own mean
   then, unless it is NULL. */
void dk_move_means(float *means, double *mean, const double *sums, int64_t matrices, int64_t n,
                   int64_t each, double weight);

/* Estimates the squares of x [matrices, height, width] from the means of its rows [matrices, height]
   and columns [matrices, width]: row times column over the mean of the rows, which is at least
   least_mean. rows NULL: columns alone. */
typedef struct dk_estimate {
	const float *rows, *columns;
	const double *mean; /* [matrices] */
	double least_mean;
	float least;        /* of an estimate; above 0 */
	int64_t matrices, height, width;
} dk_estimate;

/* x /= the root of the estimate */
void dk_divide_by_roots(float *x, const dk_estimate *estimate);

/* ---- factors of low rank, their long sides in rows: f32 on queues of each type, the host's bits ---- */

/* values [rows, columns]: numbers that look normally distributed. Those of a row follow from the
   stream and the row alone, on every processor. */
void dk_random_rows(float *values, int64_t rows, int64_t columns, uint64_t stream);

/* Makes the rows of factor [rank, length] orthonormal, by modified Gram-Schmidt. A row that
   depends on those before it becomes 0, or, with `refill`, what dk_random_rows() has for it (so
   that what was 0 does not stay so). Element i of a product of rows is summed in lane i modulo
   DK_FACTOR_LANES, in double; then the upper half of the lanes is added to the lower, again and
   again. Takes one row after the other, on a GPU in one block: it is for a few rows. */
enum { DK_FACTOR_LANES = 1024 };
#define DK_FACTOR_ROUNDING 1e-6 /* of a row: f32's, and what its sums add */
void dk_orthonormalize(float *factor, int64_t rank, int64_t length, bool refill, uint64_t stream);

/* A matrix [rows, columns] as left^T right: left [rank, rows], right [rank, columns]. */
typedef struct dk_factors {
	const float *left, *right;
	int64_t rank, rows, columns;
} dk_factors;

/* values = left^T right, summed in the order of the rank; rest -= share values, unless it is
   NULL. By no library for matrix products: the same bits everywhere. */
void dk_restore(float *values, float *rest, float share, const dk_factors *factors);

/* ---- norms and the like ------------------------------------------------------------- */

/* The largest magnitude: an infinity if one is among them, NaN if a NaN is; of
   nothing, 0. */
float dk_largest(const float *x, int64_t n);

/* Sum of squares, accumulated in double, in so many running sums: of a GPU each is a thread's. */
enum { DK_SQUARES_SUMS = 32 };
double dk_sum_squares(const float *x, int64_t n);

/* n numbers from x on, where the work is done. Lists of arrays are in the host's memory, and may change after
   the call; a GPU has one launch for a hundred arrays and more. */
typedef struct dk_array {
	const float *x;
	int64_t n;
} dk_array;

/* Computes the same, but nobody waits: largest [count], where the work is done, is what dk_largest() would return
   of each array. */
void dk_largest_at(float *largest, const dk_array *arrays, int64_t count);

/* sums, where the work is done: of each piece of each of `count` arrays, [ceil(n / piece)] one behind
   the other, what dk_sum_squares() would return of it, if it is at most DK_PIECE_MAX long; longer ones
   are summed in one go. */
enum { DK_PIECE_MAX = 32768 };
void dk_squares_at(double *sums, const dk_array *arrays, int64_t count, int64_t piece);

/* sums [ceil(n / piece)], where the work is done: a checksum of the bits of each piece of x, the same on all
   processors. A piece lies in rows of DK_CHECKSUM_LANES words, the last one with zeros behind it. Word l of row r
   of R rows counts 2 (DK_CHECKSUM_LANES (R - r) + l) + 1 times, modulo 2^64: these numbers are odd and differ, so
   one or two flipped bits always change the sum. */
enum { DK_CHECKSUM_LANES = 16 };
void dk_checksum_at(uint64_t *sums, const float *x, int64_t n, int64_t piece);

/* x *= factor */
void dk_scale(float *x, int64_t n, float factor);

/* These convert between f32 and bf16, rounded to the nearest, ties to even. A NaN stays one. */
void dk_to_bf16(uint16_t *out, const float *in, int64_t n);
void dk_from_bf16(float *out, const uint16_t *in, int64_t n);

/* out = in times factor, between f32 and IEEE's f16, rounded likewise; what is too large becomes
   infinite. */
void dk_to_f16(uint16_t *out, const float *in, int64_t n, float factor);
void dk_from_f16(float *out, const uint16_t *in, int64_t n, float factor);

/* ---- matrix product --------------------------------------------------------- */

/* c [m, n] = a [m, k] b [k, n] + beta c. With a transposition, a is stored as
   [k, m] or b as [n, k]. lda, ldb, ldc: elements from one stored row to the next. */
typedef struct dk_gemm_args {
	bool transpose_a, transpose_b;
	int64_t m, n, k;
	const float *a;
	int64_t lda;
	const float *b;
	int64_t ldb;
	float beta;
	float *c;
	int64_t ldc;
} dk_gemm_args;

void dk_gemm(const dk_gemm_args *args);

/* ---- linear layer: out [rows, outputs] = in [rows, inputs] weight + bias ------- */

/* weight [inputs, outputs], bias [outputs]. residual [rows, outputs] is added
   if it is not NULL; it may be out itself. */
void dk_linear_forward(float *out, const float *in, const float *weight, const float *bias,
                       const float *residual, int64_t rows, int64_t inputs, int64_t outputs);
/* dweight and dbias += */
void dk_linear_backward_params(float *dweight, float *dbias, const float *dout,
                               const float *in, int64_t rows, int64_t inputs,
                               int64_t outputs);
/* din = */
void dk_linear_backward_input(float *din, const float *dout, const float *weight,
                              int64_t rows, int64_t inputs, int64_t outputs);

/* The layer and GELU behind it: before [rows, outputs] = in weight + bias, which backward wants, and
   out = gelu(before). As dk_linear_forward() and dk_gelu_forward(), but a GPU may round `before`
   after it has taken the GELU. */
void dk_linear_gelu_forward(float *out, float *before, const float *in, const float *weight,
                            const float *bias, int64_t rows, int64_t inputs, int64_t outputs);
/* The gradient of before [rows, inputs], where the layer's in is gelu(before): dbefore = what
   dk_linear_backward_input() and then dk_gelu_backward() make of it. */
void dk_linear_gelu_backward(float *dbefore, const float *dout, const float *weight, const float *before,
                             int64_t rows, int64_t inputs, int64_t outputs);

/* ---- layers ------------------------------------------------------------------- */

/* out [batch, length, width] = wte [vocab, width] at tokens [batch, length]
   + wpe [>= length, width] at the position. Tokens must be below vocab. */
void dk_embedding_forward(float *out, const int32_t *tokens, const float *wte,
                          const float *wpe, int64_t batch, int64_t length, int64_t width);
/* dwte and dwpe +=; dwte may be NULL: see dk_add_rows(). */
void dk_embedding_backward(float *dwte, float *dwpe, const float *dout,
                           const int32_t *tokens, int64_t batch, int64_t length,
                           int64_t width);

/* out [.., width] += values [count, width], row i to row rows[i], in order. */
void dk_add_rows(float *out, const int32_t *rows, const float *values, int64_t count,
                 int64_t width);

/* Normalises over the last dimension, with epsilon 1e-5. mean, rstd [rows], f32, are kept for backward. */
void dk_layernorm_forward(float *out, float *mean, float *rstd, const float *in,
                          const float *gain, const float *bias, int64_t rows,
                          int64_t width);
/* Adds to din, too: it carries the residual path. */
void dk_layernorm_backward(float *din, float *dgain, float *dbias, const float *dout,
                           const float *in, const float *mean, const float *rstd,
                           const float *gain, int64_t rows, int64_t width);

/* out = gelu(in), the tanh form; n elements. */
void dk_gelu_forward(float *out, const float *in, int64_t n);
/* grad *= gelu'(in), in place. */
void dk_gelu_backward(float *grad, const float *in, int64_t n);

/* out = a + b; out may be one of them. */
void dk_add(float *out, const float *a, const float *b, int64_t n);

/* Dropout draws from a seed and a counter. */
typedef struct dk_random {
	uint64_t seed, counter;
} dk_random;

/* Drops each element with `probability` (below 1) and scales the others, so that the mean
   stays. Forward, and backward of the gradient, with the same arguments: element i is
   dropped by number i % 4 of the four that Philox4x32-10 (Salmon et al., SC 2011) gives for
   the key `seed` of *random and its counter + `ahead` + i / 4. So seed and counter are all there
   is to save; a use takes (n + 3) / 4 counters. *random is read where the work is done, when it
   is done: a graph that is launched again draws from what lies there then. out may be in. */
void dk_dropout(float *out, const float *in, int64_t n, double probability, const dk_random *random,
                uint64_t ahead);

/* Causal attention. qkv [batch, length, 3, heads, width / heads];
   out [batch, length, width]; lse [batch, heads, length], f32, is kept for backward:
   the logarithm of each row's sum of exponentials. A head is at most
   DK_HEAD_MAX wide; on CUDA, backward takes heads x length up to 8388608. */
enum { DK_HEAD_MAX = 256 };
void dk_attention_forward(float *out, float *lse, const float *qkv, int64_t batch,
                          int64_t length, int64_t heads, int64_t width);
/* dqkv = */
void dk_attention_backward(float *dqkv, const float *dout, const float *qkv,
                           const float *out, const float *lse, int64_t batch,
                           int64_t length, int64_t heads, int64_t width);

/* Classifier: logits = in [rows, width] weight^T, weight [vocab, width], and
   the softmax cross-entropy against targets [rows]. Returns the sum of the
   rows' losses. `work`, of dk_classifier_work() f32, carries what backward
   needs: with DK_MIXED_F16 first of all the gradient of the logits, f32 [rows, vocab], which a
   program may multiply by a loss scale before backward (dk_scale()). */
size_t dk_classifier_work(int64_t rows, int64_t vocab);
double dk_classifier_forward(float *work, const float *in, const float *weight,
                             const int32_t *targets, int64_t rows, int64_t width,
                             int64_t vocab);
/* Computes the same, but nobody waits: the losses are added to *loss, where the work is done. */
void dk_classifier_loss(double *loss, float *work, const float *in, const float *weight,
                        const int32_t *targets, int64_t rows, int64_t width, int64_t vocab);
/* din =, dweight +=, of the summed loss. Uses `work` up. */
void dk_classifier_backward(float *din, float *dweight, float *work, const float *in,
                            const float *weight, const int32_t *targets, int64_t rows,
                            int64_t width, int64_t vocab);

/* ---- images: f32, on queues of DK_F32 and DK_TF32, and on the host's of DK_MIXED ------------ */

/* Images lie channels last, [batch, height, width, channels]. A square window goes over
   them in steps of `stride`, beginning `padding` outside; what lies outside is zero, and
   for a maximum nothing. size <= height + 2 padding and width + 2 padding, padding < size. */
typedef struct dk_window {
	int64_t batch, height, width, channels; /* of what it goes over */
	int64_t size, stride, padding;
} dk_window;

/* How many places it has along a side of `length`. */
static inline int64_t dk_window_places(const dk_window *window, int64_t length)
{
	return (length + 2 * window->padding - window->size) / window->stride + 1;
}

/* Convolution: out [batch, places, places, outputs], weight [outputs, size, size, channels]
   (PyTorch's in the memory format channels_last), bias [outputs] or NULL. `work`, of
   dk_convolution_work() f32 with as many threads, and on the same queue, as when it is used,
   holds nothing between calls. A GPU's queue has memory of its own for it: 0. */
size_t dk_convolution_work(const dk_window *window, int64_t outputs);
void dk_convolution_forward(float *out, float *work, const float *in, const float *weight,
                            const float *bias, const dk_window *window, int64_t outputs);
/* dweight and dbias +=; dbias may be NULL. */
void dk_convolution_backward_params(float *dweight, float *dbias, float *work,
                                    const float *dout, const float *in,
                                    const dk_window *window, int64_t outputs);
/* din = */
void dk_convolution_backward_input(float *din, float *work, const float *dout,
                                   const float *weight, const dk_window *window,
                                   int64_t outputs);

/* The largest of each window, and which of its size * size numbers it was, in `which`, as
   large as out: the first of equal ones, or the last that is not a number. */
void dk_max_pool_forward(float *out, int32_t *which, const float *in, const dk_window *window);
/* din = */
void dk_max_pool_backward(float *din, const float *dout, const int32_t *which,
                          const dk_window *window);
/* The mean of each window, with the zeros outside. */
void dk_average_pool_forward(float *out, const float *in, const dk_window *window);
/* din = */
void dk_average_pool_backward(float *din, const float *dout, const dk_window *window);

/* Batch normalisation of in [rows, channels], epsilon 1e-5; the rows are those of all
   places of all images. mean, rstd [channels] are kept for backward. Unless they are NULL,
   running_mean and running_variance [channels] move to the batch's mean and unbiased
   variance by `momentum`, as PyTorch's do. `work`, of dk_batch_norm_work() f32 and aligned
   to 8 bytes, holds nothing between calls. out may be in for _eval(). */
size_t dk_batch_norm_work(int64_t rows, int64_t channels);
void dk_batch_norm_forward(float *out, float *mean, float *rstd, float *running_mean,
                           float *running_variance, double momentum, float *work,
                           const float *in, const float *gain, const float *bias,
                           int64_t rows, int64_t channels);
/* din =, dgain and dbias += */
void dk_batch_norm_backward(float *din, float *dgain, float *dbias, float *work,
                            const float *dout, const float *in, const float *mean,
                            const float *rstd, const float *gain, int64_t rows,
                            int64_t channels);
/* These do the same and ReLU behind it, in fewer passes over memory, with the same bits as one after the other.
   `out` is what forward has set, and dout is its gradient, which is used up. */
void dk_batch_norm_relu_forward(float *out, float *mean, float *rstd, float *running_mean,
                                float *running_variance, double momentum, float *work,
                                const float *in, const float *gain, const float *bias,
                                int64_t rows, int64_t channels);
void dk_batch_norm_relu_backward(float *din, float *dgain, float *dbias, float *work, float *dout,
                                 const float *out, const float *in, const float *mean,
                                 const float *rstd, const float *gain, const float *bias,
                                 int64_t rows, int64_t channels);
/* Normalisation in parts, to normalise over more rows than these, such as those of other
   processes: what _moments() and _sums() leave in [2, channels] f64 is to be added up over
   all, before _statistics() and _input() take it, with the number of all rows. That of these
   may be 0. */
void dk_batch_norm_moments(double *moments, float *work, const float *in, int64_t rows,
                           int64_t channels);
void dk_batch_norm_statistics(float *mean, float *rstd, float *running_mean,
                              float *running_variance, double momentum, const double *moments,
                              int64_t all_rows, int64_t channels);
void dk_batch_norm_apply(float *out, float *work, const float *in, const float *mean,
                         const float *rstd, const float *gain, const float *bias, int64_t rows,
                         int64_t channels);
/* dgain and dbias += what these rows give. */
void dk_batch_norm_sums(double *sums, float *dgain, float *dbias, float *work, const float *dout,
                        const float *in, const float *mean, const float *rstd, int64_t rows,
                        int64_t channels);
/* din = */
void dk_batch_norm_input(float *din, float *work, const float *dout, const float *in,
                         const float *mean, const float *rstd, const float *gain,
                         const double *sums, int64_t all_rows, int64_t rows, int64_t channels);
/* Normalises by the running statistics. */
void dk_batch_norm_eval(float *out, const float *in, const float *gain, const float *bias,
                        const float *running_mean, const float *running_variance,
                        int64_t rows, int64_t channels);

/* out = max(in, 0); out may be in. */
void dk_relu_forward(float *out, const float *in, int64_t n);
/* grad = 0 where out is: what forward has set. */
void dk_relu_backward(float *grad, const float *out, int64_t n);

/* The sum of the rows' softmax cross-entropies of logits [rows, classes] against targets
   [rows]; its gradient takes the place of the logits. */
double dk_cross_entropy(float *logits, const int32_t *targets, int64_t rows, int64_t classes);
/* Computes the same, but nobody waits: the sum is added to *loss, where the work is done. */
void dk_cross_entropy_loss(double *loss, float *logits, const int32_t *targets, int64_t rows,
                           int64_t classes);

#ifdef __cplusplus
}
#endif

#endif
