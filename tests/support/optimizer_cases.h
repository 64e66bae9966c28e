/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_cases: what each optimizer's parameters are after five steps, as its paper's
   formulas give it in double precision (PyTorch 2.15 in double precision to 1e-9, where it
   has the optimizer; make check-torch). PyTorch has no LAMB and no Lion. */
#pragma once

#include <stddef.h>

#include "optim/optim.h"

enum { TENSORS = 4, LONGEST = 8, STEPS = 5 };

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
	ddp_model_options options;
	float wanted[TENSORS][LONGEST];
} recorded[] = {
	{ { .optimizer = DDP_ADAM, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1 },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.81271111f, -0.53001902f, -0.37222915f, -0.37219677f, -0.35873544f, -0.07721480f },
	    { -1.10394606f, -0.10384122f, 0.68095230f, -0.56485400f, 0.20740696f, -0.84858510f, -0.01519683f,
	      0.71718019f },
	    { -1.00034573f, -0.69888717f, -0.50693242f, -0.42677573f, -0.02508670f, 0.25277085f, 0.37058354f,
	      0.50697968f } } },
	{ { .optimizer = DDP_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1 },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.82641404f, -0.53977380f, -0.37794502f, -0.38598486f, -0.36264901f, -0.07897702f },
	    { -1.11526581f, -0.10556331f, 0.79054878f, -0.58148269f, 0.20744885f, -0.86205666f, -0.01522813f,
	      0.72923038f },
	    { -1.01241199f, -0.70027220f, -0.56350078f, -0.43466698f, -0.02643416f, 0.25470956f, 0.38181624f,
	      0.51455299f } } },
	{ { .optimizer = DDP_SGD, .momentum = 0.9, .weight_decay = 0.1 },
	  { { -0.73190812f, -0.04746219f, 0.52513906f, -0.40153156f, -0.01142094f },
	    { -0.75176180f, -0.51836575f, -0.40109819f, -0.33435641f, -0.32482892f, -0.09143287f },
	    { -1.06671035f, -0.13202572f, 0.68653043f, -0.53242353f, 0.17839254f, -0.87390715f, -0.05535100f,
	      0.71267937f },
	    { -0.97658079f, -0.67055679f, -0.48693358f, -0.36052466f, -0.01024718f, 0.22390181f, 0.40752502f,
	      0.53393394f } } },
	{ { .optimizer = DDP_SGD, .weight_decay = 0.1 },
	  { { -0.67500000f, -0.12500000f, 0.42500000f, -0.47187500f, 0.00625000f },
	    { -0.74050296f, -0.56909079f, -0.46919962f, -0.36895265f, -0.26834811f, -0.09693595f },
	    { -1.01525420f, -0.11240548f, 0.71892226f, -0.52179781f, 0.31024330f, -0.85931157f, -0.02798383f,
	      0.80369970f },
	    { -1.09765111f, -0.80397884f, -0.58182578f, -0.35931515f, -0.06599689f, 0.15580038f, 0.37795344f,
	      0.60046408f } } },
	{ { .optimizer = DDP_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1 },
	  { { -0.77121731f, -0.05521597f, 0.56012516f, -0.38325341f, -0.00402884f },
	    { -0.74113064f, -0.47443369f, -0.38187434f, -0.33287764f, -0.33388664f, -0.06718969f },
	    { -1.07358042f, -0.11872081f, 0.66200121f, -0.55063365f, 0.13652001f, -0.85841459f, -0.07769257f,
	      0.65946679f },
	    { -0.96670907f, -0.62289344f, -0.45920296f, -0.34551819f, 0.03587254f, 0.24312566f, 0.40681614f,
	      0.52050091f } } },
	{ { .optimizer = DDP_LAMB, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1 },
	  { { -0.75067046f, -0.03890184f, 0.53003483f, -0.45406598f, -0.07048192f },
	    { -0.76699285f, -0.53210130f, -0.39532407f, -0.34619276f, -0.33174084f, -0.09937054f },
	    { -1.12407039f, -0.13631775f, 0.73490367f, -0.58546303f, 0.16449388f, -0.90249132f, -0.06643909f,
	      0.68809635f },
	    { -1.01138716f, -0.68361939f, -0.50929310f, -0.39091409f, -0.01514043f, 0.25211036f, 0.41784108f,
	      0.53816144f } } },
	{ { .optimizer = DDP_ADAFACTOR, .epsilon = 0x1p-23, .weight_decay = 0.1, .adafactor.decay = 0.8,
	    .adafactor.least_scale = 1e-3, .adafactor.clip = 1 },
	  { { -0.66155909f, -0.13074319f, 0.42422978f, -0.47934347f, 0.00616883f },
	    { -0.74573205f, -0.57258782f, -0.47011868f, -0.35418742f, -0.25635830f, -0.08682145f },
	    { -1.01367162f, -0.10520851f, 0.73298551f, -0.56029536f, 0.30725927f, -0.85599633f, -0.02495119f,
	      0.76152904f },
	    { -1.10010499f, -0.79701093f, -0.55492875f, -0.37943942f, -0.04533892f, 0.16150560f, 0.39670684f,
	      0.58260436f } } },
	{ { .optimizer = DDP_MUON, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .momentum = 0.95,
	    .weight_decay = 0.1, .muon.iterations = 5 },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.76810382f, -0.54711744f, -0.45389458f, -0.36560002f, -0.31600040f, -0.08723952f },
	    { -1.05903383f, -0.16610851f, 0.69600726f, -0.57946798f, 0.23367277f, -0.94496748f, -0.08368973f,
	      0.71407665f },
	    { -1.01241199f, -0.70027220f, -0.56350078f, -0.43466698f, -0.02643416f, 0.25470956f, 0.38181624f,
	      0.51455299f } } },
	{ { .optimizer = DDP_MUON, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .momentum = 0.95,
	    .weight_decay = 0.1, .muon.iterations = 5, .muon.match_rms = true },
	  { { -0.75067081f, -0.03890169f, 0.53003521f, -0.45406649f, -0.07048212f },
	    { -0.74413848f, -0.58790996f, -0.47594003f, -0.36567731f, -0.26881892f, -0.10989724f },
	    { -0.99894675f, -0.13440843f, 0.72141565f, -0.51360167f, 0.32837017f, -0.87925807f, -0.02367103f,
	      0.81395228f },
	    { -1.01241199f, -0.70027220f, -0.56350078f, -0.43466698f, -0.02643416f, 0.25470956f, 0.38181624f,
	      0.51455299f } } },
	{ { .optimizer = DDP_LION, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1 },
	  { { -0.77500000f, -0.07500000f, 0.52500000f, -0.45000000f, -0.05000000f },
	    { -0.78044653f, -0.55952799f, -0.43861441f, -0.41572076f, -0.29282216f, -0.07190361f },
	    { -1.02425872f, -0.07190361f, 0.78044653f, -0.53762686f, 0.21770581f, -0.80334018f, 0.00000249f,
	      0.70483269f },
	    { -1.04814987f, -0.70483269f, -0.55953295f, -0.41472825f, -0.07190361f, 0.17091606f, 0.31571580f,
	      0.56052050f } } },
};

enum { RECORDED = sizeof(recorded) / sizeof(recorded[0]) };

/* The first case of an optimizer; NULL: it has none. */
static inline const struct recorded *recorded_of(ddp_optimizer optimizer)
{
	for (int r = 0; r < RECORDED; r++) {
		if (recorded[r].options.optimizer == optimizer)
			return &recorded[r];
	}
	return NULL;
}

static const double LEARNING_RATE = 0.05;

/* Element i of tensor t at first, and its gradient, multiplied by WEIGHT. */
static inline float first_of(int t, int i)
{
	return (float)((i * starts[t].step) % starts[t].period - starts[t].period / 2) / 8;
}

static inline float gradient_of(int t, int i, int64_t step)
{
	return (float)WEIGHT * (float)(((i + 100 * t) * 29 + step * 17) % 23 - 11) / 16;
}
