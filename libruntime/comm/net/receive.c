/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net: messages with data that arrive, the communicators they are for, and who receives them. */
#include "comm/net/ucx.h"

#include <string.h>

/* ---- communicators of the process ---------------------------------------------------- */

static size_t bucket_of(uint64_t id)
{
	return (id ^ id >> 32) % DDP_NET_BUCKETS;
}

void ddp_ucx_add(ddp_net *net)
{
	ddp_net **bucket = &net->worker->nets[bucket_of(net->id)];

	net->next = *bucket;
	*bucket = net;
}

void ddp_ucx_remove(ddp_net *net)
{
	for (ddp_net **link = &net->worker->nets[bucket_of(net->id)]; *link != NULL; link = &(*link)->next) {
		if (*link == net) {
			*link = net->next;
			return;
		}
	}
}

ddp_net *ddp_ucx_find(const ddp_worker *worker, uint64_t id)
{
	ddp_net *net = worker->nets[bucket_of(id)];

	while (net != NULL && net->id != id)
		net = net->next;
	return net;
}

bool ddp_ucx_is_rank(const ddp_net *net, int rank, const connection *c)
{
	return rank >= 0 && rank < net->comm->size && net->comm->topology.world_ranks[rank] == c->peer;
}

int ddp_ucx_rank_of(const ddp_net *net, const connection *c)
{
	for (int rank = 0; rank < net->comm->size; rank++) {
		if (net->comm->topology.world_ranks[rank] == c->peer)
			return rank;
	}
	return DDP_NOBODY;
}

void ddp_ucx_for_each(ddp_worker *worker, void (*visit)(ddp_net *net))
{
	for (int i = 0; i < DDP_NET_BUCKETS; i++) {
		for (ddp_net *net = worker->nets[i]; net != NULL; net = net->next)
			visit(net);
	}
}

/* Bounds of the unexpected messages that are kept: in all, and for each process of the job. */
static const size_t kept_max_bytes = (size_t)1 << 30, kept_rank_bytes = (size_t)1 << 20;

/* ---- receivers ---------------------------------------------------------------------------- */

static bool fits(ddp_net *net, const ddp_transfer *t, const ddp_envelope *envelope, size_t bytes)
{
	if (ddp_fingerprint_same(&t->envelope.operation, &envelope->operation) && bytes == t->bytes)
		return true;
	net->misfits = true;
	net->misfit = (ddp_misfit){ .came = { *envelope, bytes }, .wanted = { t->envelope, t->bytes } };
	ddp_ucx_trouble(net);
	return false;
}

static ddp_transfer *match_posted(ddp_net *net, const ddp_envelope *envelope)
{
	member *from = &net->members[envelope->source];

	for (ddp_transfer **link = &from->posted; *link != NULL; link = &(*link)->next) {
		ddp_transfer *t = *link;
		if (t->envelope.tag != envelope->tag)
			continue;
		*link = t->next;
		if (t->next == NULL)
			from->posted_end = link;
		return t;
	}
	return NULL;
}

static void receive_now(ddp_net *net, ddp_transfer *t, const void *data, size_t bytes)
{
	/* Another thread that lets messages move does not take part in the operation. */
	const bool taken = t->take != NULL && net->worker->current == net && t->take(t->taker, data);

	if (bytes > 0 && !taken)
		memcpy(t->buffer, data, bytes);
	ddp_ucx_news(net);
	atomic_store(&t->done, true);
}

/* ---- what is kept ----------------------------------------------------------------------- */

/* Releases a message that is off the lists. */
static void release(ddp_net *net, kept_message *a)
{
	if (!a->copied && a->data != NULL)
		ucp_am_data_release(net->worker->worker, a->data);
	ddp_ucx_memory_free(net->worker, a);
}

/* Takes *link off the lists. */
static void unlink_kept(ddp_net *net, kept_message **link)
{
	kept_message *a = *link;
	member *from = &net->members[a->message.envelope.source];

	*link = a->next;
	if (a->next == NULL)
		from->unexpected_end = link;
	*(a->before != NULL ? &a->before->after : &net->first) = a->after;
	*(a->after != NULL ? &a->after->before : &net->last) = a->before;
	atomic_fetch_sub(&net->unexpected, 1);
	net->worker->kept_bytes -= ddp_unexpected_weight(a);
	ddp_ucx_return_credit(ddp_ucx_connection(net, a->message.envelope.source), a->charge);
}

