/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/training.h"

#include <math.h>
#include <string.h>

#include "reduce/model_state.h"
#include "tests/support/options.h"
#include "tests/support/ranks.h"

enum { W1, B1, W2, B2 };

const ddp_param mlp_params[MLP_PARAMS] = {
	[W1] = { .name = "fc1.weight", .ndim = 2, .shape = { MLP_HIDDEN, MLP_INPUTS } },
	[B1] = { .name = "fc1.bias", .ndim = 1, .shape = { MLP_HIDDEN }, .no_decay = true },
	[W2] = { .name = "fc2.weight", .ndim = 2, .shape = { MLP_CLASSES, MLP_HIDDEN } },
	[B2] = { .name = "fc2.bias", .ndim = 1, .shape = { MLP_CLASSES }, .no_decay = true },
};

static const int64_t sizes[MLP_PARAMS] = {
	MLP_HIDDEN * MLP_INPUTS, MLP_HIDDEN, MLP_CLASSES * MLP_HIDDEN, MLP_CLASSES
};

/* Sanitizers do not check these functions: nothing that they look for happens here, and this code takes most of a
   training's time. */
#define SLOW __attribute__((no_sanitize("address", "thread", "undefined")))

/* splitmix64: a number in [-1, 1) for each index. */
SLOW static double noise(uint64_t index)
{
	uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

SLOW void mlp_make_sample(int64_t index, mlp_sample *sample)
{
	double score[2] = { 0 };

	for (int i = 0; i < MLP_INPUTS; i++) {
		sample->input[i] = (float)noise((uint64_t)(index * MLP_INPUTS + i));
		score[i % 2] += sample->input[i];
	}
	sample->label = (score[0] > 0) + 2 * (score[1] > 0);
}

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	(void)self;
	mlp_make_sample(index, sample);
	return DDP_OK;
}

ddp_dataset mlp_dataset(int64_t size)
{
	return (ddp_dataset){ .size = size, .sample_bytes = sizeof(mlp_sample), .read = read_sample };
}

void mlp_init(int param, float *data, int64_t elements)
{
	double scale = param == W1 ? 0.3 : param == W2 ? 0.2 : 0.01;

	for (int64_t i = 0; i < elements; i++)
		data[i] = (float)(scale * noise((uint64_t)(1000000 * (param + 1) + i)));
}

void mlp_start(ddp_model *model)
{
	float values[MLP_HIDDEN * MLP_INPUTS];

	for (int p = 0; p < MLP_PARAMS; p++) {
		mlp_init(p, values, sizes[p]);
		CHECK_OK(ddp_place_write(&model->place, ddp_model_param_data(model, p), values, (size_t)sizes[p] * sizeof(*values)));
	}
}

float mlp_first(ddp_model *model, int param)
{
	float value;

	CHECK_OK(ddp_place_read(&model->place, &value, ddp_model_param_data(model, param), sizeof(value)));
	return value;
}

void mlp_set_first(ddp_model *model, int param, float value)
{
	CHECK_OK(ddp_place_write(&model->place, ddp_model_param_data(model, param), &value, sizeof(value)));
}

