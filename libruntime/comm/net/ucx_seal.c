/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_seal.h"

#include <string.h>

#include "base/log.h"
#include "comm/core/silence.h"

seal ddp_ucx_seal(const connection *c)
{
	return (seal){ .token = c->ours, .source = c->worker->roster->rank };
}

void ddp_ucx_unauthentic(ddp_worker *worker)
{
	if (worker->unauthentic++ == 0)
		ddp_log(DDP_LOG_WARN, "a message that no rank of the communicator sent was ignored");
}

connection *ddp_ucx_source(ddp_worker *worker, const void *header, size_t header_bytes, size_t expected_bytes)
{
	seal s;

	if (header_bytes == expected_bytes) {
		memcpy(&s, header, DDP_SEAL_BYTES);
		/* Ranks of this node have no token to send. */
		if (s.source >= 0 && s.source < worker->roster->size && worker->peers[s.source].address != NULL &&
		    ddp_token_same(&s.token, &worker->peers[s.source].theirs))
			/* A silent node stays silent, also if its network is back. */
			return ddp_silence_of(worker->roster, s.source) ? NULL : &worker->peers[s.source];
	}
	ddp_ucx_unauthentic(worker);
	return NULL;
}