static kept_message *match_unexpected(ddp_net *net, int rank, uint64_t tag)
{
	for (kept_message **link = &net->members[rank].unexpected; *link != NULL; link = &(*link)->next) {
		kept_message *a = *link;
		if (a->message.envelope.tag != tag)
			continue;
		unlink_kept(net, link);
		return a;
	}
	return NULL;
}

/* Moves a message that is off the lists into its receiver's buffer. */
static void deliver(ddp_net *net, ddp_transfer *t, kept_message *a)
{
	connection *c = ddp_ucx_connection(net, t->peer);
	bool fit = fits(net, t, &a->message.envelope, a->message.bytes);
	ticket *begins = fit && a->rendezvous ? ddp_ucx_ticket(&net->tickets, c, t, 0) : NULL;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.recv_am = ddp_ucx_received, .user_data = begins,
	};

	if (begins != NULL) {
		void *data = a->data;
		a->data = NULL;
		ddp_ucx_begun(begins, ucp_am_recv_data_nbx(net->worker->worker, data, t->buffer, t->bytes, &param));
	} else if (fit && !a->rendezvous) {
		receive_now(net, t, a->data, a->message.bytes);
	} else if (fit) {
		net->out_of_memory = true;
		net->flooding = t->peer;
		ddp_ucx_trouble(net);
	}
	release(net, a);
}

/* Has an earlier message with this sender and tag not been received yet? */
static bool is_behind(const ddp_net *net, const ddp_envelope *envelope)
{
	const kept_message *a = net->members[envelope->source].unexpected;

	while (a != NULL && a->message.envelope.tag != envelope->tag)
		a = a->next;
	return a != NULL;
}

/* Fills in what it keeps of a message, behind which there is room for a copy; false if too much is kept. */
static bool fill(const ddp_worker *worker, kept_message *a, void *data)
{
	const size_t bytes = a->message.bytes,
	             most = kept_max_bytes + (size_t)worker->roster->size * kept_rank_bytes;

	if (worker->kept_bytes + ddp_unexpected_weight(a) > most)
		return false;
	a->data = a->copied ? a + 1 : data;
	if (a->copied && bytes > 0)
		memcpy(a->data, data, bytes);
	return true;
}

/* Keeps a message for later; false if it cannot be. */
static bool keep(ddp_net *net, const data_header *header, void *data, size_t bytes, uint64_t attributes)
{
	const ddp_envelope *envelope = &header->envelope;
	bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	bool ours = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
	member *from = &net->members[envelope->source];
	kept_message *a = ddp_ucx_memory(net->worker, sizeof(*a) + (ours ? 0 : bytes));

	if (a == NULL)
		return false;
	*a = (kept_message){ .message = { *envelope, bytes }, .rendezvous = rendezvous, .before = net->last,
	                     .behind = is_behind(net, envelope), .copied = !ours, .charge = header->charge };
	if (!fill(net->worker, a, data)) {
		ddp_ucx_memory_free(net->worker, a);
		return false;
	}
	net->worker->kept_bytes += ddp_unexpected_weight(a);
	*from->unexpected_end = a;
	from->unexpected_end = &a->next;
	*(net->last != NULL ? &net->last->after : &net->first) = a;
	net->last = a;
	atomic_fetch_add(&net->unexpected, 1);
	if ((a->rendezvous || a->behind) && !from->deferred) {
		from->deferred = true;
		from->next_deferred = net->deferred;
		net->deferred = from;
		net->worker->deferred = true;
	}
	return true;
}

/* ---- what arrives ----------------------------------------------------------------------- */

/* As ddp_ucx_source(). The header is read if the message is its source's. */
static connection *source_of(ddp_worker *worker, const void *bytes, size_t count, data_header *header)
{
	connection *c = ddp_ucx_source(worker, bytes, count, count < DDP_HEADER_MIN ? DDP_HEADER_MIN : count);

	if (c == NULL || ddp_ucx_header_read(bytes, count, header))
		return c;
	ddp_ucx_unauthentic(worker);
	return NULL;
}

