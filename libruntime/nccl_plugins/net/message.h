/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/message: UCX's tagged messages. The upper half of a tag is the receiving
   connection, so that connections share a worker; the lower is NCCL's tag, or what the
   connection itself says. All of it is called with the worker's lock held. */
#pragma once

#include <stdbool.h>
#include <ucp/api/ucp.h>

enum { NET_TAG_BITS = 31 };

/* A connection sends two messages of its own: the first and the last. */
enum net_word { NET_HELLO = 1, NET_END = 2 };

static inline ucp_tag_t net_tag(uint32_t connection, int tag)
{
	return (uint64_t)connection << 32 | ((uint32_t)tag & UINT32_MAX >> 1);
}

static inline ucp_tag_t net_tag_of_word(uint32_t connection, enum net_word word)
{
	return (uint64_t)connection << 32 | UINT32_C(1) << NET_TAG_BITS | (uint32_t)word;
}

/* A send, a receive or a close. It stays where it is as long as it is under way. */
typedef struct net_operation {
	bool active;
	bool withdrawn;     /* NCCL has taken the memory back */
	void *ucx;
	ucs_status_t status;
	size_t bytes;       /* that were sent or received */
	const void *memory; /* as NCCL registered it; NULL: it did not */
} net_operation;

/* Memory that is moved; `handle` NULL: UCX does without. */
typedef struct net_slice {
	void *data;
	size_t bytes;
	ucs_memory_type_t type;
	ucp_mem_h handle;
} net_slice;

void net_send_begin(net_operation *o, ucp_ep_h ep, const net_slice *slice, ucp_tag_t tag);
/* Ends when the peer has received it; it is empty. */
void net_word_send_begin(net_operation *o, ucp_ep_h ep, ucp_tag_t tag);
void net_receive_begin(net_operation *o, ucp_worker_h worker, const net_slice *slice, ucp_tag_t tag);
/* A receive that no message has come for ends with UCS_ERR_CANCELED. */
void net_receive_cancel(net_operation *o, ucp_worker_h worker);
/* Reads the first byte of memory of this process through the device. */
void net_get_begin(net_operation *o, ucp_ep_h ep, void *to, uint64_t from, ucp_rkey_h key);
/* Forced: what is under way through it ends with an error. */
void net_ep_close_begin(net_operation *o, ucp_ep_h ep, bool forced);
