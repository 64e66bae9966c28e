/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

/* table[k][b]: the effect of byte b followed by k zero bytes, so that eight
   bytes take eight look-ups that do not wait for one another. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
		table[0][b] = crc;
	}
	for (uint32_t b = 0; b < 256; b++)
		for (int k = 1; k < 8; k++)
			table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t ddp_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
	const unsigned char *at = data;

	pthread_once(&table_once, fill_table);
	crc = ~crc;
	for (; bytes >= 8; at += 8, bytes -= 8) {
		uint64_t word;
		memcpy(&word, at, 8);
		word = le64toh(word) ^ crc;
		crc = 0;
		for (int k = 0; k < 8; k++)
			crc ^= table[7 - k][(word >> (8 * k)) & 0xff];
	}
	for (; bytes > 0; at++, bytes--)
		crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)
/* The instruction's result comes three cycles later, and another one may begin each cycle: so three streams, side by
   side, as in Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011). */
enum { STREAM_BYTES = 4096 };

/* after_zeros[k][b]: the state after STREAM_BYTES zero bytes if byte k of the state was b, and the others were zero. */
static uint32_t after_zeros[4][256];
static pthread_once_t after_zeros_once = PTHREAD_ONCE_INIT;

__attribute__((target("sse4.2")))
static void fill_after_zeros(void)
{
	for (int bit = 0; bit < 32; bit++) {
		const uint32_t b = 1u << (bit % 8);
		uint64_t state = 1u << bit;
		for (int i = 0; i < STREAM_BYTES; i += 8)
			state = __builtin_ia32_crc32di(state, 0);
		/* The map is linear. */
		for (uint32_t below = 0; below < b; below++)
			after_zeros[bit / 8][b + below] = after_zeros[bit / 8][below] ^ (uint32_t)state;
	}
}

static uint64_t shift(uint64_t state)
{
	return after_zeros[0][state & 0xff] ^ after_zeros[1][state >> 8 & 0xff] ^ after_zeros[2][state >> 16 & 0xff] ^
	       after_zeros[3][state >> 24 & 0xff];
}

static uint64_t word_at(const unsigned char *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

__attribute__((target("sse4.2")))
static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint64_t state = ~crc;

	if (bytes >= 3 * STREAM_BYTES)
		pthread_once(&after_zeros_once, fill_after_zeros);
	for (; bytes >= 3 * STREAM_BYTES; at += 3 * STREAM_BYTES, bytes -= 3 * STREAM_BYTES) {
		uint64_t second = 0, third = 0;
		for (int i = 0; i < STREAM_BYTES; i += 8) {
			state = __builtin_ia32_crc32di(state, word_at(at + i));
			second = __builtin_ia32_crc32di(second, word_at(at + STREAM_BYTES + i));
			third = __builtin_ia32_crc32di(third, word_at(at + 2 * STREAM_BYTES + i));
		}
		state = shift(shift(state) ^ second) ^ third;
	}
	for (; bytes >= 8; at += 8, bytes -= 8)
		state = __builtin_ia32_crc32di(state, word_at(at));
	for (; bytes > 0; at++, bytes--)
		state = __builtin_ia32_crc32qi((uint32_t)state, *at);
	return ~(uint32_t)state;
}

uint32_t ddp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	if (__builtin_cpu_supports("sse4.2"))
		return crc32c_sse42(crc, data, bytes);
	return ddp_crc32c_portable(crc, data, bytes);
}
#else
uint32_t ddp_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return ddp_crc32c_portable(crc, data, bytes);
}
#endif
