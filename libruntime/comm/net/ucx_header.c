/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_header.h"

#include <endian.h>
#include <string.h>

enum { NUMBER_BITS = 24 }; /* of a collective's tag, below the sequence (comm/wait/message) */

/* These words follow the seal. So that most of them are small, the sequence stands below the message's number, and the
   sender's rank is told by how it differs from that in the world. */
static void list_words(const data_header *header, uint64_t words[DDP_HEADER_WORDS])
{
	const ddp_envelope *e = &header->envelope;
	const ddp_fingerprint *o = &e->operation;

	words[0] = header->id;
	words[1] = e->tag >> NUMBER_BITS | e->tag << (64 - NUMBER_BITS);
	words[2] = (uint64_t)o->kind | (uint64_t)o->type << 8 | (uint64_t)o->op << 16 | (uint64_t)o->by_counts << 24 |
		(uint64_t)(uint32_t)o->root << 32;
	words[3] = o->count;
	words[4] = o->counts_hash;
	words[5] = (uint32_t)e->source ^ (uint32_t)header->seal.source;
	words[6] = header->charge;
}

/* The reverse. */
static void take_words(const uint64_t words[DDP_HEADER_WORDS], data_header *header)
{
	header->id = words[0];
	header->envelope = (ddp_envelope){
		.tag = words[1] << NUMBER_BITS | words[1] >> (64 - NUMBER_BITS),
		.operation = {
			.kind = (uint8_t)words[2], .type = (uint8_t)(words[2] >> 8), .op = (uint8_t)(words[2] >> 16),
			.by_counts = (uint8_t)(words[2] >> 24), .root = (int32_t)(words[2] >> 32),
			.count = words[3], .counts_hash = (uint32_t)words[4],
		},
		.source = (int32_t)((uint32_t)words[5] ^ (uint32_t)header->seal.source),
	};
	header->charge = words[6];
}

static unsigned int bytes_of(uint64_t word)
{
	return word == 0 ? 0 : (71 - (unsigned int)__builtin_clzll(word)) / 8;
}

/* The seal, half a byte for each word, which counts its bytes, and these bytes, the lowest first. */
size_t ddp_ucx_header_write(const data_header *header, unsigned char to[DDP_HEADER_MAX])
{
	unsigned char *at = to + DDP_HEADER_MIN, *counts = to + DDP_SEAL_BYTES;
	uint64_t words[DDP_HEADER_WORDS];

	memcpy(to, &header->seal, DDP_SEAL_BYTES);
	memset(counts, 0, DDP_HEADER_MIN - DDP_SEAL_BYTES);
	list_words(header, words);
	for (unsigned int i = 0; i < DDP_HEADER_WORDS; i++) {
		const unsigned int bytes = bytes_of(words[i]);
		const uint64_t word = htole64(words[i]);
		counts[i / 2] |= (unsigned char)(bytes << i % 2 * 4);
		memcpy(at, &word, sizeof(word)); /* there is room for all words whole */
		at += bytes;
	}
	return (size_t)(at - to);
}

bool ddp_ucx_header_read(const void *from, size_t bytes, data_header *header)
{
	/* With room behind it, so that each word is read whole, whatever it counts. */
	unsigned char copy[DDP_HEADER_MAX + sizeof(uint64_t)] = { 0 };
	const unsigned char *counts = copy + DDP_SEAL_BYTES;
	uint64_t words[DDP_HEADER_WORDS];
	size_t at = DDP_HEADER_MIN;

	if (bytes < DDP_HEADER_MIN || bytes > DDP_HEADER_MAX)
		return false;
	memcpy(copy, from, bytes);
	*header = (data_header){ .id = 0 };
	memcpy(&header->seal, copy, DDP_SEAL_BYTES);
	for (unsigned int i = 0; i < DDP_HEADER_WORDS; i++) {
		const unsigned int count = counts[i / 2] >> i % 2 * 4 & 15;
		uint64_t word;
		if (count > sizeof(word) || at + count > bytes)
			return false;
		memcpy(&word, copy + at, sizeof(word));
		words[i] = count == 0 ? 0 : le64toh(word) & UINT64_MAX >> (64 - 8 * count);
		at += count;
	}
	take_words(words, header);
	return at == bytes;
}
