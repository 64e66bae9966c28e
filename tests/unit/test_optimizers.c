/*
 * optim: each optimizer's parameters after five steps beside numbers that its paper's
 * formulas give in double precision (those of PyTorch 2.15 in double precision to 1e-9,
 * where it has the optimizer; make check-torch). Of LAMB there is no other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels.h"
#include "optim/optim.h"

enum { TENSORS = 4, LONGEST = 8, STEPS = 5, ELEMENTS_MAX = 64 };

/* Powers of two, so that scaling is exact. */
static const double WEIGHT = 4;

static const ddp_param params[TENSORS] = {
	{ .name = "a", .ndim = 1, .shape = { 5 }, .no_decay = true },
	{ .name = "wide", .ndim = 2, .shape = { 2, 3 } },
	{ .name = "tall", .ndim = 2, .shape = { 4, 2 } },
	{ .name = "cube", .ndim = 3, .shape = { 2, 2, 2 } },
};

static const struct { int step, period; } starts[TENSORS] = { { 37, 11 }, { 53, 13 }, { 41, 17 }, { 59, 19 } };

static const struct recorded {
	ddp_optim_settings settings;
	float wanted[TENSORS][LONGEST];
} recorded[] = {
	{ { .kind = DDP_ADAM, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1 },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.81271111f, -0.53001902f, -0.37222915f, -0.37219677f, -0.35873544f, -0.07721480f },
	    { -1.10394606f, -0.10384122f, 0.68095230f, -0.56485400f, 0.20740696f, -0.84858510f, -0.01519683f,
	      0.71718019f },
	    { -1.00034573f, -0.69888717f, -0.50693242f, -0.42677573f, -0.02508670f, 0.25277085f, 0.37058354f,
	      0.50697968f } } },
	{ { .kind = DDP_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1 },
	  { { -0.77121731f, -0.05521597f, 0.56012516f, -0.38325341f, -0.00402884f },
	    { -0.74113064f, -0.47443369f, -0.38187434f, -0.33287764f, -0.33388664f, -0.06718969f },
	    { -1.07358042f, -0.11872081f, 0.66200121f, -0.55063365f, 0.13652001f, -0.85841459f, -0.07769257f,
	      0.65946679f },
	    { -0.96670907f, -0.62289344f, -0.45920296f, -0.34551819f, 0.03587254f, 0.24312566f, 0.40681614f,
	      0.52050091f } } },
	{ { .kind = DDP_LAMB, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1 },
	  { { -0.75067046f, -0.03890184f, 0.53003483f, -0.45406598f, -0.07048192f },
	    { -0.76699285f, -0.53210130f, -0.39532407f, -0.34619276f, -0.33174084f, -0.09937054f },
	    { -1.12407039f, -0.13631775f, 0.73490367f, -0.58546303f, 0.16449388f, -0.90249132f, -0.06643909f,
	      0.68809635f },
	    { -1.01138716f, -0.68361939f, -0.50929310f, -0.39091409f, -0.01514043f, 0.25211036f, 0.41784108f,
	      0.53816144f } } },
	{ { .kind = DDP_ADAFACTOR, .epsilon = 0x1p-23, .weight_decay = 0.1, .adafactor_decay = 0.8,
	    .adafactor_least_scale = 1e-3, .adafactor_clip = 1 },
	  { { -0.66155909f, -0.13074319f, 0.42422978f, -0.47934347f, 0.00616883f },
	    { -0.74573205f, -0.57258782f, -0.47011868f, -0.35418742f, -0.25635830f, -0.08682145f },
	    { -1.01367162f, -0.10520851f, 0.73298551f, -0.56029536f, 0.30725927f, -0.85599633f, -0.02495119f,
	      0.76152904f },
	    { -1.10010499f, -0.79701093f, -0.55492875f, -0.37943942f, -0.04533892f, 0.16150560f, 0.39670684f,
	      0.58260436f } } },
	{ { .kind = DDP_MUON, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .momentum = 0.95,
	    .weight_decay = 0.1, .muon_iterations = 5 },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.76810382f, -0.54711744f, -0.45389458f, -0.36560002f, -0.31600040f, -0.08723952f },
	    { -1.05903383f, -0.16610851f, 0.69600726f, -0.57946798f, 0.23367277f, -0.94496748f, -0.08368973f,
	      0.71407665f },
	    { -1.01241199f, -0.70027220f, -0.56350078f, -0.43466698f, -0.02643416f, 0.25470956f, 0.38181624f,
	      0.51455299f } } },
	{ { .kind = DDP_MUON, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .momentum = 0.95,
	    .weight_decay = 0.1, .muon_iterations = 5, .muon_match_rms = true },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.74413848f, -0.58790996f, -0.47594003f, -0.36567731f, -0.26881892f, -0.10989724f },
	    { -0.99894675f, -0.13440843f, 0.72141565f, -0.51360167f, 0.32837017f, -0.87925807f, -0.02367103f,
	      0.81395228f },
	    { -1.01241199f, -0.70027220f, -0.56350078f, -0.43466698f, -0.02643416f, 0.25470956f, 0.38181624f,
	      0.51455299f } } },
};

