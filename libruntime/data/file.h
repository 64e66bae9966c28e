/* SPDX-License-Identifier: Apache-2.0 */
/* file: a regular file of samples, read at offsets. */
#pragma once

#include "ddp.h"

typedef struct ddp_file {
	const char *kind; /* "token file", for messages */
	char *path;
	int fd;
	int64_t bytes;
} ddp_file;

/* `kind` is kept. After an error there is nothing to close. */
ddp_status ddp_file_open(const char *kind, const char *path, ddp_file *file);
/* A file of zeroes but for fd -1 is none. */
void ddp_file_close(ddp_file *file);
/* Fills `buffer` from the file's `offset`; DDP_ERR_FORMAT names the byte at which the file
   ends before. Any thread. */
ddp_status ddp_file_read(const ddp_file *file, void *buffer, size_t bytes, int64_t offset);
/* Has *digest, of what came before, be of the file, too: of its size, its first and last bytes,
   and some in between. */
ddp_status ddp_file_digest(const ddp_file *file, uint64_t *digest);
