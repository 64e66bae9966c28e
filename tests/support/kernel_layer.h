/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_layer: a layer in each place and type that the program is linked with: forward
   against its naive version in double precision, gradients against finite differences of
   that, and one thread against three, or one order of threads against another. */
#pragma once

#include "tests/support/kernel_cases.h"

enum { INPUTS = 5 };

/* A shape means what its layer says. */
typedef struct shape {
	int64_t a, b, c, d;
	const int32_t *tokens;
} shape;

/* What a layer works on, there. */
typedef struct layer_memory {
	float *in[INPUTS], *out;
	float *kept; /* by forward for backward */
	float *dout, *din[INPUTS];
} layer_memory;

typedef struct layer {
	const char *name;
	int inputs;
	bool adds[INPUTS]; /* backward adds to this gradient, instead of setting it */
	float spread;      /* inputs lie within -spread .. spread, */
	float centre;      /* but input 0 so far around this */
	int64_t (*size)(const shape *s, int input); /* of an input; -1: of out */
	void (*naive)(const shape *s, double *const in[], double *out);
	void (*forward)(const shape *s, const layer_memory *m);
	void (*backward)(const shape *s, const layer_memory *m);
	size_t (*kept)(const shape *s);
	int64_t (*tokens)(const shape *s); /* how many the shape has, if any */
	bool product;      /* dk_gemm() at its heart: bits hang on the host's threads */
	bool carries;      /* input 0 is of a path that bypasses it, so that its gradient, too, is added to */
	bool f32_only;     /* other types have no such layer */
} layer;

/* A number as the place's type has it. */
float rounded(float x);

/* With as many of the shapes as are not too large for the place. */
void check_layer(const layer *l, const shape *shapes, size_t count);

#define CHECK(layer, shapes) check_layer(&(layer), shapes, sizeof(shapes) / sizeof((shapes)[0]))