enum { RECORDED = sizeof(recorded) / sizeof(recorded[0]) };
static const double LEARNING_RATE = 0.05;

/* A model in memory of its own. */
typedef struct fixture {
	ddp_layout layout;
	ddp_optim optim;
	float params[ELEMENTS_MAX], grads[ELEMENTS_MAX];
} fixture;

static void set_up(fixture *f, const ddp_param *list, const ddp_optim_settings *settings)
{
	memset(f, 0, sizeof(*f));
	assert_int_equal(ddp_layout_make(list, TENSORS, &f->layout), DDP_OK);
	assert_true(f->layout.elements <= ELEMENTS_MAX);
	assert_int_equal(ddp_optim_make(settings, &f->layout, false, &f->optim), DDP_OK);
	for (int t = 0; t < TENSORS; t++) {
		const ddp_slot *slot = &f->layout.slots[t];
		for (int i = 0; i < slot->count; i++)
			f->params[slot->offset + i] =
				(float)((i * starts[t].step) % starts[t].period - starts[t].period / 2) / 8;
	}
}

static void tear_down(fixture *f)
{
	ddp_optim_free(&f->optim);
	ddp_layout_free(&f->layout);
}

static void set_grads(fixture *f, int64_t step)
{
	for (int t = 0; t < TENSORS; t++) {
		const ddp_slot *slot = &f->layout.slots[t];
		for (int i = 0; i < slot->count; i++)
			f->grads[slot->offset + i] =
				(float)WEIGHT * (float)(((i + 100 * t) * 29 + step * 17) % 23 - 11) / 16;
	}
}

/* In ranges of `range` elements, from the last to the first, as buckets come. */
static void step_once(fixture *f, const ddp_update *update, int64_t range)
{
	const int64_t elements = f->layout.elements;
	double wanted = 0, squares = 0;

	set_grads(f, update->step);
	for (int64_t i = 0; i < elements; i++)
		wanted += (double)f->grads[i] * f->grads[i];
	for (int64_t end = elements; end > 0; end -= range) {
		const int64_t begin = end > range ? end - range : 0;
		squares += ddp_optim_apply(&f->optim, update, f->params + begin, f->grads + begin, begin, end, begin);
	}
	assert_true(fabs(squares - wanted) < 1e-9 * wanted);
	for (int64_t i = 0; i < elements; i++)
		assert_true(f->grads[i] == 0);
}

static void train(fixture *f, int64_t range)
{
	for (int64_t step = 1; step <= STEPS; step++)
		step_once(f, &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT, .step = step },
		          range);
}

static void parameters_are_those_of_the_formulas(void **state)
{
	static fixture f;

	(void)state;
	for (int r = 0; r < RECORDED; r++) {
		set_up(&f, params, &recorded[r].settings);
		train(&f, ELEMENTS_MAX);
		for (int t = 0; t < TENSORS; t++) {
			const ddp_slot *slot = &f.layout.slots[t];
			for (int i = 0; i < slot->count; i++) {
				const double got = f.params[slot->offset + i], wanted = recorded[r].wanted[t][i];
				if (fabs(got - wanted) > 2e-6)
					fail_msg("%s, %s[%d] is %.8f, not %.8f", ddp_optimizer_name(recorded[r].settings.kind),
					         slot->name, i, got, wanted);
			}
		}
		tear_down(&f);
	}
}

static void buckets_give_the_same_bits_as_the_whole(void **state)
{
	static fixture whole, cut;

	(void)state;
	for (int r = 0; r < RECORDED; r++) {
		set_up(&whole, params, &recorded[r].settings);
		set_up(&cut, params, &recorded[r].settings);
		train(&whole, ELEMENTS_MAX);
		train(&cut, 4);
		assert_memory_equal(whole.params, cut.params, sizeof(whole.params));
		tear_down(&whole);
		tear_down(&cut);
	}
}

