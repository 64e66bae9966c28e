#include "comm/net/ucx_receive.h"

#include <stdlib.h>
#include <string.h>

#include "comm/net/ucx_seal.h"
#include "comm/net/ucx_ticket.h"
#include "comm/net/ucx_window.h"

/* What is kept of messages that nobody has asked for yet: in all, and for each
   rank of the communicator. */
static const size_t kept_max_bytes = (size_t)1 << 30, kept_rank_bytes = (size_t)1 << 20;

static bool fits(ddp_net *net, const ddp_transfer *t, const ddp_envelope *envelope, size_t bytes)
{
	if (ddp_fingerprint_same(&t->envelope.operation, &envelope->operation) && bytes == t->bytes)
		return true;
	net->misfits = true;
	net->misfit = (ddp_misfit){ .came = { *envelope, bytes }, .wanted = { t->envelope, t->bytes } };
	return false;
}

static ddp_transfer *take_posted(ddp_net *net, const ddp_envelope *envelope)
{
	for (ddp_transfer **link = &net->posted; *link != NULL; link = &(*link)->next) {
		ddp_transfer *t = *link;
		if (t->peer == envelope->source && t->envelope.tag == envelope->tag) {
			*link = t->next;
			return t;
		}
	}
	return NULL;
}

/* Releases a message that is off the list. */
static void release(ddp_net *net, kept_message *a)
{
	if (a->copied)
		free(a->data);
	else if (a->data != NULL)
		ucp_am_data_release(net->worker, a->data);
	free(a);
}

/* Moves a message that is off the list into its receiver's buffer. */
static void deliver(ddp_net *net, ddp_transfer *t, kept_message *a)
{
	bool fit = fits(net, t, &a->message.envelope, a->message.bytes);
	ticket *begins = fit && a->rendezvous ? ddp_ucx_ticket(net, t, t->peer) : NULL;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.recv_am = ddp_ucx_received, .user_data = begins,
	};

	if (begins != NULL) {
		ddp_ucx_begun(begins, ucp_am_recv_data_nbx(net->worker, a->data, t->buffer, t->bytes, &param));
		a->data = NULL;
	} else if (fit && !a->rendezvous) {
		if (a->message.bytes > 0)
			memcpy(t->buffer, a->data, a->message.bytes);
		t->done = true;
	} else if (fit) {
		net->out_of_memory = true;
		net->flooding = t->peer;
	}
	release(net, a);
}

/* Has an earlier message with this sender and tag not been received yet? */
static bool is_behind(const ddp_net *net, const ddp_envelope *envelope)
{
	const kept_message *a = net->unexpected;

	while (a != NULL && (a->message.envelope.source != envelope->source || a->message.envelope.tag != envelope->tag))
		a = a->next;
	return a != NULL;
}

/* Keeps a message for later; false if it cannot be. */
static bool keep(ddp_net *net, const data_header *header, void *data, size_t bytes, uint64_t attributes)
{
	const ddp_envelope *envelope = &header->envelope;
	bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	bool ours = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
	kept_message *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return false;
	*a = (kept_message){ .message = { *envelope, bytes }, .data = data, .rendezvous = rendezvous,
	                     .behind = is_behind(net, envelope), .copied = !ours, .charge = header->charge };
	if (net->kept_bytes + ddp_unexpected_weight(a) > kept_max_bytes + (size_t)net->comm->size * kept_rank_bytes) {
		free(a);
		return false;
	}
	if (a->copied) {
		a->data = malloc(bytes + 1);
		if (a->data == NULL) {
			free(a);
			return false;
		}
		if (bytes > 0)
			memcpy(a->data, data, bytes);
	}
	net->kept_bytes += ddp_unexpected_weight(a);
	*net->unexpected_end = a;
	net->unexpected_end = &a->next;
	return true;
}