SLOW double mlp_gradients(const double *const *params, const mlp_sample *sample, double *const *grads)
{
	double hidden[MLP_HIDDEN], probability[MLP_CLASSES], sum = 0, greatest = -INFINITY;

	for (int h = 0; h < MLP_HIDDEN; h++) {
		double s = params[B1][h];
		for (int i = 0; i < MLP_INPUTS; i++)
			s += params[W1][h * MLP_INPUTS + i] * sample->input[i];
		hidden[h] = tanh(s);
	}
	for (int c = 0; c < MLP_CLASSES; c++) {
		double s = params[B2][c];
		for (int h = 0; h < MLP_HIDDEN; h++)
			s += params[W2][c * MLP_HIDDEN + h] * hidden[h];
		probability[c] = s;
		greatest = fmax(greatest, s);
	}
	for (int c = 0; c < MLP_CLASSES; c++)
		sum += probability[c] = exp(probability[c] - greatest);
	for (int c = 0; c < MLP_CLASSES; c++)
		probability[c] /= sum;

	double back[MLP_HIDDEN] = { 0 };
	for (int c = 0; c < MLP_CLASSES; c++) {
		double d = probability[c] - (c == sample->label);
		grads[B2][c] += d;
		for (int h = 0; h < MLP_HIDDEN; h++) {
			grads[W2][c * MLP_HIDDEN + h] += d * hidden[h];
			back[h] += d * params[W2][c * MLP_HIDDEN + h];
		}
	}
	for (int h = 0; h < MLP_HIDDEN; h++) {
		double d = back[h] * (1 - hidden[h] * hidden[h]);
		grads[B1][h] += d;
		for (int i = 0; i < MLP_INPUTS; i++)
			grads[W1][h * MLP_INPUTS + i] += d * sample->input[i];
	}
	return -log(probability[sample->label]);
}

/* Pointers to the four tensors in one packed array. */
static void split(double *packed, double **tensors)
{
	for (int p = 0; p < MLP_PARAMS; p++) {
		tensors[p] = packed;
		packed += sizes[p];
	}
}

/* The model may be on a device. */
static ddp_status read_from(const ddp_model *model, int p, const float *from, float *to)
{
	return ddp_place_read(&model->place, to, from, (size_t)sizes[p] * sizeof(*to));
}

static ddp_status add_gradient(ddp_model *model, int p, const double *grad)
{
	float sum[MLP_HIDDEN * MLP_INPUTS];
	ddp_status status = read_from(model, p, ddp_model_param_grad(model, p), sum);

	for (int64_t i = 0; i < sizes[p] && status == DDP_OK; i++)
		sum[i] += (float)grad[i];
	return status == DDP_OK ? ddp_place_write(&model->place, ddp_model_param_grad(model, p), sum,
	                                          (size_t)sizes[p] * sizeof(*sum))
	                        : status;
}

