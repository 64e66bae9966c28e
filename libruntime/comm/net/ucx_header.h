/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/ucx_header: how the header of a message's data travels. On a narrow link a small message takes as long as its
 * bytes do, so those that are 0 stay behind: the header of a small sum in the world takes 35 bytes or so, not 72.
 */
#ifndef DDP_COMM_NET_UCX_HEADER_H
#define DDP_COMM_NET_UCX_HEADER_H

#include "comm/net/ucx_state.h"

enum {
	DDP_HEADER_WORDS = 7,
	DDP_HEADER_MIN = DDP_SEAL_BYTES + (DDP_HEADER_WORDS + 1) / 2,
	DDP_HEADER_MAX = DDP_HEADER_MIN + DDP_HEADER_WORDS * 8
};

/* Writes the header in the form in which it travels, and gives its bytes. */
size_t ddp_ucx_header_write(const data_header *header, unsigned char to[DDP_HEADER_MAX]);
/* Reads it; false if these bytes are no header. */
bool ddp_ucx_header_read(const void *from, size_t bytes, data_header *header);

#endif
