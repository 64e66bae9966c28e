/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/scenario.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "tests/support/options.h"

int scenario_draw(unsigned int *seed, int least, int most)
{
	return least + (int)((double)rand_r(seed) / ((double)RAND_MAX + 1) * (most - least + 1));
}

/* The same for all who ask the same. */
unsigned int scenario_mix(unsigned int a, unsigned int b)
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
	const int drawn_first = scenario_draw(seed, 0, s->count - 1);
	const int always = s->steps > STEPS ? 0 : drawn_first;

	for (int p = 0; p < s->count; p++) {
		ddp_param *param = &s->params[p];
		int drawn = scenario_draw(seed, 0, 9);
		if (drawn < 4 && p != always && param->sparse_rows == 0)
			param->kind = (ddp_tensor_kind)(DDP_PARAM_FROZEN + drawn);
		if (drawn >= 6 && drawn < 9)
			param->group = &groups[drawn - 6];
	}
}

static void draw_params(scenario *s, unsigned int *seed)
{
	s->count = scenario_draw(seed, 1, PARAMS_MAX);
	for (int p = 0; p < s->count; p++) {
		ddp_param *param = &s->params[p];
		const int drawn = scenario_draw(seed, 0, 5);
		const int kind = s->steps > STEPS && p == 0 ? 1 : drawn; /* of several buckets */

		snprintf(s->names[p], sizeof(s->names[p]), "p%d", p);
		*param = (ddp_param){ .name = s->names[p], .ndim = 1, .shape = { scenario_draw(seed, 1, 40) },
		                      .no_decay = scenario_draw(seed, 0, 1) == 1 };
		if (kind == 0)
			*param = (ddp_param){ .name = s->names[p] };
		else if (kind <= 2)
			param->shape[0] = scenario_draw(seed, 500, 2500);
		else if (kind == 3) {
			param->ndim = 2;
			param->shape[0] = scenario_draw(seed, 20, 60);
			param->shape[1] = scenario_draw(seed, 1, 30);
			param->sparse_rows = ROWS_MAX;
			param->rows_only = scenario_draw(seed, 0, 1) == 1;
		}
	}
}

static void draw_options(scenario *s, unsigned int *seed)
{
	s->options = (ddp_model_options){
		DDP_MODEL_OPTIONS_FIELDS,
		.optimizer = scenario_draw(seed, 0, 2) == 0 ? DDP_SGD : DDP_ADAMW,
		.learning_rate = 0.01 * scenario_draw(seed, 1, 9), .weight_decay = 0.1 * scenario_draw(seed, 0, 2),
		.momentum = scenario_draw(seed, 0, 1) * 0.9, .clip_norm = scenario_draw(seed, 0, 1) * 0.5,
		.bucket_mb = scenario_draw(seed, 1, 200) * 64.0 / (1 << 20),
		.first_bucket_mb = scenario_draw(seed, 1, 100) * 64.0 / (1 << 20),
		.bf16_params = s->seed % 2 == 0,
	};
}

static void draw_uses(scenario *s, unsigned int *seed)
{
	s->options.unused = (ddp_unused)scenario_draw(seed, 0, 2);
	s->options.loss = (ddp_loss)scenario_draw(seed, 0, 2);
	for (int p = 0; p < s->count; p++) {
		s->early[p] = s->params[p].sparse_rows == 0 && scenario_draw(seed, 0, 4) == 0;
		for (int step = 1; step <= s->steps; step++) {
			int kind = scenario_draw(seed, 0, 4);
			s->users[step][p] = kind == 0 ? 0 : kind == 1 ? (unsigned)scenario_draw(seed, 0, 15) : 15;
			if (s->options.unused == DDP_UNUSED_STATIC)
				s->users[step][p] = s->users[1][p];
		}
	}
}

/* What is given, or left to the library: of each cap, or of both. */
static void draw_caps(scenario *s, unsigned int *seed)
{
	const int given = s->steps > STEPS ? 0 : scenario_draw(seed, 0, 5);

	if (given <= 1)
		s->options.bucket_mb = DDP_AUTO;
	if (given == 0 || given == 2)
		s->options.first_bucket_mb = DDP_AUTO;
}

