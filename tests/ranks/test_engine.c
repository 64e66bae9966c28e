/*
 * reduce: random models on random worlds, reduced in every way, in random order, with random
 * parts unused and ranks that finish early, end each step where a plain loop does that gathers all ranks'
 * gradients and averages them. Gradients are small whole numbers, of which all sums, and
 * all sums of squares, are exact: so the plain loop's bits are wanted. Gradients that are
 * not show that the ways agree to the bit among themselves.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/folder.h"

enum { PARAMS_MAX = 6, RANKS_MAX = 4, STEPS = 3, ROWS_MAX = 5, ELEMENTS_MAX = 16384 };

/* What a case is made of; all ranks draw the same. */
typedef struct scenario {
	unsigned int seed;
	int ranks, node_of[RANKS_MAX];
	int count;
	char names[PARAMS_MAX][16];
	ddp_param params[PARAMS_MAX];
	ddp_model_options options;
	int accumulate;
	bool own_params, own_grads;       /* in memory of the program */
	bool whole;                       /* numbers, so that sums are exact */
	unsigned int users[STEPS + 1][PARAMS_MAX]; /* by step: a bit for each rank with a gradient of it */
	bool early[PARAMS_MAX];           /* it is used in a step's first micro-batch only */
	int last;                         /* the rank that trains to the end, and has samples */
	int joins[RANKS_MAX];             /* the step from which on a rank has finished */
} scenario;

static int draw(unsigned int *seed, int least, int most)
{
	return least + (int)((double)rand_r(seed) / ((double)RAND_MAX + 1) * (most - least + 1));
}

/* The same for all who ask the same. */
static unsigned int mix(unsigned int a, unsigned int b)
{
	unsigned int x = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu;

	x ^= x >> 15;
	x *= 0x2c1b3c6du;
	return x ^ x >> 13;
}

/* What is not trained, and what has a group of its own. At least one is trained. */
static void draw_kinds(scenario *s, unsigned int *seed)
{
	static const ddp_param_group groups[] = {
		{ .learning_rate_factor = 0.5 }, { .weight_decay = 0.1 },
		{ .learning_rate_factor = 2, .weight_decay = 0.3 },
	};
	const int always = draw(seed, 0, s->count - 1);

	for (int p = 0; p < s->count; p++) {
		ddp_param *param = &s->params[p];
		int drawn = draw(seed, 0, 9);
		if (drawn < 4 && p != always && param->sparse_rows == 0)
			param->kind = (ddp_param_kind)(DDP_PARAM_FROZEN + drawn);
		if (drawn >= 6 && drawn < 9)
			param->group = &groups[drawn - 6];
	}
}

static void draw_params(scenario *s, unsigned int *seed)
{
	s->count = draw(seed, 1, PARAMS_MAX);
	for (int p = 0; p < s->count; p++) {
		ddp_param *param = &s->params[p];
		int kind = draw(seed, 0, 5);

		snprintf(s->names[p], sizeof(s->names[p]), "p%d", p);
		*param = (ddp_param){ .name = s->names[p], .ndim = 1, .shape = { draw(seed, 1, 40) },
		                      .no_decay = draw(seed, 0, 1) == 1 };
		if (kind == 0)
			*param = (ddp_param){ .name = s->names[p] };
		else if (kind <= 2)
			param->shape[0] = draw(seed, 500, 2500);
		else if (kind == 3) {
			param->ndim = 2;
			param->shape[0] = draw(seed, 20, 60);
			param->shape[1] = draw(seed, 1, 30);
			param->sparse_rows = ROWS_MAX;
			param->rows_only = draw(seed, 0, 1) == 1;
		}
	}
}

static void draw_options(scenario *s, unsigned int *seed)
{
	s->options = (ddp_model_options){
		.size = sizeof(s->options),
		.optimizer = draw(seed, 0, 2) == 0 ? DDP_SGD : DDP_ADAMW,
		.learning_rate = 0.01 * draw(seed, 1, 9), .weight_decay = 0.1 * draw(seed, 0, 2),
		.momentum = draw(seed, 0, 1) * 0.9, .clip_norm = draw(seed, 0, 1) * 0.5,
		.bucket_mb = draw(seed, 1, 200) * 64.0 / (1 << 20),
		.first_bucket_mb = draw(seed, 1, 100) * 64.0 / (1 << 20),
		.bf16_params = s->seed % 2 == 0,
	};
}

