/* SPDX-License-Identifier: Apache-2.0 */
/* frame: the messages between ranks that have proven the step's key to each
   other. A frame is kind, sequence number of the exchange, payload size
   (little-endian u32, u32, u64), then the payload:

     BLOB   rank r's blob                                           r -> 0
     ALL    count, then `count` sizes (u32 each), then the blobs    0 -> r
     ERROR  status (u32), then the sentence; if it is about a rank, a
            terminator and that rank (u32) follow                   0 -> r

   If there are many blobs, the ranks of a node share them (node_table.h):

     ASK    nothing: offer memory                                   0 -> r
     OFFER  a ddp_segment_offer                                     r -> 0
     JOIN   the offer of the node's leader: open it                 0 -> r
     DONE   whether that was possible, or, from a leader that got
            ALL, whether the others can read it (a byte)            r -> 0
     READ   bytes (u64) of the payload of ALL that the leader has   0 -> r

   The bytes are not trusted: kinds and sizes are checked before memory is allocated, and memory grows
   with the bytes that have arrived, not with the announced size. */
#pragma once

#include "ddp.h"
#include "wireup/wireup.h"

enum ddp_frame_kind {
	DDP_FRAME_BLOB = 1, DDP_FRAME_ALL, DDP_FRAME_ERROR, DDP_FRAME_ASK, DDP_FRAME_OFFER, DDP_FRAME_JOIN,
	DDP_FRAME_DONE, DDP_FRAME_READ
};
enum { DDP_FRAME_HEADER_BYTES = 16, DDP_FRAME_TEXT_MAX = 1023 };

/* The largest payload of a kind; -1 for what is no kind. */
int64_t ddp_frame_limit(uint32_t kind, int world_size);

typedef struct ddp_frame_reader {
	int world_size; /* bounds the payload */
	unsigned char header[DDP_FRAME_HEADER_BYTES];
	size_t header_used;
	uint32_t kind, sequence;
	uint64_t bytes;         /* of the payload */
	unsigned char *payload; /* malloc'd */
	size_t used, capacity;
} ddp_frame_reader;

/* Says where the next bytes of the frame go, and how many at most (never 0). */
ddp_status ddp_frame_room(ddp_frame_reader *reader, void **at, size_t *bytes);
/* Says that `bytes` have come there. *complete once the frame has ended. */
ddp_status ddp_frame_filled(ddp_frame_reader *reader, size_t bytes, bool *complete);
/* Gets ready for the next frame. The payload is freed. */
void ddp_frame_reset(ddp_frame_reader *reader);

/* A whole frame that is small. Returns its bytes. */
enum { DDP_FRAME_SMALL_MAX = DDP_FRAME_HEADER_BYTES + 64 };
size_t ddp_frame_pack(enum ddp_frame_kind kind, uint32_t sequence, const void *payload, size_t bytes,
                      unsigned char frame[DDP_FRAME_SMALL_MAX]);
void ddp_frame_header(unsigned char *header, enum ddp_frame_kind kind, uint32_t sequence, uint64_t bytes);

/* A whole ALL frame, header included; malloc'd. */
ddp_status ddp_frame_pack_all(uint32_t sequence, void *const *blobs, const size_t *sizes,
                              int count, unsigned char **frame, size_t *bytes);
/* Each blobs[r] is malloc'd, also if it is empty. Written on success only. */
ddp_status ddp_frame_unpack_all(const unsigned char *payload, size_t bytes, int count,
                                void **blobs, size_t *sizes);

/* A whole ERROR frame with this thread's last error; returns its bytes. */
enum { DDP_FRAME_ERROR_MAX = DDP_FRAME_HEADER_BYTES + 4 + DDP_FRAME_TEXT_MAX + 5 };
size_t ddp_frame_pack_error(uint32_t sequence, ddp_status status,
                            unsigned char frame[DDP_FRAME_ERROR_MAX]);
/* Makes the error that the peer sent this thread's own. */
ddp_status ddp_frame_raise_error(const unsigned char *payload, size_t bytes);