ddp_status mlp_batch(void *user, ddp_model *model, const ddp_batch *batch, double *weight,
                     double *loss_sum)
{
	float packed[MLP_ELEMENTS];
	double values[MLP_ELEMENTS], grads[MLP_ELEMENTS] = { 0 };
	double *value[MLP_PARAMS], *grad[MLP_PARAMS];
	const mlp_sample *samples = batch->data;

	(void)user;
	split(values, value);
	split(grads, grad);
	mlp_pack(model, packed);
	for (int i = 0; i < MLP_ELEMENTS; i++)
		values[i] = packed[i];
	for (int64_t s = 0; s < batch->samples; s++)
		*loss_sum += mlp_gradients((const double *const *)value, &samples[s], grad);
	*weight += (double)batch->samples;

	ddp_model_set_phase(model, DDP_PHASE_BACKWARD);
	for (int p = MLP_PARAMS - 1; p >= 0; p--) {
		ddp_status status = add_gradient(model, p, grad[p]);
		if (status == DDP_OK)
			status = ddp_model_grad_ready(model, p);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

void mlp_pack(ddp_model *model, float *out)
{
	for (int p = 0; p < MLP_PARAMS; p++) {
		CHECK_OK(read_from(model, p, ddp_model_param_data(model, p), out));
		out += sizes[p];
	}
}

typedef struct moments {
	double m[MLP_ELEMENTS], v[MLP_ELEMENTS];
} moments;

static void adamw(const mlp_reference *given, int64_t step, double *params, const double *grads,
                  double scale, moments *state)
{
	int64_t e = 0;

	for (int p = 0; p < MLP_PARAMS; p++) {
		double decay = mlp_params[p].no_decay ? 0 : given->weight_decay;
		for (int64_t end = e + sizes[p]; e < end; e++) {
			double g = grads[e] * scale;
			state->m[e] = 0.9 * state->m[e] + 0.1 * g;
			state->v[e] = 0.999 * state->v[e] + 0.001 * g * g;
			double m = state->m[e] / (1 - pow(0.9, (double)step));
			double v = state->v[e] / (1 - pow(0.999, (double)step));
			params[e] -= given->learning_rate * (decay * params[e] + m / (sqrt(v) + 1e-8));
		}
	}
}

int mlp_train_reference(const mlp_reference *given, double *params)
{
	double *value[MLP_PARAMS], *grad[MLP_PARAMS], grads[MLP_ELEMENTS];
	int64_t step = 0, count;
	moments state = { 0 };
	ddp_sampler *sampler;

	split(params, value);
	split(grads, grad);
	for (int p = 0; p < MLP_PARAMS; p++) {
		float start[MLP_HIDDEN * MLP_INPUTS];
		mlp_init(p, start, sizes[p]);
		for (int64_t i = 0; i < sizes[p]; i++)
			value[p][i] = start[i];
	}
	if (ddp_sampler_create(given->samples, 1, 0, given->seed, true, DDP_TAIL_UNEVEN,
	                       &sampler) != DDP_OK)
		return -1;
	for (int64_t epoch = 0; step < given->steps; epoch++) {
		if (ddp_sampler_set_epoch(sampler, epoch) != DDP_OK)
			break;
		const int64_t *indices = ddp_sampler_indices(sampler, &count);
		for (int64_t i = 0; i < count && step < given->steps; i += given->batch) {
			int64_t samples = count - i < given->batch ? count - i : given->batch;
			memset(grads, 0, sizeof(grads));
			for (int64_t s = 0; s < samples; s++) {
				mlp_sample sample;
				mlp_make_sample(indices[i + s], &sample);
				mlp_gradients((const double *const *)value, &sample, grad);
			}
			adamw(given, ++step, params, grads, 1 / (double)samples, &state);
		}
	}
	ddp_sampler_free(sampler);
	return step == given->steps ? 0 : -1;
}

/* ---- trainings of it --------------------------------------------------------------------- */

const ddp_shard shards[SHARDS] = { DDP_SHARD_NONE, DDP_SHARD_STATE, DDP_SHARD_GRADIENTS };

training start(ddp_context *context, const setup *with)
{
	const ddp_dataset dataset = mlp_dataset(SAMPLES);
	ddp_comm *comm = with->comm != NULL ? with->comm : ddp_world(context);
	const ddp_model_options model_options = {
		DDP_MODEL_OPTIONS_FIELDS,
		.learning_rate = 0.01, .weight_decay = 0.1, .clip_norm = with->clip_norm,
		.bucket_mb = with->bucket_bytes / (1 << 20), .shard = with->shard,
		.loss_scaling.kind = with->scaled ? DDP_SCALING_DYNAMIC : DDP_SCALING_NONE, .comm = with->comm,
	};
	const ddp_loader_options loader_options = {
		DDP_LOADER_OPTIONS_FIELDS,
		.batch_size = GLOBAL_BATCH / ddp_comm_size(comm) / with->accumulate,
		.seed = SEED, .tail = DDP_TAIL_UNEVEN, .comm = with->comm,
	};
	training t;

	CHECK_OK(ddp_model_create(context, mlp_params, MLP_PARAMS, &model_options, &t.model));
	/* Only rank 0's start counts. */
	for (int p = 0; p < MLP_PARAMS && ddp_comm_rank(comm) == 0; p++)
		mlp_init(p, ddp_model_param_data(t.model, p), ddp_model_param_count(t.model, p));
	CHECK_OK(ddp_model_broadcast_params(t.model));
	CHECK_OK(ddp_loader_create(context, &dataset, &loader_options, &t.loader));
	return t;
}

void finish(training t)
{
	ddp_loader_free(t.loader);
	ddp_model_free(t.model);
}

void train(ddp_context *context, const setup *with, float *out)
{
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = with->steps, .accumulate = with->accumulate,
		.checkpoint_dir = with->checkpoint_dir, .resume = with->resume,
	};
	ddp_summary summary;

	const training t = start(context, with);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.last_loss < summary.first_loss || with->resume);
	mlp_pack(t.model, out);
	finish(t);
}
