/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: the file format, and nothing else.

     8 bytes   length N of the header, little-endian
     N bytes   JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]},
               ..., "__metadata__": {"key": "text", ...}}, padded with blanks
     the rest  the tensors' bytes, little-endian, row-major, without gaps

   Files written here carry checksums (CRC-32C, 8 hex digits) as metadata:
   "crc32c" of the header, computed with zeros in that place, and "crc32c.NAME"
   of each tensor. Files without them are read, too.

   Nothing in a file is trusted: every error names the file and the tensor. */
#pragma once

#include <jansson.h>

#include "ddp.h"

enum { DDP_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000 }; /* the format's own limit */

typedef struct ddp_safetensor {
	const char *name;
	const char *dtype; /* "F32" */
	int ndim;          /* 0 .. DDP_MAX_DIMS */
	int64_t shape[DDP_MAX_DIMS];
	int64_t begin, end; /* bytes, from the end of the header */
} ddp_safetensor;

typedef struct ddp_safetensors {
	char *path;
	int fd;
	int64_t data_start;
	json_t *header;
	ddp_safetensor *tensors; /* in the order of the data */
	ddp_safetensor **by_name;
	int count;
} ddp_safetensors;

/* Reads and checks the header. Closed again with ddp_safetensors_close(). */
ddp_status ddp_safetensors_open(const char *path, ddp_safetensors *file);
void ddp_safetensors_close(ddp_safetensors *file);

/* The part of it that knows no file: `header` of `header_bytes`, followed by
   data_bytes of data; `path` is for messages. Sets all but fd. */
ddp_status ddp_safetensors_parse(const char *path, const char *header, size_t header_bytes,
                                 int64_t data_bytes, ddp_safetensors *file);

/* NULL if there is none. */
const ddp_safetensor *ddp_safetensors_find(const ddp_safetensors *file, const char *name);
const char *ddp_safetensors_metadata(const ddp_safetensors *file, const char *key);

/* Reads a whole tensor, end - begin bytes, and checks its checksum. */
ddp_status ddp_safetensors_read(const ddp_safetensors *file, const ddp_safetensor *tensor,
                                void *data);
/* Reads `bytes` of a tensor from its byte `from` on, one part after the other: *sum
   carries the checksum, 0 before the first, and is checked with the last. */
ddp_status ddp_safetensors_read_part(const ddp_safetensors *file, const ddp_safetensor *tensor,
                                     int64_t from, size_t bytes, void *data, uint32_t *sum);
/* Reads everything, checks the checksums and keeps nothing. */
ddp_status ddp_safetensors_verify(const ddp_safetensors *file);
