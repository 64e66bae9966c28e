/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/siphash.h"

static uint64_t load(const unsigned char *bytes, size_t count)
{
	uint64_t word = 0;

	for (size_t i = 0; i < count; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

static uint64_t rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
	while (rounds-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

void siphash(const unsigned char key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             unsigned char tag[SIPHASH_BYTES])
{
	const uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
	const unsigned char *p = data, *whole = p + (bytes & ~(size_t)7);
	uint64_t v[4] = { k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du,
	                  k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u };
	uint64_t word;

	for (; p < whole; p += 8) {
		word = load(p, 8);
		v[3] ^= word;
		mix(v, 2);
		v[0] ^= word;
	}
	word = load(p, bytes & 7) | (uint64_t)bytes << 56;
	v[3] ^= word;
	mix(v, 2);
	v[0] ^= word;
	v[2] ^= 0xff;
	mix(v, 4);
	word = v[0] ^ v[1] ^ v[2] ^ v[3];
	for (int i = 0; i < SIPHASH_BYTES; i++)
		tag[i] = (unsigned char)(word >> (8 * i));
}
