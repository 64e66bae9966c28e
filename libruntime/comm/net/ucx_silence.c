/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_silence.h"

#include "comm/core/silence.h"
#include "comm/net/ucx_ticket.h"

static void lose(ddp_worker *worker, int node)
{
	for (int r = 0; r < worker->roster->size; r++) {
		int none = UCS_OK;
		if (worker->roster->peers[r].node == node)
			atomic_compare_exchange_strong(&worker->peers[r].lost, &none, UCS_ERR_ENDPOINT_TIMEOUT);
	}
	worker->news = worker->alarm = true;
}

static void tell(ddp_worker *worker, int node, int silent_ms)
{
	const silence_header message = { .rank = node, .silent_ms = silent_ms };

	/* When the network is back, other nodes must not believe this node about nodes that they hear. */
	if (atomic_load(&worker->roster->deaf))
		return;
	for (int r = 0; r < worker->roster->size; r++)
		(void)ddp_ucx_notify(&worker->tickets, &worker->peers[r], DDP_AM_SILENCE, &message, sizeof(message));
}

void ddp_ucx_silence(ddp_worker *worker)
{
	const ddp_roster *roster = worker->roster;
	const int count = ddp_silence_count(roster);

	if (worker->silences == count || worker->ended)
		return;
	worker->silences = count;
	for (int r = 0; r < roster->size; r++) {
		const int silent_ms = atomic_load(&roster->peers[r].silent_ms);
		if (roster->peers[r].node != r || silent_ms == 0 || worker->peers[r].silence_told)
			continue;
		worker->peers[r].silence_told = true;
		lose(worker, r);
		tell(worker, r, silent_ms);
	}
}

void ddp_ucx_silence_arrived(connection *c, const control_header *header)
{
	const silence_header *silence = &header->silence;
	ddp_roster *roster = c->worker->roster;

	if (silence->rank < 0 || silence->rank >= roster->size)
		return;
	/* Another node cannot hear this one; it can hear others, and is heard. */
	if (roster->peers[silence->rank].node == roster->peers[roster->rank].node)
		return;
	if (ddp_silence_note(roster, silence->rank, silence->silent_ms))
		c->worker->news = c->worker->alarm = true;
}
