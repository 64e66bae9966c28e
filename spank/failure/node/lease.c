/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/node/lease.h"

#include <string.h>

void lease_begin(struct lease *lease, uint64_t now_ns)
{
	*lease = (struct lease){ .renewed_ns = now_ns };
}

void lease_reconnect(struct lease *lease)
{
	lease->count = 0;
}

void lease_write(struct lease *lease, uint64_t written, uint64_t now_ns)
{
	if (lease->count > 0 && lease->marks[lease->count - 1].written >= written)
		return;
	/* Without room, later bytes count as written with the last mark, so that the lease is older than it seems,
	   and never younger. */
	if (lease->count == LEASE_MARKS)
		lease->marks[LEASE_MARKS - 1].written = written;
	else
		lease->marks[lease->count++] = (struct lease_mark){ written, now_ns };
}

void lease_acknowledge(struct lease *lease, uint64_t acknowledged)
{
	int gone = 0;

	while (gone < lease->count && lease->marks[gone].written <= acknowledged)
		gone++;
	if (gone == 0)
		return;
	if (lease->marks[gone - 1].ns > lease->renewed_ns)
		lease->renewed_ns = lease->marks[gone - 1].ns;
	lease->count -= gone;
	memmove(&lease->marks[0], &lease->marks[gone], (size_t)lease->count * sizeof(lease->marks[0]));
}

uint64_t lease_waits_ns(const struct lease *lease, uint64_t now_ns)
{
	return lease->count > 0 && now_ns > lease->marks[0].ns ? now_ns - lease->marks[0].ns : 0;
}
