/* SPDX-License-Identifier: Apache-2.0 */
/* host_image_kernels: those of host_kernels.c for images. */
#include "cpu/cpu.h"
#include "tests/device/host_task.h"

static int64_t places(const dk_window *w)
{
	return w->batch * dk_window_places(w, w->height) * dk_window_places(w, w->width);
}

static int64_t image_numbers(const dk_window *w)
{
	return w->batch * w->height * w->width * w->channels;
}

static int64_t weights(const dk_window *w, int64_t outputs)
{
	return outputs * w->size * w->size * w->channels;
}

static operand writes_indices(const int32_t *address, int64_t n)
{
	return (operand){ address, (size_t)n * sizeof(*address), true, false };
}

HOST_KERNEL(convolution_forward, (dk_queue *queue, float *out, float *work, const float *in,
	    const float *weight, const float *bias, const dk_window *window, int64_t outputs),
	FIELDS(.window = *window, .n = { outputs }),
	dk_cpu_convolution_forward(at[0], at[1], at[2], at[3], at[4], &t->window, t->n[0]),
	writes(out, outputs * places(window)), writes(work, (int64_t)dk_convolution_work(window, outputs)),
	reads(in, image_numbers(window)), reads(weight, weights(window, outputs)), reads(bias, outputs))

HOST_KERNEL(convolution_backward_params, (dk_queue *queue, float *dweight, float *dbias, float *work,
	    const float *dout, const float *in, const dk_window *window, int64_t outputs),
	FIELDS(.window = *window, .n = { outputs }),
	dk_cpu_convolution_backward_params(at[0], at[1], at[2], at[3], at[4], &t->window, t->n[0]),
	writes(dweight, weights(window, outputs)), writes(dbias, outputs),
	writes(work, (int64_t)dk_convolution_work(window, outputs)), reads(dout, outputs * places(window)),
	reads(in, image_numbers(window)))

HOST_KERNEL(convolution_backward_input, (dk_queue *queue, float *din, float *work, const float *dout,
	    const float *weight, const dk_window *window, int64_t outputs),
	FIELDS(.window = *window, .n = { outputs }),
	dk_cpu_convolution_backward_input(at[0], at[1], at[2], at[3], &t->window, t->n[0]),
	writes(din, image_numbers(window)), writes(work, (int64_t)dk_convolution_work(window, outputs)),
	reads(dout, outputs * places(window)), reads(weight, weights(window, outputs)))

HOST_KERNEL(max_pool_forward, (dk_queue *queue, float *out, int32_t *which, const float *in,
	    const dk_window *window),
	FIELDS(.window = *window), dk_cpu_max_pool_forward(at[0], at[1], at[2], &t->window),
	writes(out, window->channels * places(window)),
	writes_indices(which, window->channels * places(window)), reads(in, image_numbers(window)))

HOST_KERNEL(max_pool_backward, (dk_queue *queue, float *din, const float *dout, const int32_t *which,
	    const dk_window *window),
	FIELDS(.window = *window), dk_cpu_max_pool_backward(at[0], at[1], at[2], &t->window),
	writes(din, image_numbers(window)), reads(dout, window->channels * places(window)),
	reads_indices(which, window->channels * places(window)))

HOST_KERNEL(average_pool_forward, (dk_queue *queue, float *out, const float *in, const dk_window *window),
	FIELDS(.window = *window), dk_cpu_average_pool_forward(at[0], at[1], &t->window),
	writes(out, window->channels * places(window)), reads(in, image_numbers(window)))

HOST_KERNEL(average_pool_backward, (dk_queue *queue, float *din, const float *dout, const dk_window *window),
	FIELDS(.window = *window), dk_cpu_average_pool_backward(at[0], at[1], &t->window),
	writes(din, image_numbers(window)), reads(dout, window->channels * places(window)))

HOST_KERNEL(batch_norm_moments, (dk_queue *queue, double *moments, float *work, const float *in, int64_t rows,
	    int64_t channels),
	FIELDS(.n = { rows, channels }), dk_cpu_batch_norm_moments(at[0], at[1], at[2], t->n[0], t->n[1]),
	writes_double(moments, 2 * channels), writes(work, (int64_t)dk_batch_norm_work(rows, channels)),
	reads(in, rows * channels))

HOST_KERNEL(batch_norm_statistics, (dk_queue *queue, float *mean, float *rstd, float *running_mean,
	    float *running_variance, double momentum, const double *moments, int64_t all_rows, int64_t channels),
	FIELDS(.momentum = momentum, .n = { all_rows, channels }),
	dk_cpu_batch_norm_statistics(at[0], at[1], at[2], at[3], t->momentum, at[4], t->n[0], t->n[1]),
	writes(mean, channels), writes(rstd, channels), writes(running_mean, channels),
	writes(running_variance, channels), reads_double(moments, 2 * channels))

