/* SPDX-License-Identifier: Apache-2.0 */
/* sampler: the order of samples. The public part is in ddp.h.

   randperm is the permutation that torch.randperm(n) draws on the CPU from
   a generator with manual_seed(seed):
    - n < 214748364 (UINT32_MAX / 20): 32-bit draws, in every version of PyTorch;
    - larger n: 64-bit draws, as PyTorch does since 2.6; earlier versions went
      on with 32-bit draws there and gave another order. */
#pragma once

#include "ddp.h"

/* The Mersenne Twister (Matsumoto and Nishimura, 1998), 32 bit. */
typedef struct ddp_mt19937 {
	uint32_t state[624];
	int next;
} ddp_mt19937;

void ddp_mt19937_seed(ddp_mt19937 *engine, uint32_t seed);
uint32_t ddp_mt19937_next(ddp_mt19937 *engine);

enum { DDP_RANDPERM_WIDE = 214748364 };

/* Writes the permutation of 0 .. n - 1; n <= UINT32_MAX. */
void ddp_randperm(uint64_t seed, uint32_t n, uint32_t *permutation);
/* The variant of large n, for any n. */
void ddp_randperm_wide(uint64_t seed, uint32_t n, uint32_t *permutation);

/* Samples per rank and epoch (for DDP_TAIL_UNEVEN: of this rank). */
int64_t ddp_sampler_share(int64_t size, int world_size, int rank, ddp_tail tail);
