/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/core/silence.h"

#include <stdio.h>

#include "comm/core/comm.h"

enum { RANKS_TEXT = 64, DEAF_BIT = 1 << 30 /* beside milliseconds, of which there are fewer */ };

bool ddp_silence_note(ddp_roster *roster, int world_rank, int silent_ms)
{
	const int first = roster->peers[world_rank].node, ms = silent_ms > 0 ? silent_ms : 1;
	int known = 0;

	if (!atomic_compare_exchange_strong(&roster->peers[first].silent_ms, &known, ms))
		return false;
	for (int r = 0; r < roster->size; r++) {
		if (roster->peers[r].node == first)
			atomic_store(&roster->peers[r].silent_ms, ms);
	}
	atomic_fetch_add(&roster->silences, 1);
	return true;
}

/* "rank 4", "ranks 4-7", "ranks 1, 3, ...": the node's ranks in the job. */
static void list_ranks(const ddp_roster *roster, int first, char text[RANKS_TEXT])
{
	size_t used = 0;
	int count = 0;

	text[0] = '\0';
	for (int r = first; r < roster->size; r++) {
		int end = r;
		if (roster->peers[r].node != first)
			continue;
		while (end + 1 < roster->size && roster->peers[end + 1].node == first)
			end++;
		if (used > RANKS_TEXT - 32) {
			used += (size_t)snprintf(text + used, RANKS_TEXT - used, ", ...");
			count = 2;
			break;
		}
		used += (size_t)snprintf(text + used, RANKS_TEXT - used, end > r ? "%s%d-%d" : "%s%d", used > 0 ? ", " : "", r, end);
		count += end - r + 1;
		r = end;
	}
	char list[RANKS_TEXT];
	snprintf(list, sizeof(list), "%s", text);
	snprintf(text, RANKS_TEXT, "rank%s %.*s", count > 1 ? "s" : "", RANKS_TEXT - 8, list);
}

int ddp_silence_find(const ddp_comm *comm, char text[DDP_SILENCE_TEXT])
{
	const ddp_roster *roster = comm->roster;
	char ranks[RANKS_TEXT];

	for (int r = 0; r < comm->size; r++) {
		const int first = roster->peers[comm->topology.world_ranks[r]].node;
		const int silent_ms = atomic_load(&roster->peers[first].silent_ms);
		if (silent_ms == 0)
			continue;
		list_ranks(roster, first, ranks);
		snprintf(text, DDP_SILENCE_TEXT, "node %s (%s) has been silent for %.1f s: is its power or network lost? (silence=)",
		         roster->peers[first].host, ranks, (double)silent_ms * 1e-3);
		return r;
	}
	return DDP_NOBODY;
}

/* Many processes may show the same node. If all places are taken, the ranks of the node hear of it from other nodes. */
static void show(ddp_node_shared *shared, uint64_t silence)
{
	for (int i = 0; i < DDP_SILENCES; i++) {
		uint64_t there = 0;
		if (atomic_compare_exchange_strong(&shared->silences[i], &there, silence) || there >> 32 == silence >> 32)
			return;
	}
}

void ddp_silence_show(const ddp_comm *comm)
{
	const ddp_roster *roster = comm->roster;

	for (int r = 0; r < roster->size && ddp_silence_count(roster) > 0; r++) {
		const int silent_ms = atomic_load(&roster->peers[r].silent_ms);
		if (roster->peers[r].node == r && silent_ms != 0)
			show(comm->node.shared, (uint64_t)(r + 1) << 32 | (uint32_t)silent_ms |
			                        (atomic_load(&roster->deaf) ? DEAF_BIT : 0));
	}
}

/* Other processes write there. */
void ddp_silence_hear(const ddp_comm *comm)
{
	for (int i = 0; i < DDP_SILENCES; i++) {
		const uint64_t shown = atomic_load(&comm->node.shared->silences[i]);
		if (shown == 0)
			return;
		const uint64_t rank = (shown >> 32) - 1;
		if ((shown & DEAF_BIT) != 0)
			atomic_store(&comm->roster->deaf, true);
		if (rank < (uint64_t)comm->roster->size)
			(void)ddp_silence_note(comm->roster, (int)rank, (int)(shown & (DEAF_BIT - 1)));
	}
}
