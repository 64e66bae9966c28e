/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wireup/silence: has a node fallen silent during wire-up? The other end's kernel is the judge, which acknowledges
 * data and keepalive probes, also while the process there is stopped.
 */
#ifndef DDP_WIREUP_SILENCE_H
#define DDP_WIREUP_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Makes this end's kernel ask each second whether the other end's kernel is there. A local socket stays as it is. */
void ddp_silence_ask(int fd);

/* A thread that waits for a connection notes here what it has seen of it. */
typedef struct ddp_silence_looks {
	uint64_t next_ns;
	int silent; /* looks, one after the other, at which the other end had been silent for too long */
} ddp_silence_looks;

/* How many milliseconds the other end has been silent, if that is `limit_ms` or more at this look and the last one,
   which are at least half a second apart; otherwise 0. Two looks are needed because this process, or its node, may not
   have run before the first one. 0 also if limit_ms is 0, or if the socket is no TCP socket. */
int ddp_silence_look(ddp_silence_looks *looks, int fd, int limit_ms);

#endif