/* Steps that are to leave no trace, and what else changes no bit. */
static void draw_rest(scenario *s, unsigned int number, unsigned int *seed)
{
	static const ddp_scaling scalings[] = { DDP_SCALING_NONE, DDP_SCALING_FIXED, DDP_SCALING_DYNAMIC };

	draw_caps(s, seed);
	s->poisoned = scenario_draw(seed, 0, 2) == 0 ? 0 : scenario_draw(seed, 1, s->steps);
	s->forgotten = scenario_draw(seed, 0, 2) == 0 ? 0 : scenario_draw(seed, 1, s->steps);
	s->options.loss_scaling.kind = scalings[number / 2 % 3];
	if (s->options.loss_scaling.kind != DDP_SCALING_NONE)
		s->options.loss_scaling.initial = 1024;
	if (s->options.loss_scaling.kind == DDP_SCALING_DYNAMIC)
		s->options.loss_scaling.interval = 2;
	for (int p = 0; p < s->count; p++)
		s->hooked[p] = s->params[p].kind == DDP_PARAM_TRAINED && s->params[p].sparse_rows == 0 &&
		               scenario_draw(seed, 0, 2) == 0;
}

/* The plain loop knows none of these: all ways come to the same by them. */
static void use_another_optimizer(scenario *s, unsigned int number)
{
	static const ddp_optimizer others[] = { DDP_LAMB, DDP_ADAFACTOR, DDP_MUON };

	s->options.optimizer = others[number % 4 - 1];
	s->options.nesterov = false;
}

void scenario_make(scenario *s, unsigned int number)
{
	unsigned int seed = s->seed = scenario_mix(number, 1);
	const bool is_long = number % 6 == 5;

	s->whole = number % 3 != 0;
	s->steps = is_long ? STEPS_MAX : STEPS;
	s->own_params = number % 2 == 0;
	s->own_grads = number % 4 != 1;
	s->ranks = scenario_draw(&seed, is_long ? 3 : 1, RANKS_MAX);
	for (int r = 0; r < s->ranks; r++)
		s->node_of[r] = is_long ? r % 2 : scenario_draw(&seed, 0, r < 3 ? r : 2);
	draw_params(s, &seed);
	draw_kinds(s, &seed);
	draw_options(s, &seed);
	/* Their other forms. */
	if (number % 2 == 1 && s->options.optimizer == DDP_ADAMW)
		s->options.optimizer = DDP_ADAM;
	s->options.nesterov = number % 2 == 1 && s->options.optimizer == DDP_SGD && s->options.momentum > 0;
	s->accumulate = scenario_draw(&seed, 1, 3);
	draw_uses(s, &seed);
	s->last = scenario_draw(&seed, 0, s->ranks - 1);
	/* A rank that has finished shows nothing by which buckets could be cut anew. */
	for (int r = 0; r < s->ranks; r++)
		s->joins[r] = r != s->last && scenario_draw(&seed, 0, 2) == 0
			? scenario_draw(&seed, is_long ? s->steps : 1, s->steps) : s->steps + 1;
	draw_rest(s, number, &seed);
	if (!s->whole && number % 4 != 0)
		use_another_optimizer(s, number);
}

/* ---- gradients ------------------------------------------------------------------- */

bool scenario_is_trained(const scenario *s, int p)
{
	return s->params[p].kind == DDP_PARAM_TRAINED;
}

static bool has_dense(const scenario *s, int p)
{
	return scenario_is_trained(s, p) && !s->params[p].rows_only;
}

float scenario_buffer(const scenario *s, int rank, int step, int64_t i)
{
	return (float)(s->ranks * ((rank + 2) * step + (int)(i % 5)));
}

bool scenario_is_buffer(const scenario *s, int p)
{
	return s->params[p].kind > DDP_PARAM_FROZEN;
}

