/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, and from one type to another. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "half.h"

/* Elements that are worth a thread of their own. */
enum { GRAIN = 65536 };

void dk_cpu_copy(void *to, const void *from, size_t bytes)
{
	if (bytes > 0)
		memcpy(to, from, bytes);
}

void dk_cpu_zero(float *x, int64_t n)
{
	if (n > 0)
		memset(x, 0, (size_t)n * sizeof(*x));
}

struct conversion {
	float *wide;
	const float *wide_in;
	uint16_t *narrow;
	const uint16_t *narrow_in;
	float factor;
};

static void scale_span(void *arg, int64_t first, int64_t last)
{
	struct conversion *c = arg;

	dk_inner()->scale(c->wide + first, last - first, c->factor);
}

void dk_cpu_scale(float *x, int64_t n, float factor)
{
	dk_parallel(n, GRAIN, scale_span, &(struct conversion){.wide = x, .factor = factor});
}

static void to_bf16_span(void *arg, int64_t first, int64_t last)
{
	const struct conversion *c = arg;

	dk_inner()->to_bf16(c->narrow + first, c->wide_in + first, last - first);
}

void dk_cpu_to_bf16(uint16_t *out, const float *in, int64_t n)
{
	dk_parallel(n, GRAIN, to_bf16_span, &(struct conversion){.narrow = out, .wide_in = in});
}

static void from_bf16_span(void *arg, int64_t first, int64_t last)
{
	const struct conversion *c = arg;

	dk_inner()->from_bf16(c->wide + first, c->narrow_in + first, last - first);
}

void dk_cpu_from_bf16(float *out, const uint16_t *in, int64_t n)
{
	dk_parallel(n, GRAIN, from_bf16_span, &(struct conversion){.wide = out, .narrow_in = in});
}

static void to_f16_span(void *arg, int64_t first, int64_t last)
{
	const struct conversion *c = arg;

	for (int64_t i = first; i < last; i++)
		c->narrow[i] = dk_half_of(c->wide_in[i] * c->factor);
}

void dk_cpu_to_f16(uint16_t *out, const float *in, int64_t n, float factor)
{
	dk_parallel(n, GRAIN, to_f16_span, &(struct conversion){.narrow = out, .wide_in = in, .factor = factor});
}

static void from_f16_span(void *arg, int64_t first, int64_t last)
{
	const struct conversion *c = arg;

	for (int64_t i = first; i < last; i++)
		c->wide[i] = dk_half_to_float(c->narrow_in[i]) * c->factor;
}

void dk_cpu_from_f16(float *out, const uint16_t *in, int64_t n, float factor)
{
	dk_parallel(n, GRAIN, from_f16_span, &(struct conversion){.wide = out, .narrow_in = in, .factor = factor});
}
