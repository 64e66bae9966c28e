/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/handle: the text by which a listener is reached, which NCCL carries to its peers. */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

#include "wireup/auth.h"

/* `text` is NET_HANDLE_BYTES long. */
void net_handle_write(const unsigned char nonce[DDP_NONCE_BYTES], const struct sockaddr_storage *address, void *text);
ddp_status net_handle_read(const void *text, struct sockaddr_storage *address, unsigned char nonce[DDP_NONCE_BYTES]);
/* A number for the caller of the connecting process, which is 0 as net_handle_write() leaves it. */
uint64_t *net_handle_attempt(void *text);