float scenario_gradient(const scenario *s, int rank, int step, int batch, int p, int64_t i)
{
	unsigned int x = scenario_mix(scenario_mix(s->seed + (unsigned)rank, (unsigned)(step * 8 + batch)),
	                     (unsigned)p * 65536 + (unsigned)i);

	return s->whole ? (float)((int)(x % 17) - 8) : sinf((float)x);
}

bool scenario_has_joined(const scenario *s, int rank, int step)
{
	return step >= s->joins[rank];
}

int scenario_active_ranks(const scenario *s, int step)
{
	int count = 0;

	for (int r = 0; r < s->ranks; r++)
		count += !scenario_has_joined(s, r, step);
	return count;
}

bool scenario_is_used(const scenario *s, int rank, int step, int p)
{
	return scenario_is_trained(s, p) && s->users[step][p] >> rank % RANKS_MAX & 1;
}

bool scenario_adds(const scenario *s, int rank, int step, int batch, int p)
{
	return has_dense(s, p) && scenario_is_used(s, rank, step, p) && (batch == 0 || !s->early[p]);
}

/* Whether a step is to leave it as it is: a static graph is that of the first step of all ranks. */
static bool is_left(const scenario *s, int step, int p)
{
	unsigned int used = 0;
	bool known = false;

	if (s->options.unused == DDP_UNUSED_ZERO)
		return false;
	for (int i = 1; i <= step && s->options.unused == DDP_UNUSED_STATIC; i++)
		known = known || scenario_active_ranks(s, i) == s->ranks;
	for (int r = 0; r < s->ranks; r++)
		used |= (known || !scenario_has_joined(s, r, step)) && scenario_is_used(s, r, step, p);
	return used == 0;
}

double scenario_weight(const scenario *s, int rank, int step)
{
	return rank == s->last ? step : (rank + step) % 3; /* a rank may have no sample */
}

double scenario_loss(const scenario *s, int rank, int step)
{
	return (int)(scenario_mix(s->seed + (unsigned)rank, (unsigned)step) % 17) - 4;
}

int scenario_rows(const scenario *s, int rank, int step, int p, int32_t *index)
{
	unsigned int x = scenario_mix(s->seed + 77 + (unsigned)rank, (unsigned)(step * 8 + p));
	int count = s->params[p].sparse_rows == 0 ? 0 : (int)(x % (ROWS_MAX + 1));

	for (int i = 0; i < count; i++)
		index[i] = (int32_t)(scenario_mix(x, (unsigned)i) % (unsigned)s->params[p].shape[0]);
	return count;
}

int64_t scenario_elements(const ddp_param *param)
{
	int64_t count = 1;

	for (int d = 0; d < param->ndim; d++)
		count *= param->shape[d];
	return count;
}

/* ---- the plain loop -------------------------------------------------------------- */

static void plain_sum(const scenario *s, int step, int p, float *sums)
{
	const int64_t count = scenario_elements(&s->params[p]);
	const float factor = s->hooked[p] ? 2 : 1;
	int32_t index[ROWS_MAX];

	memset(sums, 0, (size_t)count * sizeof(*sums));
	for (int r = 0; r < s->ranks; r++) {
		if (scenario_has_joined(s, r, step) || !scenario_is_used(s, r, step, p))
			continue;
		for (int b = 0; b < s->accumulate; b++) {
			for (int64_t i = 0; i < count && scenario_adds(s, r, step, b, p); i++)
				sums[i] += factor * scenario_gradient(s, r, step, b, p, i);
		}
		int n = scenario_rows(s, r, step, p, index);
		int64_t width = n > 0 ? count / s->params[p].shape[0] : 0;
		for (int64_t i = 0; i < n * width; i++)
			sums[index[i / width] * width + i % width] += scenario_gradient(s, r, step, 7, p, i);
	}
}

