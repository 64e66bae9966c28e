/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/handle.h"

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "nccl_plugins/net/abi.h"

typedef struct handle {
	char magic[8];
	unsigned char nonce[DDP_NONCE_BYTES];
	unsigned char address[16]; /* in network order, as the port */
	uint32_t scope;
	uint16_t family, port;
	uint64_t attempt;          /* of the connecting process */
} handle;

_Static_assert(sizeof(handle) <= NET_HANDLE_BYTES, "NCCL carries no more");

static const char magic[8] = "ddpucx2";

void net_handle_write(const unsigned char nonce[DDP_NONCE_BYTES], const struct sockaddr_storage *address, void *text)
{
	handle h = { .family = address->ss_family };

	memcpy(h.magic, magic, sizeof(magic));
	memcpy(h.nonce, nonce, DDP_NONCE_BYTES);
	if (address->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
		h.port = in->sin_port;
		memcpy(h.address, &in->sin_addr, sizeof(in->sin_addr));
	} else {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
		h.port = in6->sin6_port;
		h.scope = in6->sin6_scope_id;
		memcpy(h.address, &in6->sin6_addr, sizeof(in6->sin6_addr));
	}
	memset(text, 0, NET_HANDLE_BYTES);
	memcpy(text, &h, sizeof(h));
}

ddp_status net_handle_read(const void *text, struct sockaddr_storage *address, unsigned char nonce[DDP_NONCE_BYTES])
{
	handle h;

	memcpy(&h, text, sizeof(h));
	memcpy(nonce, h.nonce, DDP_NONCE_BYTES);
	memset(address, 0, sizeof(*address));
	address->ss_family = h.family;
	if (memcmp(h.magic, magic, sizeof(magic)) != 0 || (h.family != AF_INET && h.family != AF_INET6))
		return ddp_fail(DDP_ERR_INVALID, "NCCL's handle of a peer is not of this version of slurm-ddp's "
		                "plugin: let all nodes have the same one, and the same NCCL_NET_PLUGIN");
	if (h.family == AF_INET) {
		struct sockaddr_in *in = (struct sockaddr_in *)(void *)address;
		in->sin_port = h.port;
		memcpy(&in->sin_addr, h.address, sizeof(in->sin_addr));
	} else {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)address;
		in6->sin6_port = h.port;
		in6->sin6_scope_id = h.scope;
		memcpy(&in6->sin6_addr, h.address, sizeof(in6->sin6_addr));
	}
	return DDP_OK;
}

uint64_t *net_handle_attempt(void *text)
{
	return (uint64_t *)(void *)((char *)text + offsetof(handle, attempt));
}
