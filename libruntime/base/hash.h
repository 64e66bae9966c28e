/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a (Fowler, Noll, Vo), 64 bits: tells data apart that nobody forges. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline uint64_t ddp_hash(const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint64_t hash = 14695981039346656037u;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ at[i]) * 1099511628211u;
	return hash;
}
