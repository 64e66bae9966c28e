/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in messages are little-endian on every machine. */
#pragma once

#include <stdint.h>

static inline void bytes_put32(unsigned char bytes[4], uint32_t number)
{
	for (int i = 0; i < 4; i++)
		bytes[i] = (unsigned char)(number >> (8 * i));
}

static inline void bytes_put64(unsigned char bytes[8], uint64_t number)
{
	bytes_put32(bytes, (uint32_t)number);
	bytes_put32(bytes + 4, (uint32_t)(number >> 32));
}

static inline uint32_t bytes_get32(const unsigned char bytes[4])
{
	uint32_t number = 0;

	for (int i = 0; i < 4; i++)
		number |= (uint32_t)bytes[i] << (8 * i);
	return number;
}

static inline uint64_t bytes_get64(const unsigned char bytes[8])
{
	return bytes_get32(bytes) | (uint64_t)bytes_get32(bytes + 4) << 32;
}
