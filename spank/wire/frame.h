/* SPDX-License-Identifier: Apache-2.0 */
/* The form of what goes over a link, which is the one lasting connection between a node and srun (node/link.h,
   srun/links.h). The node opens a link with a relay_message, and srun answers that as usual. Then frames follow in
   both directions.

   A frame is a header, a payload, and a tag over both. Each direction of each connection has a key of its own, made of
   the step's secret and the opening's nonce. So the tag of a frame of another connection, or of the other direction, is
   wrong here. The sequence in the header grows by one from frame to frame, so a frame that is repeated or left out is
   noticed. Nothing of a frame is used before its tag is right, except the length of its payload.

   Pure, but it allocates memory. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SipHash-2-4 with 64 bits (Aumasson and Bernstein, 2012): a keyed hash that
   authenticates short messages, in place of a library's HMAC: the plugin links
   libc only. */
enum { SIPHASH_KEY_BYTES = 16, SIPHASH_BYTES = 8 };

/* The tag of `bytes` of `data`, little-endian as in the paper. */
void siphash(const unsigned char key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             unsigned char tag[SIPHASH_BYTES]);

enum {
	FRAME_NONCE_BYTES = 16,
	FRAME_HEADER_BYTES = 24,
	FRAME_PAYLOAD_MAX = 1 << 20,
	FRAME_QUESTION_BYTES = 8,
	FRAME_PROTOCOL = 1, /* grows when nodes come to know more types. From 1 on they know FRAME_ASK */
};

/* Types from FRAME_NEWS on belong to those who send them. Such frames are numbered, and kept until the other side has
   read them, so that a new connection loses and doubles none. */
enum frame_type {
	FRAME_BEAT = 1, /* the node is there */
	FRAME_READ,     /* its number: so many numbered frames were read */
	FRAME_OPENED,   /* srun takes the connection; its number as of FRAME_READ */
	FRAME_BYE,      /* the node's tasks have ended, so its silence means nothing from now on */
	FRAME_LEAVE,    /* srun's answer to FRAME_BYE: slurmstepd may end */
	FRAME_ASK,      /* srun asks the node to answer once it has told of all ends of tasks so far, */
	FRAME_TOLD,     /* and the node has. The payload of both is the question's number (FRAME_QUESTION_BYTES) */
	FRAME_NEWS = 16,
};

enum frame_side { FRAME_OF_NODE = 'n', FRAME_OF_SRUN = 's' };

struct frame {
	uint32_t type;
	uint64_t number; /* of a numbered frame, from 1 on; or how many of them were read */
	const unsigned char *payload;
	size_t bytes;
};

/* One direction of a connection. */
struct frame_stream {
	unsigned char key[SIPHASH_KEY_BYTES];
	uint64_t sequence; /* of the last frame; 0: none yet */
};

void frame_begin(struct frame_stream *stream, const unsigned char secret[SIPHASH_KEY_BYTES],
                 const unsigned char nonce[FRAME_NONCE_BYTES], enum frame_side side);

/* How many bytes a frame with such a payload takes. */
size_t frame_size(size_t payload_bytes);

/* Writes the next frame into frame_size() bytes. */
void frame_write(struct frame_stream *stream, const struct frame *frame, unsigned char *bytes);

/* Bytes that have come, and what was not taken of them. */
struct frame_reader {
	struct frame_stream stream;
	unsigned char *bytes;
	size_t begin, end, room;
	bool broken; /* a frame was wrong, or there was no memory */
};

/* Adds bytes that have come. */
void frame_add(struct frame_reader *reader, const void *bytes, size_t count);

/* Gives the next whole frame; its payload is valid until the next call. False: there is none yet, or the
   connection is broken. */
bool frame_next(struct frame_reader *reader, struct frame *frame);

/* Returns the number of the question, from 1 on, that FRAME_ASK or FRAME_TOLD is about. 0: the frame names none. */
uint64_t frame_question(const struct frame *frame);

void frame_end(struct frame_reader *reader);