static void draw_uses(scenario *s, unsigned int *seed)
{
	s->options.unused = (ddp_unused)draw(seed, 0, 2);
	s->options.loss = (ddp_loss)draw(seed, 0, 2);
	for (int p = 0; p < s->count; p++) {
		s->early[p] = s->params[p].sparse_rows == 0 && draw(seed, 0, 4) == 0;
		for (int step = 1; step <= STEPS; step++) {
			int kind = draw(seed, 0, 4);
			s->users[step][p] = kind == 0 ? 0 : kind == 1 ? (unsigned)draw(seed, 0, 15) : 15;
			if (s->options.unused == DDP_UNUSED_STATIC)
				s->users[step][p] = s->users[1][p];
		}
	}
}

static void draw_scenario(scenario *s, unsigned int number)
{
	unsigned int seed = s->seed = mix(number, 1);

	s->whole = number % 3 != 0;
	s->own_params = number % 2 == 0;
	s->own_grads = number % 4 != 1;
	s->ranks = draw(&seed, 1, RANKS_MAX);
	for (int r = 0; r < s->ranks; r++)
		s->node_of[r] = draw(&seed, 0, r < 3 ? r : 2);
	draw_params(s, &seed);
	draw_kinds(s, &seed);
	draw_options(s, &seed);
	/* Their other forms. */
	if (number % 2 == 1 && s->options.optimizer == DDP_ADAMW)
		s->options.optimizer = DDP_ADAM;
	s->options.nesterov = number % 2 == 1 && s->options.optimizer == DDP_SGD && s->options.momentum > 0;
	s->accumulate = draw(&seed, 1, 3);
	draw_uses(s, &seed);
	s->last = draw(&seed, 0, s->ranks - 1);
	for (int r = 0; r < s->ranks; r++)
		s->joins[r] = r != s->last && draw(&seed, 0, 2) == 0 ? draw(&seed, 1, STEPS) : STEPS + 1;
}

/* ---- gradients ------------------------------------------------------------------- */

static bool is_trained(const scenario *s, int p)
{
	return s->params[p].kind == DDP_PARAM_TRAINED;
}

static bool has_dense(const scenario *s, int p)
{
	return is_trained(s, p) && !s->params[p].rows_only;
}

/* What a rank's forward writes to a buffer: the mean over ranks is a whole number. */
static float buffer(const scenario *s, int rank, int step, int64_t i)
{
	return (float)(s->ranks * ((rank + 2) * step + (int)(i % 5)));
}

static bool is_buffer(const scenario *s, int p)
{
	return s->params[p].kind > DDP_PARAM_FROZEN;
}

static float gradient(const scenario *s, int rank, int step, int batch, int p, int64_t i)
{
	unsigned int x = mix(mix(s->seed + (unsigned)rank, (unsigned)(step * 8 + batch)),
	                     (unsigned)p * 65536 + (unsigned)i);

	return s->whole ? (float)((int)(x % 17) - 8) : sinf((float)x);
}

static bool has_joined(const scenario *s, int rank, int step)
{
	return step >= s->joins[rank];
}

static int active_ranks(const scenario *s, int step)
{
	int count = 0;

	for (int r = 0; r < s->ranks; r++)
		count += !has_joined(s, r, step);
	return count;
}

static bool is_used(const scenario *s, int rank, int step, int p)
{
	return is_trained(s, p) && s->users[step][p] >> rank % RANKS_MAX & 1;
}

/* What a micro-batch adds to a dense gradient. */
static bool adds(const scenario *s, int rank, int step, int batch, int p)
{
	return has_dense(s, p) && is_used(s, rank, step, p) && (batch == 0 || !s->early[p]);
}

