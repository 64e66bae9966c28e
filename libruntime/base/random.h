/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same numbers on every machine. */
#ifndef DDP_BASE_RANDOM_H
#define DDP_BASE_RANDOM_H

#include <stdint.h>

#define DDP_RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

/* The number of a state. */
static inline uint64_t ddp_random_of(uint64_t state)
{
	state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
	state = (state ^ state >> 27) * 0x94d049bb133111ebu;
	return state ^ state >> 31;
}

static inline uint64_t ddp_random_next(uint64_t *state)
{
	return ddp_random_of(*state += DDP_RANDOM_STEP);
}

#endif