ucs_status_t ddp_ucx_data_arrived(void *argument, const void *bytes_of_header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	int source = ddp_ucx_source(net, bytes_of_header, header_bytes, sizeof(data_header));
	data_header header;

	/* A rendezvous that is not kept is refused by this. */
	if (source == DDP_NOBODY)
		return UCS_OK;
	memcpy(&header, bytes_of_header, sizeof(header));
	ddp_envelope *envelope = &header.envelope;
	envelope->source = source;
	if (net->refusing && (envelope->tag & DDP_NET_AGREEMENT_TAG) != DDP_NET_AGREEMENT_TAG)
		return UCS_OK;
	bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	ddp_transfer *t = rendezvous || is_behind(net, envelope) ? NULL : take_posted(net, envelope);
	if (t != NULL) {
		if (fits(net, t, envelope, bytes)) {
			if (bytes > 0)
				memcpy(t->buffer, data, bytes);
			t->done = true;
		}
		ddp_ucx_taken(net, source, header.charge);
		return UCS_OK;
	}
	/* A rendezvous is begun after the callback, in ddp_ucx_receive_deferred(). */
	if (!keep(net, &header, data, bytes, param->recv_attr)) {
		net->flooding = source;
		return UCS_OK;
	}
	return rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? UCS_INPROGRESS : UCS_OK;
}

static kept_message *take_unexpected(ddp_net *net, int peer, uint64_t tag)
{
	for (kept_message **link = &net->unexpected; *link != NULL; link = &(*link)->next) {
		kept_message *a = *link;
		if (a->message.envelope.source != peer || a->message.envelope.tag != tag)
			continue;
		*link = a->next;
		if (a->next == NULL)
			net->unexpected_end = link;
		net->kept_bytes -= ddp_unexpected_weight(a);
		ddp_ucx_taken(net, peer, a->charge);
		return a;
	}
	return NULL;
}

void ddp_ucx_receive(ddp_net *net, ddp_transfer *transfer)
{
	ddp_transfer **end = &net->posted;
	bool waiting = false;

	/* A message that came while UCX made another connection may wait for a
	   receiver that was there before. */
	for (; *end != NULL; end = &(*end)->next)
		waiting = waiting || ((*end)->peer == transfer->peer &&
		                      (*end)->envelope.tag == transfer->envelope.tag);
	kept_message *a = waiting ? NULL : take_unexpected(net, transfer->peer, transfer->envelope.tag);
	if (a != NULL)
		deliver(net, transfer, a);
	else
		*end = transfer;
}

/* Rendezvous that were waited for already, and what came behind them. */
bool ddp_ucx_receive_deferred(ddp_net *net)
{
	bool moved = false;

	for (kept_message *a = net->unexpected, *next; a != NULL; a = next) {
		next = a->next;
		ddp_transfer *t = a->rendezvous || a->behind ? take_posted(net, &a->message.envelope) : NULL;
		if (t == NULL)
			continue;
		deliver(net, t, take_unexpected(net, t->peer, t->envelope.tag));
		moved = true;
		next = net->unexpected;
	}
	return moved;
}

void ddp_ucx_drop(ddp_net *net, int peer, uint64_t tag)
{
	kept_message *a = take_unexpected(net, peer, tag);

	if (a != NULL)
		release(net, a);
}

void ddp_ucx_drop_all(ddp_net *net, bool agreement)
{
	for (kept_message **link = &net->unexpected; *link != NULL;) {
		kept_message *a = *link;
		if (!agreement && (a->message.envelope.tag & DDP_NET_AGREEMENT_TAG) == DDP_NET_AGREEMENT_TAG) {
			link = &a->next;
			continue;
		}
		*link = a->next;
		net->kept_bytes -= ddp_unexpected_weight(a);
		release(net, a);
	}
	net->unexpected_end = &net->unexpected;
	while (*net->unexpected_end != NULL)
		net->unexpected_end = &(*net->unexpected_end)->next;
}