/* Whether a step is to leave it as it is: a static graph is that of the first step of all ranks. */
static bool is_left(const scenario *s, int step, int p)
{
	unsigned int used = 0;
	bool known = false;

	if (s->options.unused == DDP_UNUSED_ZERO)
		return false;
	for (int i = 1; i <= step && s->options.unused == DDP_UNUSED_STATIC; i++)
		known = known || active_ranks(s, i) == s->ranks;
	for (int r = 0; r < s->ranks; r++)
		used |= (known || !has_joined(s, r, step)) && is_used(s, r, step, p);
	return used == 0;
}

static double weight(const scenario *s, int rank, int step)
{
	return rank == s->last ? step : (rank + step) % 3; /* a rank may have no sample */
}

/* Rows of the step's last micro-batch. */
static int rows(const scenario *s, int rank, int step, int p, int32_t *index)
{
	unsigned int x = mix(s->seed + 77 + (unsigned)rank, (unsigned)(step * 8 + p));
	int count = s->params[p].sparse_rows == 0 ? 0 : (int)(x % (ROWS_MAX + 1));

	for (int i = 0; i < count; i++)
		index[i] = (int32_t)(mix(x, (unsigned)i) % (unsigned)s->params[p].shape[0]);
	return count;
}

static int64_t elements(const ddp_param *param)
{
	int64_t count = 1;

	for (int d = 0; d < param->ndim; d++)
		count *= param->shape[d];
	return count;
}

/* ---- the plain loop -------------------------------------------------------------- */

typedef struct plain {
	float params[PARAMS_MAX][ELEMENTS_MAX];
	float m[PARAMS_MAX][ELEMENTS_MAX], v[PARAMS_MAX][ELEMENTS_MAX];
	float sums[PARAMS_MAX][ELEMENTS_MAX];
	int missed[PARAMS_MAX]; /* steps */
} plain;

static void plain_sum(const scenario *s, int step, int p, float *sums)
{
	const int64_t count = elements(&s->params[p]);
	int32_t index[ROWS_MAX];

	memset(sums, 0, (size_t)count * sizeof(*sums));
	for (int r = 0; r < s->ranks; r++) {
		if (has_joined(s, r, step) || !is_used(s, r, step, p))
			continue;
		for (int b = 0; b < s->accumulate; b++) {
			for (int64_t i = 0; i < count && adds(s, r, step, b, p); i++)
				sums[i] += gradient(s, r, step, b, p, i);
		}
		int n = rows(s, r, step, p, index);
		int64_t width = n > 0 ? count / s->params[p].shape[0] : 0;
		for (int64_t i = 0; i < n * width; i++)
			sums[index[i / width] * width + i % width] += gradient(s, r, step, 7, p, i);
	}
}

static void plain_update(const scenario *s, plain *x, int step, int p, double scale)
{
	const ddp_model_options *o = &s->options;
	const ddp_param_group *group = s->params[p].group;
	const double decay = s->params[p].no_decay ? 0 : group != NULL ? group->weight_decay : o->weight_decay;
	const double rate = o->learning_rate * (group != NULL ? group->learning_rate_factor : 1);
	const int64_t count = elements(&s->params[p]);

	if (!is_trained(s, p))
		return;
	if (is_left(s, step, p)) {
		x->missed[p]++;
		return;
	}
	step -= x->missed[p];

	if (o->optimizer != DDP_SGD)
		dk_adamw(x->params[p], x->sums[p], x->m[p], x->v[p], count,
		         &(dk_adamw_args){ .learning_rate = rate, .beta1 = 0.9, .beta2 = 0.999,
		                           .epsilon = 1e-8, .weight_decay = decay, .step = step,
		                           .grad_scale = scale, .coupled = o->optimizer == DDP_ADAM });
	else
		dk_sgd(x->params[p], x->sums[p], o->momentum != 0 ? x->m[p] : NULL, count,
		       &(dk_sgd_args){ .learning_rate = rate, .momentum = o->momentum,
		                       .weight_decay = decay, .step = step, .grad_scale = scale,
		                       .nesterov = o->nesterov });
}

