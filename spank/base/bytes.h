/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in messages are little-endian on every machine. */
#pragma once

#include <stdbool.h>
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

/* A place in a message that is written, or read, so that one function lists the fields of a message for both. */
struct codec {
	unsigned char *at;
	bool reads;
};

static inline void codec_8(struct codec *codec, uint32_t *number)
{
	if (codec->reads)
		*number = *codec->at;
	else
		*codec->at = (unsigned char)*number;
	codec->at++;
}

static inline void codec_32(struct codec *codec, uint32_t *number)
{
	if (codec->reads)
		*number = bytes_get32(codec->at);
	else
		bytes_put32(codec->at, *number);
	codec->at += 4;
}

static inline void codec_64(struct codec *codec, uint64_t *number)
{
	if (codec->reads)
		*number = bytes_get64(codec->at);
	else
		bytes_put64(codec->at, *number);
	codec->at += 8;
}
