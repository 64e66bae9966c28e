/* comm/net in a build without UCX: ranks must be on one node. */
#include "base/error.h"
#include "comm/net.h"

ddp_status ddp_net_open(ddp_comm *comm, void **address, size_t *bytes)
{
	(void)comm;
	(void)address;
	(void)bytes;
	return ddp_fail(DDP_ERR_UNSUPPORTED, "the ranks are on several nodes, but libddp was built "
	                "without UCX: configure --with-ucx");
}

ddp_status ddp_net_set_addresses(ddp_comm *comm, void **addresses, const size_t *sizes)
{
	(void)addresses;
	(void)sizes;
	return ddp_net_open(comm, NULL, NULL);
}

ddp_status ddp_net_greet(ddp_comm *comm)
{
	return ddp_net_open(comm, NULL, NULL);
}

void ddp_net_close(ddp_comm *comm)
{
	(void)comm;
}

ddp_status ddp_net_send(ddp_comm *comm, int peer, uint64_t tag, const void *buffer, size_t bytes,
                        ddp_transfer *transfer)
{
	(void)peer;
	(void)tag;
	(void)buffer;
	(void)bytes;
	(void)transfer;
	return ddp_net_open(comm, NULL, NULL);
}

uint64_t ddp_net_sent_bytes(const ddp_comm *comm)
{
	(void)comm;
	return 0;
}

void ddp_net_recv(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes,
                  ddp_transfer *transfer)
{
	(void)comm;
	(void)tag;
	(void)buffer;
	*transfer = (ddp_transfer){ .peer = peer, .bytes = bytes };
}

ddp_status ddp_net_send_as(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                           const void *buffer, size_t bytes, ddp_transfer *transfer)
{
	(void)envelope;
	return ddp_net_send(comm, peer, 0, buffer, bytes, transfer);
}

void ddp_net_recv_as(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                     size_t bytes, ddp_transfer *transfer)
{
	(void)envelope;
	ddp_net_recv(comm, peer, 0, buffer, bytes, transfer);
}

ddp_status ddp_net_wait(ddp_comm *comm, const ddp_transfer *transfers, int count)
{
	(void)transfers;
	(void)count;
	return ddp_net_open(comm, NULL, NULL);
}

ddp_status ddp_net_wait_gathering(ddp_comm *comm, const ddp_transfer *transfers, int count,
                                  uint64_t gather_ns)
{
	(void)gather_ns;
	return ddp_net_wait(comm, transfers, count);
}

bool ddp_net_progress(ddp_comm *comm)
{
	(void)comm;
	return false;
}

ddp_status ddp_net_check(ddp_comm *comm, int missing)
{
	(void)comm;
	(void)missing;
	return DDP_OK;
}

void ddp_net_inquire(ddp_comm *comm, int peer)
{
	(void)comm;
	(void)peer;
}

ddp_answer ddp_net_answer_of(const ddp_comm *comm, int peer)
{
	(void)comm;
	(void)peer;
	return (ddp_answer){ .names = DDP_NOBODY };
}

bool ddp_net_arm(ddp_comm *comm)
{
	(void)comm;
	return true;
}

void ddp_net_sleep(ddp_comm *comm, int timeout_ms)
{
	(void)comm;
	(void)timeout_ms;
}

void ddp_net_rest(ddp_comm *comm, uint64_t ns)
{
	(void)comm;
	(void)ns;
}

void ddp_net_quiet_bell(ddp_comm *comm)
{
	(void)comm;
}

void ddp_net_kick(ddp_comm *comm, int i)
{
	(void)comm;
	(void)i;
}

void ddp_net_shut_down(ddp_comm *comm)
{
	(void)comm;
}

void ddp_net_revive(ddp_comm *comm, bool alive)
{
	(void)comm;
	(void)alive;
}

void ddp_net_forget(ddp_comm *comm)
{
	(void)comm;
}

bool ddp_net_ended(const ddp_comm *comm)
{
	(void)comm;
	return true;
}

bool ddp_net_lost(const ddp_comm *comm, int peer)
{
	(void)comm;
	(void)peer;
	return true;
}

int ddp_net_doorbell(const ddp_comm *comm)
{
	(void)comm;
	return -1;
}

ddp_status ddp_net_open_doorbells(ddp_comm *comm, const int *fds)
{
	(void)fds;
	return ddp_net_open(comm, NULL, NULL);
}