static void plain_buffer(const scenario *s, plain *x, int rank, int step, int p)
{
	int first = 0;

	while (has_joined(s, first, step))
		first++;
	for (int64_t i = 0; i < elements(&s->params[p]); i++) {
		float sum = 0;
		for (int r = 0; r < s->ranks; r++)
			sum += has_joined(s, r, step) ? 0 : buffer(s, r, step, i);
		if (s->params[p].kind == DDP_BUFFER_LOCAL && has_joined(s, rank, step))
			continue;
		x->params[p][i] = s->params[p].kind == DDP_BUFFER_MEAN ? sum * (1 / (float)active_ranks(s, step))
		                : buffer(s, s->params[p].kind == DDP_BUFFER_LOCAL ? rank : first, step, i);
	}
}

static double plain_step(const scenario *s, plain *x, int rank, int step)
{
	double squares = 0, all = 0, scale;

	for (int r = 0; r < s->ranks; r++)
		all += has_joined(s, r, step) ? 0 : weight(s, r, step);
	if (s->options.loss != DDP_LOSS_SUM)
		all = s->options.loss == DDP_LOSS_MEAN ? s->ranks : active_ranks(s, step);
	for (int p = 0; p < s->count; p++) {
		plain_sum(s, step, p, x->sums[p]);
		squares += dk_sum_squares(x->sums[p], elements(&s->params[p]));
	}
	double norm = sqrt(squares) / all;
	scale = 1 / all;
	if (s->options.clip_norm > 0)
		scale = scale * fmin(s->options.clip_norm / (norm + 1e-6), 1);
	for (int p = 0; p < s->count; p++) {
		plain_update(s, x, step, p, scale);
		if (is_buffer(s, p))
			plain_buffer(s, x, rank, step, p);
	}
	return norm;
}

/* ---- the library ----------------------------------------------------------------- */

/* Where the model is. */
typedef struct place {
	ddp_device *device;       /* the asynchronous test device; NULL: the host */
	ddp_device_queue *stream;
	float *rows;              /* there, and behind them their indices */
} place;

static const place on_host;
static place on_device; /* of this rank */
static const place *where = &on_host;

/* Between the model's memory and the host's. */
static void copy(void *to, const void *from, size_t bytes)
{
	if (where->device == NULL) {
		memcpy(to, from, bytes);
		return;
	}
	CHECK_OK(ddp_device_copy(where->device, where->stream, to, from, bytes));
	CHECK_OK(ddp_device_queue_sync(where->device, where->stream));
}

static size_t bytes_of(const ddp_model *model, int p)
{
	return (size_t)ddp_param_count(model, p) * sizeof(float);
}

static void add_gradients(const scenario *s, ddp_model *model, int rank, int step, int batch)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (adds(s, rank, step, batch, p)) {
			copy(values, ddp_param_grad(model, p), bytes_of(model, p));
			for (int64_t i = 0; i < ddp_param_count(model, p); i++)
				values[i] += gradient(s, rank, step, batch, p, i);
			copy(ddp_param_grad(model, p), values, bytes_of(model, p));
		}
		if (s->early[p] && adds(s, rank, step, batch, p) && batch < s->accumulate - 1)
			CHECK_OK(ddp_grad_ready(model, p)); /* sync is off */
	}
}

static void write_buffers(const scenario *s, ddp_model *model, int rank, int step)
{
	static float values[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		if (!is_buffer(s, p))
			continue;
		for (int64_t i = 0; i < ddp_param_count(model, p); i++)
			values[i] = buffer(s, rank, step, i);
		copy(ddp_param_data(model, p), values, bytes_of(model, p));
	}
}

static void add_the_rows(const scenario *s, ddp_model *model, int rank, int step, int p)
{
	static float values[ELEMENTS_MAX];
	int32_t index[ROWS_MAX];
	int count = !is_used(s, rank, step, p) ? 0 : rows(s, rank, step, p, index);

	if (count == 0)
		return;
	int64_t width = ddp_param_count(model, p) / s->params[p].shape[0];
	for (int64_t i = 0; i < count * width; i++)
		values[i] = gradient(s, rank, step, 7, p, i);
	if (where->device == NULL) {
		CHECK_OK(ddp_grad_rows(model, p, index, values, count));
		return;
	}
	int32_t *index_there = (int32_t *)(void *)(where->rows + ROWS_MAX * width);
	copy(where->rows, values, (size_t)(count * width) * sizeof(float));
	copy(index_there, index, (size_t)count * sizeof(*index));
	CHECK_OK(ddp_grad_rows(model, p, index_there, where->rows, count));
}

