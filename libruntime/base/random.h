/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by a state, of SplitMix64 (kernels/splitmix.h). */
#pragma once

#include "splitmix.h"

static inline uint64_t ddp_random_next(uint64_t *state)
{
	return dk_splitmix(*state += DK_SPLITMIX_STEP);
}
