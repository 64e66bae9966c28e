/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer updates. No fused multiply-add and no reduction whose order hangs
   on the vector's width: replicas on unlike hosts must stay equal bit for bit. */
#include "cpu/inner.h"
#include "cpu/vec.h"

enum { LINE = 16, AHEAD = 512, AHEAD_ALONE = 2048 };

/* From one page to the next the processor fetches nothing by itself, so what is read later is asked for: best so far
   AHEAD, or AHEAD_ALONE where there is one array. */
static inline void fetch(const float *x, int64_t i)
{
	if (i % LINE == 0)
		__builtin_prefetch(x + i + AHEAD);
}

static inline void adamw_vector(vf *param, vf grad, vf *m, vf *v, const dk_update_consts *c)
{
	grad = grad * c->grad_scale;
	if (c->coupled != 0)
		grad = grad + *param * c->coupled;
	*m = *m * c->beta1 + grad * c->one_beta1;
	*v = *v * c->beta2 + grad * c->one_beta2 * grad;
	vf denominator = vf_sqrt(*v) / c->root_correction2 + c->epsilon;
	*param = *param * c->decay + *m * c->minus_step_size / denominator;
}

static void adamw(float *param, float *grad, float *m, float *v, int64_t n, const dk_update_consts *c)
{
	int64_t i = 0;

	for (; i + VF <= n; i += VF) {
		fetch(param, i);
		fetch(grad, i);
		fetch(m, i);
		fetch(v, i);
		vf p = vf_load(param + i), mi = vf_load(m + i), vi_ = vf_load(v + i);
		adamw_vector(&p, vf_load(grad + i), &mi, &vi_, c);
		vf_store(param + i, p);
		vf_store(m + i, mi);
		vf_store(v + i, vi_);
		vf_store(grad + i, vf_set(0));
	}
	if (i < n) {
		int64_t rest = n - i;
		vf p = vf_load_part(param + i, rest, 0), mi = vf_load_part(m + i, rest, 0);
		vf vi_ = vf_load_part(v + i, rest, 0);
		adamw_vector(&p, vf_load_part(grad + i, rest, 0), &mi, &vi_, c);
		vf_store_part(param + i, rest, p);
		vf_store_part(m + i, rest, mi);
		vf_store_part(v + i, rest, vi_);
		vf_store_part(grad + i, rest, vf_set(0));
	}
}

void DK_NAME(adamw_direction)(const float *param, float *grad, float *m, float *v, int64_t n,
                              const dk_update_consts *c)
{
	FOR_VECTORS(i, part, n) {
		vf g = vf_load_some(grad + i, part) * c->grad_scale;
		vf mi = vf_load_some(m + i, part) * c->beta1 + g * c->one_beta1;
		vf vi_ = vf_load_some(v + i, part) * c->beta2 + g * c->one_beta2 * g;
		vf denominator = vf_sqrt(vi_) / c->root_correction2 + c->epsilon;
		vf step = mi * -c->minus_step_size / denominator;
		vf_store_some(m + i, part, mi);
		vf_store_some(v + i, part, vi_);
		vf_store_some(grad + i, part, step + vf_load_some(param + i, part) * c->coupled);
	}
}

static inline float sgd_one(float param, float grad, float *buffer, const dk_update_consts *c)
{
	grad = grad * c->grad_scale + param * c->coupled;
	if (buffer != NULL) {
		*buffer = *buffer * c->momentum + grad;
		grad = c->nesterov != 0 ? grad + *buffer * c->nesterov : *buffer;
	}
	return param + grad * c->minus_step_size;
}

static void sgd(float *param, float *grad, float *buffer, float *unused, int64_t n, const dk_update_consts *c)
{
	int64_t i = 0;

	(void)unused;
	for (; i + VF <= n; i += VF) {
		fetch(param, i);
		fetch(grad, i);
		vf p = vf_load(param + i);
		vf g = vf_load(grad + i) * c->grad_scale + p * c->coupled;
		if (buffer != NULL) {
			fetch(buffer, i);
			vf b = vf_load(buffer + i) * c->momentum + g;
			vf_store(buffer + i, b);
			g = c->nesterov != 0 ? g + b * c->nesterov : b;
		}
		vf_store(param + i, p + g * c->minus_step_size);
		vf_store(grad + i, vf_set(0));
	}
	for (; i < n; i++) {
		param[i] = sgd_one(param[i], grad[i], buffer != NULL ? buffer + i : NULL, c);
		grad[i] = 0;
	}
}

/* 1 for what is above 0, and -1 for what is below. */
static inline vf sign_of(vf x)
{
	return __builtin_convertvector((vi)(x < vf_set(0)) - (vi)(x > vf_set(0)), vf);
}

static void lion(float *param, float *grad, float *m, float *unused, int64_t n, const dk_update_consts *c)
{
	(void)unused;
	FOR_VECTORS(i, part, n) {
		fetch(param, i);
		fetch(grad, i);
		fetch(m, i);
		vf g = vf_load_some(grad + i, part) * c->grad_scale, mi = vf_load_some(m + i, part);
		vf direction = sign_of(mi * c->beta1 + g * c->one_beta1);
		vf_store_some(param + i, part, vf_load_some(param + i, part) * c->decay + direction * c->minus_step_size);
		vf_store_some(m + i, part, mi * c->beta2 + g * c->one_beta2);
		vf_store_some(grad + i, part, vf_set(0));
	}
}

