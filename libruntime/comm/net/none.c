/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net in a build without UCX: it does not open, and nothing else is called. */
#include "base/error.h"
#include "comm/net/net.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

ddp_status ddp_net_open(ddp_comm *comm, void **address, size_t *bytes)
{
	return ddp_fail(DDP_ERR_UNSUPPORTED, "the ranks are on several nodes, but libddp was built "
	                "without UCX: configure --with-ucx");
}

ddp_status ddp_net_set_addresses(ddp_comm *comm, void **addresses, const size_t *sizes)
{
	return ddp_net_open(comm, NULL, NULL);
}

ddp_status ddp_net_watch(ddp_comm *comm)
{
	return ddp_net_open(comm, NULL, NULL);
}

void ddp_net_close(ddp_comm *comm)
{
}

void ddp_net_join(ddp_comm *comm)
{
}

void ddp_net_begin_connection(ddp_comm *comm, int peer)
{
}

ddp_status ddp_net_connect(ddp_comm *comm, int peer)
{
	return ddp_net_open(comm, NULL, NULL);
}

bool ddp_net_settled(const ddp_comm *comm, int peer)
{
	return false;
}

bool ddp_net_ready(const ddp_comm *comm, int peer)
{
	return ddp_net_settled(comm, peer);
}

void ddp_net_say_ready(ddp_comm *comm, int peer)
{
}

void ddp_net_await_connections(ddp_comm *comm)
{
}

void ddp_net_shut_listeners(ddp_comm *comm)
{
}

bool ddp_net_lost(const ddp_comm *comm, int peer)
{
	return true;
}

const char *ddp_net_lost_reason(const ddp_comm *comm, int peer)
{
	return "libddp was built without UCX";
}

bool ddp_net_lacks_descriptors(const ddp_comm *comm)
{
	return false;
}

ddp_status ddp_net_send(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                        const void *buffer, size_t bytes, ddp_transfer *transfer)
{
	*transfer = (ddp_transfer){ .peer = peer, .envelope = *envelope, .bytes = bytes };
	return ddp_net_open(comm, NULL, NULL);
}

uint64_t ddp_net_sent_bytes(const ddp_comm *comm)
{
	return 0;
}

void ddp_net_recv(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                  size_t bytes, ddp_transfer *transfer)
{
	*transfer = (ddp_transfer){ .peer = peer, .envelope = *envelope, .bytes = bytes };
}

void ddp_net_recv_filled(ddp_comm *comm, ddp_transfer *transfer)
{
}

bool ddp_net_progress(ddp_comm *comm)
{
	return false;
}

bool ddp_net_progress_all(const ddp_roster *roster)
{
	return false;
}

ddp_status ddp_net_check_failure(ddp_comm *comm)
{
	return DDP_OK;
}

ddp_status ddp_net_check_memory(ddp_comm *comm)
{
	return DDP_OK;
}

bool ddp_net_misfit(const ddp_comm *comm, ddp_misfit *misfit)
{
	return false;
}

bool ddp_net_find_unexpected(const ddp_comm *comm, ddp_wants_message *wanted, const void *argument,
                             ddp_unexpected *message)
{
	return false;
}

void ddp_net_drop_unexpected(ddp_comm *comm, const ddp_unexpected *message)
{
}

void ddp_net_inquire(ddp_comm *comm, int peer)
{
}

ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer)
{
	return (ddp_answer){ .names = DDP_NOBODY };
}

bool ddp_net_arm(const ddp_roster *roster)
{
	return true;
}

int ddp_net_fd(const ddp_roster *roster, uint64_t *timeout_ns)
{
	return -1;
}

void ddp_net_shut_down(ddp_comm *comm)
{
}

void ddp_net_revive(ddp_comm *comm, bool alive)
{
}

void ddp_net_forget(ddp_comm *comm)
{
}

bool ddp_net_ended(const ddp_comm *comm)
{
	return true;
}

bool ddp_net_down(const ddp_comm *comm)
{
	return true;
}
