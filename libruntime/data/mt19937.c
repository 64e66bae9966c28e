/* SPDX-License-Identifier: Apache-2.0 */
#include "data/mt19937.h"

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