static void plain_update(const scenario *s, plain *x, int step, int p, double scale)
{
	const ddp_model_options *o = &s->options;
	const ddp_param_group *group = s->params[p].group;
	const double decay = s->params[p].no_decay ? 0 : group != NULL ? group->weight_decay : o->weight_decay;
	const double rate = o->learning_rate * (group != NULL ? group->learning_rate_factor : 1);
	const int64_t count = scenario_elements(&s->params[p]);

	if (!scenario_is_trained(s, p))
		return;
	if (is_left(s, step, p)) {
		x->missed[p]++;
		return;
	}
	step -= x->missed[p];

	dk_update(x->params[p], x->sums[p], o->optimizer == DDP_SGD && o->momentum == 0 ? NULL : x->m[p], x->v[p], count,
	          &(dk_update_args){ .rule = o->optimizer == DDP_SGD ? DK_SGD : DK_ADAMW, .coupled = o->optimizer != DDP_ADAMW,
	                             .learning_rate = rate, .weight_decay = decay, .beta1 = 0.9, .beta2 = 0.999,
	                             .epsilon = 1e-8, .momentum = o->momentum, .nesterov = o->nesterov,
	                             .step = step, .grad_scale = scale });
}

/* That of all ranks is divided, that of some multiplied by a factor. */
static float plain_mean(const scenario *s, int step, float sum)
{
	const float ranks = (float)scenario_active_ranks(s, step);

	return scenario_active_ranks(s, step) == s->ranks ? sum / ranks : sum * (1 / ranks);
}

static void plain_buffer(const scenario *s, plain *x, int rank, int step, int p)
{
	int first = 0;

	while (scenario_has_joined(s, first, step))
		first++;
	for (int64_t i = 0; i < scenario_elements(&s->params[p]); i++) {
		float sum = 0;
		for (int r = 0; r < s->ranks; r++)
			sum += scenario_has_joined(s, r, step) ? 0 : scenario_buffer(s, r, step, i);
		if (s->params[p].kind == DDP_BUFFER_LOCAL && scenario_has_joined(s, rank, step))
			continue;
		x->params[p][i] = s->params[p].kind == DDP_BUFFER_MEAN ? plain_mean(s, step, sum)
		                : scenario_buffer(s, s->params[p].kind == DDP_BUFFER_LOCAL ? rank : first, step, i);
	}
}

/* The norm is still to come. */
static plain_stats plain_totals(const scenario *s, int step)
{
	plain_stats stats = { 0 };
	double losses = 0;

	for (int r = 0; r < s->ranks; r++) {
		stats.weight += scenario_has_joined(s, r, step) ? 0 : scenario_weight(s, r, step);
		losses += scenario_has_joined(s, r, step) ? 0 : scenario_loss(s, r, step);
	}
	stats.loss = losses / (s->options.loss == DDP_LOSS_SUM ? stats.weight : scenario_active_ranks(s, step));
	return stats;
}

plain_stats plain_step(const scenario *s, plain *x, int rank, int step)
{
	plain_stats stats = plain_totals(s, step);
	double squares = 0, all = stats.weight, scale;

	if (s->options.loss != DDP_LOSS_SUM)
		all = s->options.loss == DDP_LOSS_MEAN ? s->ranks : scenario_active_ranks(s, step);
	for (int p = 0; p < s->count; p++) {
		plain_sum(s, step, p, x->sums[p]);
		squares += dk_sum_squares(x->sums[p], scenario_elements(&s->params[p]));
	}
	stats.norm = sqrt(squares) / all;
	scale = 1 / all;
	if (s->options.clip_norm > 0)
		scale = scale * fmin(s->options.clip_norm / (stats.norm + 1e-6), 1);
	for (int p = 0; p < s->count; p++) {
		plain_update(s, x, step, p, scale);
		if (scenario_is_buffer(s, p))
			plain_buffer(s, x, rank, step, p);
	}
	return stats;
}

void plain_start(const scenario *s, plain *x)
{
	memset(x, 0, sizeof(*x));
	for (int p = 0; p < s->count; p++) {
		for (int64_t i = 0; i < scenario_elements(&s->params[p]); i++)
			x->params[p][i] = (float)p + (float)i / 64;
	}
}
