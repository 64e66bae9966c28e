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
__attribute__((target("sse4.2")))
static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint64_t wide = ~crc;

	for (; bytes >= 8; at += 8, bytes -= 8) {
		uint64_t word;
		memcpy(&word, at, 8);
		wide = __builtin_ia32_crc32di(wide, word);
	}
	uint32_t narrow = (uint32_t)wide;
	for (; bytes > 0; at++, bytes--)
		narrow = __builtin_ia32_crc32qi(narrow, *at);
	return ~narrow;
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