HOST_KERNEL(batch_norm_apply, (dk_queue *queue, float *out, float *work, const float *in, const float *mean,
	    const float *rstd, const float *gain, const float *bias, int64_t rows, int64_t channels),
	FIELDS(.n = { rows, channels }),
	dk_cpu_batch_norm_apply(at[0], at[1], at[2], at[3], at[4], at[5], at[6], t->n[0], t->n[1]),
	writes(out, rows * channels), writes(work, (int64_t)dk_batch_norm_work(rows, channels)),
	reads(in, rows * channels), reads(mean, channels), reads(rstd, channels), reads(gain, channels),
	reads(bias, channels))

HOST_KERNEL(batch_norm_sums, (dk_queue *queue, double *sums, float *dgain, float *dbias, float *work,
	    const float *dout, const float *in, const float *mean, const float *rstd, int64_t rows,
	    int64_t channels),
	FIELDS(.n = { rows, channels }),
	dk_cpu_batch_norm_sums(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], t->n[0], t->n[1]),
	writes_double(sums, 2 * channels), writes(dgain, channels), writes(dbias, channels),
	writes(work, (int64_t)dk_batch_norm_work(rows, channels)), reads(dout, rows * channels),
	reads(in, rows * channels), reads(mean, channels), reads(rstd, channels))

HOST_KERNEL(batch_norm_input, (dk_queue *queue, float *din, float *work, const float *dout, const float *in,
	    const float *mean, const float *rstd, const float *gain, const double *sums, int64_t all_rows,
	    int64_t rows, int64_t channels),
	FIELDS(.n = { all_rows, rows, channels }),
	dk_cpu_batch_norm_input(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], t->n[0], t->n[1], t->n[2]),
	writes(din, rows * channels), writes(work, (int64_t)dk_batch_norm_work(rows, channels)),
	reads(dout, rows * channels), reads(in, rows * channels), reads(mean, channels), reads(rstd, channels),
	reads(gain, channels), reads_double(sums, 2 * channels))

HOST_KERNEL(batch_norm_eval, (dk_queue *queue, float *out, const float *in, const float *gain,
	    const float *bias, const float *running_mean, const float *running_variance, int64_t rows,
	    int64_t channels),
	FIELDS(.n = { rows, channels }),
	dk_cpu_batch_norm_eval(at[0], at[1], at[2], at[3], at[4], at[5], t->n[0], t->n[1]),
	writes(out, rows * channels), reads(in, rows * channels), reads(gain, channels), reads(bias, channels),
	reads(running_mean, channels), reads(running_variance, channels))

HOST_KERNEL(relu_forward, (dk_queue *queue, float *out, const float *in, int64_t n),
	FIELDS(.n = { n }), dk_cpu_relu_forward(at[0], at[1], t->n[0]),
	writes(out, n), reads(in, n))

HOST_KERNEL(relu_backward, (dk_queue *queue, float *grad, const float *out, int64_t n),
	FIELDS(.n = { n }), dk_cpu_relu_backward(at[0], at[1], t->n[0]),
	writes(grad, n), reads(out, n))

static void run_cross_entropy(task *t, void **at)
{
	if (at[2] != NULL)
		dk_cpu_cross_entropy_loss(at[2], at[0], at[1], t->n[0], t->n[1]);
	else
		t->queue->result = dk_cpu_cross_entropy(at[0], at[1], t->n[0], t->n[1]);
}

/* `loss` NULL: the result is the queue's. */
static task entropy_task(double *loss, float *logits, const int32_t *targets, int64_t rows, int64_t classes)
{
	return (task){ .run = run_cross_entropy, .n = { rows, classes }, .operands = {
		writes(logits, rows * classes), reads_indices(targets, rows), writes_double(loss, 1) } };
}

static double cross_entropy(dk_queue *queue, float *logits, const int32_t *targets, int64_t rows, int64_t classes)
{
	const task t = entropy_task(NULL, logits, targets, rows, classes);

	return ddp_host_fetch(queue, &t);
}

static void cross_entropy_loss(dk_queue *queue, double *loss, float *logits, const int32_t *targets,
                               int64_t rows, int64_t classes)
{
	const task t = entropy_task(loss, logits, targets, rows, classes);

	ddp_host_enqueue(queue, &t);
}

const dk_image_table ddp_host_image_kernels = {
	.convolution_forward = convolution_forward,
	.convolution_backward_params = convolution_backward_params,
	.convolution_backward_input = convolution_backward_input,
	.max_pool_forward = max_pool_forward, .max_pool_backward = max_pool_backward,
	.average_pool_forward = average_pool_forward,
	.average_pool_backward = average_pool_backward, .batch_norm_moments = batch_norm_moments,
	.batch_norm_statistics = batch_norm_statistics, .batch_norm_apply = batch_norm_apply,
	.batch_norm_sums = batch_norm_sums, .batch_norm_input = batch_norm_input,
	.batch_norm_eval = batch_norm_eval, .relu_forward = relu_forward,
	.relu_backward = relu_backward, .cross_entropy = cross_entropy,
	.cross_entropy_loss = cross_entropy_loss,
};
