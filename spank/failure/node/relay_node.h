/* SPDX-License-Identifier: Apache-2.0 */
/* How a node tells srun something. libc only. */
#ifndef SPANK_RELAY_NODE_H
#define SPANK_RELAY_NODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "spank/failure/relay.h"

/* Chooses the mark; returns the sender, or NULL if the kernel gives no random bytes. */
struct relay_sender *relay_start_sender(struct relay_sender *sender);

/* Gives the address of a port of srun. False if the text is no numeric address: names are not resolved, because root
   calls this, too. */
bool relay_address(const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes);

/* The nonce of the sender's next message; false if the kernel gives no random bytes. */
bool relay_make_nonce(struct relay_sender *sender, unsigned char nonce[RELAY_NONCE_BYTES]);

/*
 * A node: true if srun has it now, and does what is to be done. `address` is
 * numeric: nothing is resolved. Takes CONNECT_MS and reply_ms at most.
 */
bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news);

/*
 * A node that has the plugin tells so, with its name and the rank of one of its tasks. An srun
 * of a release that knows no such message takes it for the end of a task that has done well.
 * Tries it twice, should the network lose the first packet; true if srun has answered.
 */
bool relay_tell_here(const struct relay *relay, const char *address, uint32_t rank, const char *node);

#endif
