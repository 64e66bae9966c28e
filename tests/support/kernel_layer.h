/*
 * kernel_layer: a layer in each place and type that the program is linked with: forward
 * against its naive version in double precision, gradients against finite differences of
 * that, and one thread against three, or one order of threads against another.
 */
#ifndef TESTS_KERNEL_LAYER_H
#define TESTS_KERNEL_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "tests/support/kernel_place.h"

enum { INPUTS = 4 };

/* The references take most of the time; under a sanitizer it would be minutes. */
#define SLOW __attribute__((no_sanitize("address", "thread", "undefined")))

/* Where the case at hand is tried. */
extern kernel_place place;

/* Runs the test for each type, or skips it where there is no such place. */
void in_each_place(void (*test)(void));

/* Of a tensor's. */
size_t element_bytes(void);
/* As the place's type has it. */
float rounded(float x);

/* A copy of the host's numbers there, and back, which frees it. Of DK_MIXED, gradients of
   parameters are f32. */
float *give(const float *from, int64_t n);
void take(float *to, float *there, int64_t n);
float *give_gradient(const float *from, int64_t n, bool of_parameter);
void take_gradient(float *to, float *there, int64_t n, bool of_parameter);

/* A shape means what its layer says. */
typedef struct shape {
	int64_t a, b, c, d;
	const int32_t *tokens;
} shape;

typedef struct layer {
	const char *name;
	int inputs;
	bool adds[INPUTS]; /* backward adds to this gradient, instead of setting it */
	float spread;      /* inputs lie within -spread .. spread */
	int64_t (*size)(const shape *s, int input); /* of an input; -1: of out */
	void (*naive)(const shape *s, double *const in[], double *out);
	void (*forward)(const shape *s, float *const in[], float *out, float *kept);
	void (*backward)(const shape *s, float *const in[], const float *out, float *kept,
	                 const float *dout, float *const din[]);
	size_t (*kept)(const shape *s);
	bool product;      /* dk_gemm() at its heart: bits hang on the host's threads */
	int64_t (*tokens)(const shape *s); /* how many the shape has, if any */
	bool carries;      /* input 0 is of a path that bypasses it, so that its gradient, too, is added to */
} layer;

/* With as many of the shapes as are not too large for the place. */
void check_layer(const layer *l, const shape *shapes, size_t count);

#define CHECK(layer, shapes) check_layer(&(layer), shapes, sizeof(shapes) / sizeof((shapes)[0]))

#endif
