/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long ago srun's host last had a sign of this node, as the node knows it. The node notes when it has written how
 * many bytes to its link, and the kernel tells how many of them srun's host has acknowledged. srun takes the node for
 * silent no earlier than `silence` after it has read bytes that were written later, so a node that acts a little
 * earlier than that acts first. A stopped srun acknowledges, too. Pure.
 */
#ifndef SPANK_LEASE_H
#define SPANK_LEASE_H

#include <stdint.h>

enum { LEASE_MARKS = 64 };

struct lease {
	struct lease_mark {
		uint64_t written; /* bytes, with these */
		uint64_t ns;
	} marks[LEASE_MARKS]; /* the oldest first; what was not acknowledged yet */
	int count;
	uint64_t renewed_ns; /* when the newest byte was written that is acknowledged */
};

/* Begins when the node begins, and again when a connection is open. */
void lease_begin(struct lease *lease, uint64_t now_ns);

/* A new connection counts its bytes anew. */
void lease_reconnect(struct lease *lease);

/* So many bytes were written by now. */
void lease_write(struct lease *lease, uint64_t written, uint64_t now_ns);

/* So many bytes are acknowledged. */
void lease_acknowledge(struct lease *lease, uint64_t acknowledged);

/* Returns how long the oldest byte that is not acknowledged has waited. */
uint64_t lease_waits_ns(const struct lease *lease, uint64_t now_ns);

#endif