static void parameters_in_bf16_are_the_rounded_ones(void **state)
{
	uint16_t rounded[ELEMENTS_MAX], wanted[ELEMENTS_MAX];
	static fixture f;

	(void)state;
	for (int r = 0; r < RECORDED; r++) {
		memset(rounded, 0, sizeof(rounded));
		set_up(&f, params, &recorded[r].settings);
		f.optim.rounded = rounded;
		train(&f, 4);
		dk_to_bf16(wanted, f.params, f.layout.elements);
		assert_memory_equal(rounded, wanted, (size_t)f.layout.elements * sizeof(*rounded));
		tear_down(&f);
	}
}

/* Its parameters, state and count of steps stay: a step without it is as none. */
static void unused_tensors_stay_as_they_are(void **state)
{
	const bool none[TENSORS] = { true, true, true, true };
	const float missed[TENSORS] = { 1, 1, 1, 1 };
	static fixture f;

	(void)state;
	for (int r = 0; r < RECORDED; r++) {
		static fixture plain;
		ddp_update update = { .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT };

		set_up(&plain, params, &recorded[r].settings);
		train(&plain, ELEMENTS_MAX);
		set_up(&f, params, &recorded[r].settings);
		for (int64_t i = 1; i <= STEPS; i++) {
			update.step = i;
			step_once(&f, &update, 4);
			if (i > 1)
				continue;
			update.unused = none;
			step_once(&f, &update, 4);
			update.unused = NULL;
		}
		assert_memory_equal(plain.params, f.params, sizeof(f.params));
		/* Of a step more, one is missed. */
		update = (ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT, .step = STEPS + 1 };
		step_once(&plain, &update, 4);
		set_grads(&f, STEPS + 1);
		update.step++;
		update.missed = missed;
		ddp_optim_apply(&f.optim, &update, f.params, f.grads, 0, f.layout.elements, 0);
		assert_memory_equal(plain.params, f.params, sizeof(f.params));
		tear_down(&f);
		tear_down(&plain);
	}
}

/* Those of the owner are left to it; all that is kept is the same. */
static void a_shared_tensor_is_made_by_its_owner(void **state)
{
	const ddp_optim_settings *muon = &recorded[4].settings;
	static fixture ranks[2], alone;
	int owned[2] = { 0 };

	(void)state;
	set_up(&alone, params, muon);
	train(&alone, ELEMENTS_MAX);
	for (int r = 0; r < 2; r++) {
		set_up(&ranks[r], params, muon);
		assert_int_equal(ddp_optim_share(&ranks[r].optim, 2, r), DDP_OK);
	}
	for (int64_t step = 1; step <= STEPS; step++) {
		for (int r = 0; r < 2; r++)
			step_once(&ranks[r], &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1 / WEIGHT,
			                                    .step = step }, 4);
		for (int t = 0; t < TENSORS; t++) {
			const ddp_slot *slot = &ranks[0].layout.slots[t];
			const int owner = ddp_optim_owner(&ranks[0].optim, slot);
			assert_int_equal(owner >= 0, slot->ndim == 2);
			assert_int_equal(owner, ddp_optim_owner(&ranks[1].optim, &ranks[1].layout.slots[t]));
			if (owner < 0)
				continue;
			owned[owner]++;
			/* What the other rank gets by a broadcast. */
			memcpy(ranks[1 - owner].params + slot->offset, ranks[owner].params + slot->offset,
			       (size_t)slot->count * sizeof(float));
		}
	}
	assert_true(owned[0] > 0 && owned[1] > 0);
	for (int r = 0; r < 2; r++) {
		assert_memory_equal(ranks[r].params, alone.params, sizeof(alone.params));
		for (int i = 0; i < alone.optim.state_count; i++)
			assert_memory_equal(ranks[r].optim.state[i], alone.optim.state[i],
			                    (size_t)alone.optim.state_elements[i] * sizeof(float));
		tear_down(&ranks[r]);
	}
	tear_down(&alone);
}

/* What is kept has shapes of its own, by which a checkpoint saves it. */
static void adafactor_keeps_rows_and_columns(void **state)
{
	static fixture f;

	(void)state;
	set_up(&f, params, &recorded[3].settings);
	const ddp_slot *a = &f.layout.slots[0], *tall = &f.layout.slots[2], *cube = &f.layout.slots[3];
	assert_int_equal(ddp_optim_kept(&f.optim, 0, a)->count, 0);
	assert_int_equal(ddp_optim_kept(&f.optim, 2, a)->count, 5);
	assert_int_equal(ddp_optim_kept(&f.optim, 0, tall)->shape[0], 4);
	assert_int_equal(ddp_optim_kept(&f.optim, 1, tall)->shape[0], 2);
	assert_int_equal(ddp_optim_kept(&f.optim, 2, tall)->count, 0);
	assert_int_equal(ddp_optim_kept(&f.optim, 0, cube)->ndim, 2);
	assert_int_equal(ddp_optim_kept(&f.optim, 1, cube)->count, 4);
	tear_down(&f);
}