dk_update_fn *const DK_NAME(update)[DK_RULES] = {
	[DK_ADAMW] = adamw, [DK_SGD] = sgd, [DK_LION] = lion,
};

void DK_NAME(mix)(float *x, const float *y, float a, float b, int64_t n)
{
	FOR_VECTORS(i, part, n)
		vf_store_some(x + i, part, vf_load_some(x + i, part) * a + vf_load_some(y + i, part) * b);
}

void DK_NAME(mix_squares)(float *x, const float *y, float a, float b, int64_t n)
{
	FOR_VECTORS(i, part, n) {
		vf yi = vf_load_some(y + i, part);
		vf_store_some(x + i, part, vf_load_some(x + i, part) * a + yi * b * yi);
	}
}

void DK_NAME(divide_by_roots)(float *x, const float *squares, float factor, float least, int64_t n)
{
	FOR_VECTORS(i, part, n) {
		vf square = vf_max(vf_load_some(squares + i, part) * factor, vf_set(least));
		vf_store_some(x + i, part, vf_load_some(x + i, part) / vf_sqrt(square));
	}
}

/* Without its sign, a float's bits order as an integer: numbers, infinity, NaN. */
int32_t DK_NAME(largest_bits)(const float *x, int64_t n)
{
	const vi magnitude = (vi){0} + INT32_MAX;
	vi a = {0}, b = {0}, c = {0}, d = {0}; /* they do not wait for one another */
	int32_t most = 0;
	int64_t i = 0;

	for (; i + 4 * VF <= n; i += 4 * VF) {
		a = vi_max(a, (vi)vf_load(x + i) & magnitude);
		b = vi_max(b, (vi)vf_load(x + i + VF) & magnitude);
		c = vi_max(c, (vi)vf_load(x + i + 2 * VF) & magnitude);
		d = vi_max(d, (vi)vf_load(x + i + 3 * VF) & magnitude);
	}
	for (; i < n; i += VF)
		a = vi_max(a, (vi)vf_load_part(x + i, n - i < VF ? n - i : VF, 0) & magnitude);
	a = vi_max(vi_max(a, b), vi_max(c, d));
	for (int lane = 0; lane < VF; lane++)
		most = a[lane] > most ? a[lane] : most;
	return most;
}

/* However wide the vectors are, the running sums are as many. */
double DK_NAME(sum_squares)(const float *x, int64_t n)
{
	enum { SUMS = DK_SQUARES_SUMS, PARTS = SUMS / VD };
	vd sums[PARTS];
	double lanes[SUMS];
	int64_t i = 0;

	memset(sums, 0, sizeof(sums));
	for (; i + SUMS <= n; i += SUMS) {
		DK_UNROLL
		for (int k = 0; k < SUMS; k += LINE)
			__builtin_prefetch(x + i + AHEAD_ALONE + k);
		DK_UNROLL
		for (int k = 0; k < PARTS; k++) {
			const vd wide = vd_load_floats(x + i + k * VD);
			sums[k] = sums[k] + wide * wide;
		}
	}
	memcpy(lanes, sums, sizeof(lanes));
	for (int lane = 0; i < n; i++, lane++)
		lanes[lane] += (double)x[i] * (double)x[i];
	for (int width = SUMS / 2; width > 0; width /= 2)
		for (int lane = 0; lane < width; lane++)
			lanes[lane] += lanes[lane + width];
	return lanes[0];
}

/* A vector of words as two of twice the width: sums of the even words and of the odd ones, and the sums of these sums
   after each row. The latter count a word as often as there are rows from its own one on. */
typedef struct word_sums {
	vul even, odd, evens, odds;
} word_sums;

static inline void add_words(word_sums *s, vf words)
{
	s->even += (vul)words & UINT32_MAX;
	s->odd += (vul)words >> 32;
	s->evens += s->even;
	s->odds += s->odd;
}

/* The sum of the lanes, which lane `first` of the row begins. */
static uint64_t total_of(const word_sums *s, int first)
{
	uint64_t total = 0;

	for (int i = 0; i < VD; i++)
		total += 2 * DK_CHECKSUM_LANES * (s->evens[i] + s->odds[i]) +
		         (uint64_t)(2 * (first + 2 * i) + 1) * s->even[i] + (uint64_t)(2 * (first + 2 * i) + 3) * s->odd[i];
	return total;
}

uint64_t DK_NAME(checksum)(const float *x, int64_t n)
{
	enum { PARTS = DK_CHECKSUM_LANES / VF };
	word_sums sums[PARTS];
	float rest[DK_CHECKSUM_LANES] = {0};
	uint64_t total = 0;
	int64_t i = 0;

	memset(sums, 0, sizeof(sums));
	for (; i + DK_CHECKSUM_LANES <= n; i += DK_CHECKSUM_LANES) {
		__builtin_prefetch(x + i + AHEAD_ALONE);
		DK_UNROLL
		for (int k = 0; k < PARTS; k++)
			add_words(&sums[k], vf_load(x + i + k * VF));
	}
	if (i < n) {
		memcpy(rest, x + i, (size_t)(n - i) * sizeof(float));
		for (int k = 0; k < PARTS; k++)
			add_words(&sums[k], vf_load(rest + k * VF));
	}
	for (int k = 0; k < PARTS; k++)
		total += total_of(&sums[k], k * VF);
	return total;
}
