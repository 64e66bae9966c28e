/* SPDX-License-Identifier: Apache-2.0 */
/* mt19937: the Mersenne Twister (Matsumoto and Nishimura, 1998), 32 bit. */
#pragma once

#include <stdint.h>

typedef struct ddp_mt19937 {
	uint32_t state[624];
	int next;
} ddp_mt19937;

void ddp_mt19937_seed(ddp_mt19937 *engine, uint32_t seed);
uint32_t ddp_mt19937_next(ddp_mt19937 *engine);