/* In an order of its own on each rank; what is not used may be announced or not. */
static void announce(const scenario *s, ddp_model *model, int rank, int step)
{
	unsigned int seed = mix(s->seed, (unsigned)(rank * 64 + step));
	int order[PARAMS_MAX];

	for (int p = 0; p < s->count; p++) {
		int at = draw(&seed, 0, p);
		order[p] = order[at];
		order[at] = p;
	}
	for (int i = 0; i < s->count; i++) {
		int p = order[i];
		if (!is_trained(s, p))
			continue;
		const bool late = s->accumulate == 1 || !s->early[p];
		const int how = draw(&seed, 0, 2);
		if (is_used(s, rank, step, p) && late)
			CHECK_OK(ddp_grad_ready(model, p));
		else if (how == 0)
			CHECK_OK(ddp_grad_unused(model, p));
		else if (how == 1 && s->options.unused == DDP_UNUSED_ZERO)
			CHECK_OK(ddp_grad_ready(model, p));
		add_the_rows(s, model, rank, step, p);
	}
}

static void train_step(const scenario *s, ddp_model *model, int rank, int step, ddp_step_stats *stats)
{
	if (has_joined(s, rank, step)) {
		CHECK_OK(ddp_join(model, stats));
		return;
	}
	write_buffers(s, model, rank, step);
	for (int b = 0; b < s->accumulate; b++) {
		CHECK_OK(ddp_set_sync(model, b == s->accumulate - 1));
		add_gradients(s, model, rank, step, b);
		if (b == s->accumulate - 1)
			announce(s, model, rank, step);
	}
	if ((s->seed + (unsigned)step) % 2 == 0 || active_ranks(s, step) < s->ranks) {
		CHECK_OK(ddp_step(model, weight(s, rank, step), 1, stats));
		return;
	}
	CHECK_OK(ddp_reduce_grads(model, weight(s, rank, step), 1, NULL));
	CHECK_OK(ddp_update_params(model, stats));
}

/* All but a buffer is in bf16, too, if the scenario says so. */
static void expect_rounded(const scenario *s, ddp_model *model, int p)
{
	static uint16_t nearest[ELEMENTS_MAX], got[ELEMENTS_MAX];
	static float masters[ELEMENTS_MAX];
	const uint16_t *rounded = ddp_param_bf16(model, p);
	const int64_t count = ddp_param_count(model, p);

	CHECK((rounded != NULL) == (s->options.bf16_params && !is_buffer(s, p)));
	if (rounded == NULL)
		return;
	copy(masters, ddp_param_data(model, p), bytes_of(model, p));
	copy(got, rounded, (size_t)count * sizeof(*got));
	dk_to_bf16(nearest, masters, count);
	CHECK(memcmp(got, nearest, (size_t)count * sizeof(*nearest)) == 0);
}

static void expect_params(const scenario *s, ddp_model *model, float (*wanted)[ELEMENTS_MAX])
{
	static float got[ELEMENTS_MAX];

	for (int p = 0; p < s->count; p++) {
		const float *grad = ddp_param_grad(model, p);
		copy(got, ddp_param_data(model, p), bytes_of(model, p));
		CHECK(memcmp(got, wanted[p], bytes_of(model, p)) == 0);
		CHECK((grad != NULL) == is_trained(s, p));
		if (grad != NULL)
			copy(got, grad, bytes_of(model, p));
		for (int64_t i = 0; i < ddp_param_count(model, p) && grad != NULL; i++)
			CHECK(got[i] == 0);
		expect_rounded(s, model, p);
	}
}

/* The program's own memory for parameters (0) or gradients (1). NaN: nobody may use what was
   there, or is behind. */
static float *own_memory(int which, size_t bytes)
{
	static float here[2][PARAMS_MAX * ELEMENTS_MAX] __attribute__((aligned(64)));
	void *memory;

	CHECK(bytes <= sizeof(here[which]));
	memset(here[which], 0xff, sizeof(here[which]));
	if (where->device == NULL)
		return here[which];
	CHECK_OK(ddp_device_alloc(where->device, bytes, &memory));
	CHECK_OK(ddp_device_fill(where->device, where->stream, memory, 0xff, bytes));
	return memory;
}

