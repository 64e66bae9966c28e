/* SPDX-License-Identifier: Apache-2.0 */
/* The order of PyTorch's DistributedSampler: permute all samples (or not),
   make the list as long as the ranks need, deal it out like cards. Each rank
   permutes the whole list, 4 bytes a sample, and keeps its own share. */
#include "data/sampler.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- the Mersenne Twister ------------------------------------------------------------- */

enum { N = 624, M = 397 };

void ddp_mt19937_seed(ddp_mt19937 *engine, uint32_t seed)
{
	engine->state[0] = seed;
	for (uint32_t i = 1; i < N; i++) {
		uint32_t before = engine->state[i - 1];
		engine->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
	}
	engine->next = N;
}

static uint32_t twist(uint32_t upper, uint32_t lower, uint32_t far)
{
	uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);

	return far ^ (mixed >> 1) ^ ((lower & 1u) != 0 ? 0x9908b0dfu : 0u);
}

static void refill(ddp_mt19937 *engine)
{
	uint32_t *s = engine->state;

	for (int i = 0; i < N; i++)
		s[i] = twist(s[i], s[(i + 1) % N], s[(i + M) % N]);
	engine->next = 0;
}

uint32_t ddp_mt19937_next(ddp_mt19937 *engine)
{
	if (engine->next == N)
		refill(engine);
	uint32_t y = engine->state[engine->next++];
	y ^= y >> 11;
	y ^= (y << 7) & 0x9d2c5680u;
	y ^= (y << 15) & 0xefc60000u;
	return y ^ (y >> 18);
}

/* ---- permutations ---------------------------------------------------------------------- */

struct ddp_sampler {
	int64_t size;
	int world_size;
	int rank;
	uint64_t seed;
	bool shuffle;
	ddp_tail tail;
	int64_t count;
	int64_t *indices;
};

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t kept = *a;
	*a = *b;
	*b = kept;
}

/* PyTorch's generator keeps the low 32 bits of a seed. */
static void narrow(uint64_t seed, uint32_t n, uint32_t *permutation)
{
	ddp_mt19937 engine;

	ddp_mt19937_seed(&engine, (uint32_t)seed);
	for (uint32_t i = 0; i < n; i++)
		permutation[i] = i;
	for (uint32_t i = 0; i + 1 < n; i++)
		swap(&permutation[i], &permutation[i + ddp_mt19937_next(&engine) % (n - i)]);
}

void ddp_randperm_wide(uint64_t seed, uint32_t n, uint32_t *permutation)
{
	ddp_mt19937 engine;

	ddp_mt19937_seed(&engine, (uint32_t)seed);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t draw = (uint64_t)ddp_mt19937_next(&engine) << 32;
		draw |= ddp_mt19937_next(&engine);
		uint32_t from = (uint32_t)(draw % ((uint64_t)i + 1));
		permutation[i] = i;
		permutation[i] = permutation[from];
		permutation[from] = i;
	}
}

void ddp_randperm(uint64_t seed, uint32_t n, uint32_t *permutation)
{
	if (n < DDP_RANDPERM_WIDE)
		narrow(seed, n, permutation);
	else
		ddp_randperm_wide(seed, n, permutation);
}

int64_t ddp_sampler_share(int64_t size, int world_size, int rank, ddp_tail tail)
{
	int64_t whole = size / world_size;
	int64_t rest = size % world_size;

	switch (tail) {
	case DDP_TAIL_DROP:
		return whole;
	case DDP_TAIL_UNEVEN:
		return whole + (rank < rest);
	case DDP_TAIL_PAD:
		break;
	}
	return whole + (rest > 0);
}

ddp_status ddp_sampler_create(int64_t size, int world_size, int rank, uint64_t seed,
                              bool shuffle, ddp_tail tail, ddp_sampler **sampler)
{
	if (sampler == NULL)
		return ddp_fail_null("ddp_sampler_create", "sampler");
	if (size < 1 || size > UINT32_MAX)
		return ddp_fail(DDP_ERR_INVALID, "sampler: size is %lld, must be 1 .. 4294967295",
		                (long long)size);
	if (world_size < 1 || rank < 0 || rank >= world_size)
		return ddp_fail(DDP_ERR_INVALID, "sampler: rank %d of %d does not exist",
		                rank, world_size);
	if (tail != DDP_TAIL_PAD && tail != DDP_TAIL_DROP && tail != DDP_TAIL_UNEVEN)
		return ddp_fail(DDP_ERR_INVALID, "sampler: %d is no ddp_tail", (int)tail);

	ddp_sampler *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a sampler");
	*made = (ddp_sampler){
		.size = size, .world_size = world_size, .rank = rank, .seed = seed,
		.shuffle = shuffle, .tail = tail, .count = ddp_sampler_share(size, world_size, rank, tail),
	};
	/* One more, so that a share of 0 is no NULL. */
	made->indices = malloc(((size_t)made->count + 1) * sizeof(*made->indices));
	if (made->indices == NULL) {
		free(made);
		return ddp_fail(DDP_ERR_NOMEM, "sampler: no memory for %lld indices",
		                (long long)size / world_size);
	}
	ddp_status status = ddp_sampler_set_epoch(made, 0);
	if (status != DDP_OK) {
		ddp_sampler_free(made);
		return status;
	}
	*sampler = made;
	return DDP_OK;
}

ddp_status ddp_sampler_set_epoch(ddp_sampler *sampler, int64_t epoch)
{
	if (sampler == NULL)
		return ddp_fail_null("ddp_sampler_set_epoch", "sampler");
	return ddp_sampler_set_place(sampler, epoch, 0);
}

ddp_status ddp_sampler_set_place(ddp_sampler *sampler, int64_t epoch, int64_t samples)
{
	uint32_t *order = NULL;

	if (sampler == NULL)
		return ddp_fail_null("ddp_sampler_set_place", "sampler");
	if (epoch < 0 || samples < 0 || samples >= sampler->size)
		return ddp_fail(DDP_ERR_INVALID, "sampler: epoch %lld has no sample %lld: epochs begin at 0, and samples are 0 .. %lld",
		                (long long)epoch, (long long)samples, (long long)sampler->size - 1);
	if (sampler->shuffle) {
		order = malloc((size_t)sampler->size * sizeof(*order));
		if (order == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "sampler: no memory to shuffle %lld samples",
			                (long long)sampler->size);
		ddp_randperm(sampler->seed + (uint64_t)epoch, (uint32_t)sampler->size, order);
	}
	sampler->count = ddp_sampler_share(sampler->size - samples, sampler->world_size, sampler->rank, sampler->tail);
	for (int64_t i = 0; i < sampler->count; i++) {
		/* Padding starts again at the front, as often as it takes. */
		int64_t at = (samples + sampler->rank + i * sampler->world_size) % sampler->size;
		sampler->indices[i] = order != NULL ? order[at] : at;
	}
	free(order);
	return DDP_OK;
}

const int64_t *ddp_sampler_indices(const ddp_sampler *sampler, int64_t *count)
{
	if (count != NULL)
		*count = sampler != NULL ? sampler->count : 0;
	return sampler != NULL ? sampler->indices : NULL;
}

void ddp_sampler_free(ddp_sampler *sampler)
{
	if (sampler == NULL)
		return;
	free(sampler->indices);
	free(sampler);
}
