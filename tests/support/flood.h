/* SPDX-License-Identifier: Apache-2.0 */
/* flood: a process that connects to a listener again and again and never proves the step's key,
   as any user of the host can. */
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

typedef enum flood_kind {
	FLOOD_IDLE,    /* `count` connections, which say nothing; a dropped one does not come again */
	FLOOD_ENDLESS, /* one connection after the other for as long as the flood lasts, `count` at a time */
	FLOOD_SLOW     /* `count` connections, which say a byte now and then; a dropped one comes again */
} flood_kind;

/* Starts a flood and returns once it has made `count` connections. Whoever listens there needs to
   run for an endless or slow flood of more connections than the kernel keeps for a listener. */
pid_t flood_start(const struct sockaddr_in *to, flood_kind kind, int count);
void flood_end(pid_t flood);