static void unmake(ddp_model *model)
{
	float *const own[] = { model->settings.params_memory, model->settings.grads_memory };

	ddp_model_free(model);
	for (int i = 0; i < 2 && where->device != NULL; i++)
		CHECK_OK(ddp_device_free(where->device, own[i]));
}

static ddp_model *make(ddp_context *context, const scenario *s, const ddp_model_options *options)
{
	static float values[ELEMENTS_MAX];
	ddp_model_options given = *options;
	size_t bytes[2];
	ddp_model *model;

	CHECK_OK(ddp_model_bytes(s->params, s->count, &bytes[0], &bytes[1]));
	CHECK(bytes[1] <= bytes[0]);
	given.memory = where->device != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	given.stream = where->stream;
	/* In the ranks' shared memory, the default is a way of its own. */
	given.params_memory = s->own_params && options->shard != DDP_SHARD_AUTO ? own_memory(0, bytes[0]) : NULL;
	given.grads_memory = s->own_grads && options->shard != DDP_SHARD_AUTO ? own_memory(1, bytes[1]) : NULL;
	CHECK_OK(ddp_model_create(context, s->params, s->count, &given, &model));
	const int nodes = ddp_comm_nodes(context->world);
	CHECK((model->strategy == &ddp_nodes_strategy) ==
	      (options->shard == DDP_SHARD_AUTO && nodes > 1 && s->ranks > nodes));
	for (int p = 0; p < s->count; p++) {
		for (int64_t i = 0; i < ddp_param_count(model, p); i++)
			values[i] = (float)p + (float)i / 64;
		copy(ddp_param_data(model, p), values, bytes_of(model, p));
	}
	if (options->bf16_params)
		CHECK_OK(ddp_broadcast_params(model));
	return model;
}

static void start(const scenario *s, plain *x)
{
	memset(x, 0, sizeof(*x));
	for (int p = 0; p < s->count; p++) {
		for (int64_t i = 0; i < elements(&s->params[p]); i++)
			x->params[p][i] = (float)p + (float)i / 64;
	}
}

/* Without travelling rows, all ways add in one order. */
static bool rows_matter(const scenario *s)
{
	for (int p = 0; p < s->count; p++) {
		if (s->params[p].sparse_rows > 0)
			return true;
	}
	return false;
}

static void train_by(ddp_context *context, const scenario *s, const ddp_model_options *options,
                     plain *x, bool first)
{
	ddp_model *model = make(context, s, options);
	ddp_step_stats stats;

	start(s, x);
	for (int step = 1; step <= STEPS; step++) {
		double norm = plain_step(s, x, ddp_comm_rank(context->world), step);
		train_step(s, model, ddp_comm_rank(context->world), step, &stats);
		CHECK(stats.active_ranks == active_ranks(s, step));
		/* What is rounded in a sum goes with its addends, up to 1, and not with the sum. */
		CHECK(stats.step == step && fabs(stats.grad_norm - norm) <= 1e-6 * (s->whole ? norm : norm + 1));
		/* Otherwise the next step's first bucket waits. */
		for (int p = 0; p < s->count && s->whole; p++)
			CHECK_OK(ddp_param_wait(model, p));
		if (s->whole)
			expect_params(s, model, x->params);
	}
	CHECK_OK(ddp_param_wait(model, DDP_ALL_PARAMS));
	/* Of numbers that are not whole, the first way tells what the others are to come to. */
	static float wanted[PARAMS_MAX][ELEMENTS_MAX];
	for (int p = 0; p < s->count && first; p++)
		copy(wanted[p], ddp_param_data(model, p), bytes_of(model, p));
	if (!rows_matter(s))
		expect_params(s, model, wanted);
	/* All have finished: that is no step. */
	CHECK_OK(ddp_join(model, &stats));
	CHECK(stats.active_ranks == 0 && stats.step == STEPS);
	if (s->whole)
		expect_params(s, model, x->params);
	unmake(model);
}