/* The communicator that it is for, if that takes it; it was sent on credit. */
static ddp_net *receiver_of(ddp_worker *worker, connection *c, const data_header *header)
{
	ddp_net *net = ddp_ucx_find(worker, header->id);

	if (net != NULL && !ddp_ucx_is_rank(net, header->envelope.source, c)) {
		ddp_ucx_unauthentic(worker);
		return NULL;
	}
	if (net != NULL && (!net->refusing || ddp_net_is_of_agreement(&header->envelope)))
		return net;
	/* All ranks join before one sends: this one has closed it. */
	if (net == NULL) {
		c->closed_due = header->id;
		ddp_ucx_due(c);
	}
	ddp_ucx_return_credit(c, header->charge);
	return NULL;
}

ucs_status_t ddp_ucx_data_arrived(void *argument, const void *bytes_of_header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_worker *worker = argument;
	data_header header;
	connection *c = source_of(worker, bytes_of_header, header_bytes, &header);

	/* A rendezvous that is not kept is refused by this. */
	if (c == NULL)
		return UCS_OK;
	ddp_net *net = receiver_of(worker, c, &header);
	if (net == NULL)
		return UCS_OK;
	bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	ddp_transfer *t = rendezvous || is_behind(net, &header.envelope) ? NULL : match_posted(net, &header.envelope);
	if (t != NULL) {
		if (fits(net, t, &header.envelope, bytes))
			receive_now(net, t, data, bytes);
		ddp_ucx_return_credit(c, header.charge);
		return UCS_OK;
	}
	/* A rendezvous is begun after the callback, in ddp_ucx_receive_deferred(). */
	if (!keep(net, &header, data, bytes, param->recv_attr)) {
		ddp_ucx_return_credit(c, header.charge);
		net->flooding = header.envelope.source;
		ddp_ucx_trouble(net);
		return UCS_OK;
	}
	ddp_ucx_news(net);
	return rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? UCS_INPROGRESS : UCS_OK;
}

/* ---- what is asked for -------------------------------------------------------------------- */

void ddp_ucx_receive(ddp_net *net, ddp_transfer *transfer)
{
	member *from = &net->members[transfer->peer];
	bool waiting = false;

	/* A message that came while UCX made another connection may wait for a receiver that was there before. */
	for (const ddp_transfer *t = from->posted; t != NULL && !waiting; t = t->next)
		waiting = t->envelope.tag == transfer->envelope.tag;
	kept_message *a = waiting ? NULL : match_unexpected(net, transfer->peer, transfer->envelope.tag);
	if (a != NULL) {
		deliver(net, transfer, a);
		return;
	}
	*from->posted_end = transfer;
	from->posted_end = &transfer->next;
}

/* Rendezvous that were waited for already, and what came behind them. */
static bool receive_from(ddp_net *net, member *from)
{
	bool moved = false;

	for (kept_message *a = from->unexpected, *next; a != NULL; a = next) {
		next = a->next;
		ddp_transfer *t = a->rendezvous || a->behind ? match_posted(net, &a->message.envelope) : NULL;
		if (t == NULL)
			continue;
		deliver(net, t, match_unexpected(net, t->peer, t->envelope.tag));
		moved = true;
		next = from->unexpected;
	}
	return moved;
}

static bool receive_of(ddp_net *net)
{
	bool moved = false;

	while (net->deferred != NULL) {
		member *from = net->deferred;
		net->deferred = from->next_deferred;
		from->deferred = false;
		moved = receive_from(net, from) || moved;
	}
	return moved;
}

bool ddp_ucx_receive_deferred(ddp_worker *worker)
{
	bool moved = false;

	if (!worker->deferred)
		return false;
	worker->deferred = false;
	for (int i = 0; i < DDP_NET_BUCKETS; i++) {
		for (ddp_net *net = worker->nets[i]; net != NULL; net = net->next)
			moved = receive_of(net) || moved;
	}
	return moved;
}

void ddp_ucx_drop(ddp_net *net, int rank, uint64_t tag)
{
	kept_message *a = match_unexpected(net, rank, tag);

	if (a != NULL)
		release(net, a);
}

void ddp_ucx_drop_all(ddp_net *net, bool agreement)
{
	for (int r = 0; r < net->comm->size; r++) {
		for (kept_message **link = &net->members[r].unexpected; *link != NULL;) {
			kept_message *a = *link;
			if (!agreement && ddp_net_is_of_agreement(&a->message.envelope)) {
				link = &a->next;
				continue;
			}
			unlink_kept(net, link);
			release(net, a);
		}
	}
}
