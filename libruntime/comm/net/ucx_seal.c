#include "comm/net/ucx_seal.h"

#include <string.h>

#include "base/log.h"

seal ddp_ucx_seal(const ddp_net *net, int peer)
{
	return (seal){ .token = net->peers[peer].ours, .source = net->comm->rank };
}

int ddp_ucx_source(ddp_net *net, const void *header, size_t header_bytes, size_t expected_bytes)
{
	seal s;

	if (header_bytes == expected_bytes) {
		memcpy(&s, header, sizeof(s));
		/* Ranks of this node have no token to send. */
		if (s.source >= 0 && s.source < net->comm->size && net->peers[s.source].address != NULL &&
		    ddp_token_same(&s.token, &net->peers[s.source].theirs))
			return s.source;
	}
	if (net->unauthentic++ == 0)
		ddp_log(DDP_LOG_WARN, "a message that no rank of this communicator sent was ignored");
	return DDP_NOBODY;
}