/* Newton-Schulz comes to a matrix whose singular values are near 1, whatever its shape. */
static void muon_steps_are_nearly_orthogonal(void **state)
{
	enum { SIDE = 40, LONG = 100 };
	const ddp_optim_settings settings = { .kind = DDP_MUON, .momentum = 0, .muon_iterations = 5 };
	const ddp_update update = { .learning_rate = 1, .grad_scale = 1, .step = 1 };
	static float param[SIDE * LONG + 16], grad[SIDE * LONG + 16];

	(void)state;
	for (int tall = 0; tall < 2; tall++) {
		const ddp_param matrix = { .name = "m", .ndim = 2, .shape = { tall ? LONG : SIDE, tall ? SIDE : LONG } };
		ddp_layout layout;
		ddp_optim optim;

		assert_int_equal(ddp_layout_make(&matrix, 1, &layout), DDP_OK);
		assert_int_equal(ddp_optim_make(&settings, &layout, false, &optim), DDP_OK);
		memset(param, 0, sizeof(param));
		for (int i = 0; i < SIDE * LONG; i++)
			grad[i] = sinf((float)(i * i % 1013));
		ddp_optim_apply(&optim, &update, param, grad, 0, layout.elements, 0);
		const float rate = tall ? sqrtf((float)LONG / SIDE) : 1;
		const int along = tall ? SIDE : 1, down = tall ? 1 : LONG;
		for (int i = 0; i < SIDE; i++) {
			double own = 0, next = 0;
			for (int k = 0; k < LONG; k++) {
				own += param[i * down + k * along] * param[i * down + k * along];
				next += param[i * down + k * along] * param[(i + 1) % SIDE * down + k * along];
			}
			assert_true(own > 0.4 * rate * rate && own < 1.6 * rate * rate);
			assert_true(fabs(next) < 0.4 * rate * rate);
		}
		ddp_optim_free(&optim);
		ddp_layout_free(&layout);
	}
}

static void muon_leaves_to_adamw_what_is_no_matrix_to_it(void **state)
{
	const ddp_param_group group = { .learning_rate_factor = 1, .weight_decay = 0.1, .adamw = true };
	ddp_param list[TENSORS];
	static fixture f, adamw;

	(void)state;
	memcpy(list, params, sizeof(list));
	list[1].group = &group;
	list[2].sparse_rows = 2;
	ddp_optim_settings settings = recorded[4].settings;
	set_up(&f, list, &settings);
	settings.kind = DDP_ADAMW;
	set_up(&adamw, list, &settings);
	train(&f, 4);
	train(&adamw, ELEMENTS_MAX);
	assert_memory_equal(f.params, adamw.params, sizeof(f.params));
	tear_down(&f);
	tear_down(&adamw);
}

/* Neither of nothing, nor of what is 0, is there a step that is not a number. */
static void zeros_stay_numbers(void **state)
{
	static fixture f;

	(void)state;
	for (int r = 0; r < RECORDED; r++) {
		set_up(&f, params, &recorded[r].settings);
		memset(f.params, 0, sizeof(f.params));
		for (int64_t step = 1; step <= 2; step++)
			ddp_optim_apply(&f.optim, &(ddp_update){ .learning_rate = LEARNING_RATE, .grad_scale = 1, .step = step },
			                f.params, f.grads, 0, f.layout.elements, 0);
		for (int64_t i = 0; i < f.layout.elements; i++)
			assert_true(f.params[i] == 0);
		tear_down(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parameters_are_those_of_the_formulas),
		cmocka_unit_test(buckets_give_the_same_bits_as_the_whole),
		cmocka_unit_test(parameters_in_bf16_are_the_rounded_ones),
		cmocka_unit_test(unused_tensors_stay_as_they_are),
		cmocka_unit_test(a_shared_tensor_is_made_by_its_owner),
		cmocka_unit_test(adafactor_keeps_rows_and_columns),
		cmocka_unit_test(muon_steps_are_nearly_orthogonal),
		cmocka_unit_test(muon_leaves_to_adamw_what_is_no_matrix_to_it),
		cmocka_unit_test(zeros_stay_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