static ddp_context context_of(ddp_comm *comm)
{
	ddp_context context = { .world = comm, .timeout_ms = 60000 };

	context.job.rank = ddp_comm_rank(comm);
	context.job.world_size = ddp_comm_size(comm);
	CHECK_OK(ddp_watch_open(&context.job, &context.watch));
	return context;
}

/* Takes its time, but not long for each of the many pieces of work. */
static void open_device(ddp_comm *comm, ddp_context *context)
{
	const ddp_device_options options = { .seed = 1, .delay_us = 20, .check_order = true };
	void *rows;

	CHECK_OK(ddp_device_open("test", &options, &on_device.device));
	ddp_comm_use_device(comm, on_device.device);
	context->device = on_device.device;
	CHECK_OK(ddp_device_queue_create(on_device.device, DDP_DEVICE_NORMAL, &on_device.stream));
	CHECK_OK(ddp_device_alloc(on_device.device, (ELEMENTS_MAX + ROWS_MAX) * sizeof(float), &rows));
	on_device.rows = rows;
}

/* The device itself is in use as long as the communicator is there. */
static void close_device(void)
{
	CHECK_OK(ddp_device_free(on_device.device, on_device.rows));
	CHECK_OK(ddp_device_queue_free(on_device.device, on_device.stream));
}

static ddp_status all_reduce(void *user, const ddp_grad_bucket *bucket)
{
	(void)user;
	return ddp_all_reduce(bucket->comm, NULL, bucket->grads, (size_t)bucket->count, DDP_F32, DDP_SUM);
}

static ddp_status nothing_left(void *user, const ddp_grad_bucket *bucket)
{
	(void)user;
	return bucket->count > 0 ? DDP_OK : DDP_ERR_INTERNAL;
}

static int every_way(ddp_comm *comm, void *argument)
{
	static const struct {
		ddp_shard shard;
		bool no_overlap;
		ddp_compression compress;
		ddp_bucket_hook hook;
		bool late, there;
	} ways[] = {
		{ .shard = DDP_SHARD_NONE },
		{ .shard = DDP_SHARD_NONE, .no_overlap = true },
		{ .shard = DDP_SHARD_AUTO },
		{ .shard = DDP_SHARD_STATE },
		{ .shard = DDP_SHARD_GRADIENTS },
		{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true },
		{ .shard = DDP_SHARD_GRADIENTS, .late = true },
		{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true, .late = true },
		{ .shard = DDP_SHARD_STATE, .late = true },
		{ .shard = DDP_SHARD_NONE, .hook = { .start = all_reduce, .finish = nothing_left } },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16 },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16 },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_POWERSGD },
		{ .shard = DDP_SHARD_NONE, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_BF16, .no_overlap = true, .there = true },
		{ .shard = DDP_SHARD_NONE, .compress = DDP_COMPRESS_F16, .there = true },
		{ .shard = DDP_SHARD_STATE, .there = true },
		{ .shard = DDP_SHARD_GRADIENTS, .no_overlap = true, .there = true },
		{ .shard = DDP_SHARD_GRADIENTS, .late = true, .there = true },
	};
	const scenario *s = argument;
	ddp_context context = context_of(comm);
	static plain x;

	open_device(comm, &context);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		ddp_model_options options = s->options;
		options.shard = ways[w].shard;
		options.no_overlap = ways[w].no_overlap;
		options.compress = ways[w].compress;
		options.hook = ways[w].hook;
		options.late_gather = ways[w].late;
		options.powersgd_rate = 1e9; /* nothing is worth it, so all travels as it is */
		/* Sums of whole numbers, up to 256, are exact in 16 bits, too. */
		if (options.compress != DDP_COMPRESS_NONE && options.compress != DDP_COMPRESS_POWERSGD && !s->whole)
			continue;
		/* The same as DDP_SHARD_STATE, then. */
		if (options.shard == DDP_SHARD_AUTO && ddp_comm_nodes(comm) == 1 && !s->own_params && !s->own_grads)
			continue;
		where = ways[w].there ? &on_device : &on_host;
		train_by(&context, s, &options, &x, w == 0);
	}
	close_device();
	ddp_watch_close(context.watch);
	return 0;
}

