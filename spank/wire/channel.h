/* SPDX-License-Identifier: Apache-2.0 */
/* The form of what goes over a link, which is the one lasting connection between a node and srun (node/link.h,
   srun/links.h). The node opens a link with a relay_message, and srun answers that as usual. Then frames follow in
   both directions.

   A frame is a header, a payload, and a tag over both. Each direction of each connection has a key of its own, made of
   the step's secret and the opening's nonce. So the tag of a frame of another connection, or of the other direction, is
   wrong here. The sequence in the header grows by one from frame to frame, so a frame that is repeated or left out is
   noticed. Nothing of a frame is used before its tag is right, except the length of its payload.

   A side's numbered frames (struct session) outlive the connection over which they go at the moment (struct channel).
   When a new connection replaces an old one, each side sends again what the other has not read. Nothing here waits.
   libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/identity/nodelist.h"

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

/* A node says this of itself when it opens its link to srun. Pure. */
enum { OPENING_RELEASE_BYTES = 32 };

struct link_opening {
	uint32_t node_id;  /* of its component of the step */
	uint32_t rank;     /* of one of its tasks; UINT32_MAX: not known */
	uint32_t tasks;    /* of the node */
	uint64_t read;     /* so many of srun's numbered frames has the node read */
	char node[HOST_NAME_MAX_BYTES];
	/* This is the release of the node's plugin; "": the plugin does not tell it here. A node wrote it: make it
	   printable first. */
	char release[OPENING_RELEASE_BYTES];
	uint32_t protocol; /* FRAME_PROTOCOL of the node; 0: one that does not tell it */
};

enum { OPENING_BYTES = 24 + HOST_NAME_MAX_BYTES + OPENING_RELEASE_BYTES + 4 };

void opening_pack(const struct link_opening *opening, unsigned char bytes[OPENING_BYTES]);
/* False: the bytes are no opening. */
bool opening_unpack(const unsigned char bytes[OPENING_BYTES], struct link_opening *opening);

struct kept_frame;

/* The numbered frames of a side: what it has sent that the other has not read, and how many it has read. */
struct session {
	struct kept_frame *first, *last;
	size_t kept_bytes;
	uint64_t sent; /* number of the last one */
	uint64_t read; /* so many of the other side's */
};

/* A connection. */
struct channel {
	int fd; /* -1: none */
	struct frame_stream out;
	struct frame_reader in;
	unsigned char *pending; /* what the kernel has not taken yet, */
	size_t begin, end, room; /* from `begin` to `end` */
	uint64_t written;       /* bytes that the kernel has taken */
	bool ended;             /* the other side sends no more */
	bool broken;            /* by an error, a wrong frame, or want of memory */
};

/* Sets what all of the plugin's sockets have: small messages go at once, and data that the other side does not
   acknowledge for `ms` ends the connection. A lost packet is repeated at short intervals, because on a link seldom
   another packet follows that would show the loss. */
void channel_tune(int fd, uint32_t ms);

/* From then on the channel owns the descriptor. `side`: which end of the link this process is. */
void channel_begin(struct channel *channel, int fd, const unsigned char secret[SIPHASH_KEY_BYTES],
                   const unsigned char nonce[FRAME_NONCE_BYTES], enum frame_side side);
void channel_end(struct channel *channel);

/* Adds bytes that are no frame, or a frame, to what is to be sent. */
void channel_put_bytes(struct channel *channel, const void *bytes, size_t count);
void channel_put(struct channel *channel, uint32_t type, uint64_t number, const void *payload, size_t bytes);

/* Adds FRAME_ASK or FRAME_TOLD about the question of that number. `read`: so many numbered frames were read. */
void channel_put_question(struct channel *channel, uint32_t type, uint64_t read, uint64_t question);

/* Gives the kernel what it takes. */
void channel_flush(struct channel *channel);
bool channel_has_pending(const struct channel *channel);

/* Reads what is there, or so much that the next frame is whole. */
void channel_fill(struct channel *channel);

/* Returns how many of the written bytes the other side's kernel has acknowledged. */
uint64_t channel_acknowledged(const struct channel *channel);

/* Gives the next frame that is new. The session notes what the other side has read, and a numbered frame that was
   read already is left out. Its payload is valid until the next call for this channel. */
bool channel_next(struct channel *channel, struct session *session, struct frame *frame);

/* Sends a numbered frame, now or, without a connection, as soon as there is one. Its type is at least FRAME_NEWS, and
   its payload at most FRAME_PAYLOAD_MAX bytes. False: it is too long, or there is no memory for it. */
bool session_send(struct session *session, struct channel *channel, uint32_t type, const void *payload, size_t bytes);

/* Forgets the numbered frames that the other side has read: so many. */
void session_forget(struct session *session, uint64_t read);

/* Sends on a new connection again what the other side has not read. */
void session_send_again(struct session *session, struct channel *channel);

void session_end(struct session *session);