/* DDP_TEST_CASES: as many, and others each time. */
static void random_models_train_like_a_plain_loop(void **state)
{
	const char *text = getenv("DDP_TEST_CASES");
	const unsigned int cases = text != NULL ? (unsigned)atoi(text) : 12;
	const unsigned int base = text != NULL ? (unsigned)getpid() * 1000 : 0;

	(void)state;
	for (unsigned int c = 0; c < cases; c++) {
		static scenario s;
		draw_scenario(&s, base + c);
		const test_world world = { .ranks = s.ranks, .node_of = s.node_of, .body = every_way,
		                           .argument = &s };
		if (test_world_run(&world) != 0)
			fail_msg("case %u", base + c);
	}
}

/* ---- checkpoints of one world in another ------------------------------------------- */

typedef struct resumption {
	scenario before, after;
	ddp_shard shard; /* before */
} resumption;

static int save_body(ddp_comm *comm, void *argument)
{
	const resumption *with = argument;
	ddp_model_options options = with->before.options;
	ddp_context context = context_of(comm);
	ddp_step_stats stats;

	options.shard = with->shard;
	ddp_model *model = make(&context, &with->before, &options);
	for (int step = 1; step < STEPS; step++)
		train_step(&with->before, model, context.job.rank, step, &stats);
	CHECK_OK(ddp_checkpoint_save(model, NULL, test_folder, 0));
	ddp_model_free(model);
	ddp_watch_close(context.watch);
	return 0;
}

static int resume_body(ddp_comm *comm, void *argument)
{
	static const ddp_shard shards[] = {
		DDP_SHARD_NONE, DDP_SHARD_AUTO, DDP_SHARD_STATE, DDP_SHARD_GRADIENTS,
	};
	const resumption *with = argument;
	ddp_context context = context_of(comm);
	ddp_step_stats stats;
	static plain x;
	int64_t step;

	start(&with->before, &x);
	for (int i = 1; i <= STEPS; i++)
		plain_step(i < STEPS ? &with->before : &with->after, &x, context.job.rank, i);
	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++) {
		ddp_model_options options = with->after.options;
		options.shard = shards[i];
		ddp_model *model = make(&context, &with->after, &options);
		CHECK_OK(ddp_checkpoint_load(model, NULL, test_folder, &step));
		CHECK(step == STEPS - 1);
		train_step(&with->after, model, context.job.rank, STEPS, &stats);
		expect_params(&with->after, model, x.params);
		ddp_model_free(model);
	}
	ddp_watch_close(context.watch);
	return 0;
}

static void shards_of_one_world_are_loaded_in_another(void **state)
{
	static const ddp_shard shards[] = { DDP_SHARD_STATE, DDP_SHARD_GRADIENTS, DDP_SHARD_AUTO };
	static const int two_nodes[] = { 0, 1, 1, 0 };
	static resumption with;

	(void)state;
	for (unsigned int c = 0; c < 3; c++) {
		draw_scenario(&with.before, 4 + 3 * c); /* of whole numbers */
		with.before.options.optimizer = DDP_ADAMW;
		with.before.last = 0;
		for (int r = 0; r < RANKS_MAX; r++)
			with.before.joins[r] = STEPS + 1;
		with.before.options.unused = DDP_UNUSED_SKIP;
		with.after = with.before;
		with.before.ranks = c == 2 ? 3 : 4 - (int)c;
		with.after.ranks = 2 + (int)c;
		with.shard = shards[c];
		const test_world before = { .ranks = with.before.ranks, .node_of = two_nodes,
		                            .body = save_body, .argument = &with };
		const test_world after = { .ranks = with.after.ranks, .node_of = c == 2 ? two_nodes : NULL,
		                           .body = resume_body, .argument = &with };
#ifdef HAVE_UCX
		assert_int_equal(test_world_run(&before), 0);
		assert_int_equal(test_world_run(&after), 0);
#else
		(void)before;
		(void)after;
#endif
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_models_train_like_a_plain_loop),
		cmocka_unit_test_setup_teardown(shards_of_one_world_are_loaded_in_another, folder_make,
		                                folder_remove),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
