#include "comm/net_ucx.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/await.h"
#include "comm/net_log.h"
#include "comm/node.h"

enum {
	TURNS_MAX = 64,      /* of UCX's progress at a time, though there is more to move */
	ASK_MS = 500         /* how long a wait lasts before the peer is asked */
};

/* In the tag of that message: no operation's message has it, whatever its number. */
static const uint64_t question_bit = 1ull << 62;

/* What is kept of messages that nobody has asked for yet: in all, and for each
   rank of the communicator. */
static const size_t kept_max_bytes = (size_t)1 << 30, kept_rank_bytes = (size_t)1 << 20;

/* ---- requests ----------------------------------------------------------------------- */

static seal seal_for(const ddp_net *net, int peer)
{
	return (seal){ .token = net->peers[peer].ours, .source = net->comm->rank };
}

static ticket *new_ticket(ddp_net *net, int peer)
{
	ticket *t = malloc(sizeof(*t));

	if (t == NULL)
		return NULL;
	*t = (ticket){ .next = net->tickets, .link = &net->tickets, .peer = peer };
	if (net->tickets != NULL)
		net->tickets->link = &t->next;
	net->tickets = t;
	return t;
}

static ticket *ticket_of(ddp_net *net, ddp_transfer *transfer)
{
	ticket *t = new_ticket(net, transfer->peer);

	if (t == NULL)
		return NULL;
	t->transfer = transfer;
	t->header = (data_header){ .seal = seal_for(net, transfer->peer), .envelope = transfer->envelope };
	return t;
}

/* The request has ended. */
static void redeem(ticket *t, ucs_status_t status)
{
	ddp_transfer *transfer = t->transfer;

	if (transfer != NULL && status == UCS_OK)
		transfer->done = true;
	else if (transfer != NULL && transfer->net->peers[transfer->peer].lost == UCS_OK)
		transfer->net->peers[transfer->peer].lost = status;
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	free(t);
}

/* After UCX has begun a request: it may have ended at once. */
static void begun(ticket *t, void *request)
{
	if (request == NULL)
		redeem(t, UCS_OK);
	else if (UCS_PTR_IS_ERR(request))
		redeem(t, UCS_PTR_STATUS(request));
}

/* ---- receiving -------------------------------------------------------------------- */

static bool same_operation(const ddp_envelope *a, const ddp_envelope *b)
{
	return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
	       a->count == b->count && a->counts_hash == b->counts_hash && a->flags == b->flags;
}

static bool fits(ddp_net *net, const ddp_transfer *t, const ddp_envelope *envelope, size_t bytes)
{
	if (same_operation(&t->envelope, envelope) && bytes == t->bytes)
		return true;
	net->unfit = true;
	net->unfit_have = *envelope;
	net->unfit_want = t->envelope;
	net->unfit_have_bytes = bytes;
	net->unfit_want_bytes = t->bytes;
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

static void received(void *request, ucs_status_t status, size_t length, void *user)
{
	(void)length;
	redeem(user, status);
	ucp_request_free(request);
}

void ddp_net_drop(ddp_net *net, arrival *a)
{
	if (a->copied)
		free(a->data);
	else if (a->data != NULL)
		ucp_am_data_release(net->worker, a->data);
	free(a);
}

/* Moves an arrival that is off the list into its receiver's buffer. */
static void deliver(ddp_net *net, ddp_transfer *t, arrival *a)
{
	bool fit = fits(net, t, &a->envelope, a->bytes);
	ticket *begins = fit && a->rendezvous ? ticket_of(net, t) : NULL;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.recv_am = received, .user_data = begins,
	};

	if (begins != NULL) {
		begun(begins, ucp_am_recv_data_nbx(net->worker, a->data, t->buffer, t->bytes, &param));
		a->data = NULL;
	} else if (fit && !a->rendezvous) {
		if (a->bytes > 0)
			memcpy(t->buffer, a->data, a->bytes);
		t->done = true;
	} else if (fit) {
		net->out_of_memory = true;
		net->flooding = t->peer;
	}
	ddp_net_drop(net, a);
}

/* Has an earlier message with this sender and tag not been received yet? */
static bool is_behind(const ddp_net *net, const ddp_envelope *envelope)
{
	const arrival *a = net->arrivals;

	while (a != NULL && (a->envelope.source != envelope->source || a->envelope.tag != envelope->tag))
		a = a->next;
	return a != NULL;
}

/* Keeps a message for later; false if it cannot be. */
static bool keep(ddp_net *net, const data_header *header, void *data, size_t bytes, uint64_t attributes)
{
	const ddp_envelope *envelope = &header->envelope;
	bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	bool ours = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
	arrival *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return false;
	*a = (arrival){ .envelope = *envelope, .data = data, .bytes = bytes, .rendezvous = rendezvous,
	                .behind = is_behind(net, envelope), .copied = !ours, .charge = header->charge };
	if (net->kept_bytes + ddp_arrival_weight(a) > kept_max_bytes + (size_t)net->comm->size * kept_rank_bytes) {
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
	net->kept_bytes += ddp_arrival_weight(a);
	*net->arrivals_end = a;
	net->arrivals_end = &a->next;
	return true;
}

ucs_status_t ddp_net_data_arrived(void *argument, const void *bytes_of_header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	int source = ddp_net_source(net, bytes_of_header, header_bytes, sizeof(data_header));
	data_header header;

	/* A rendezvous that is not kept is refused by this. */
	if (source == DDP_NOBODY)
		return UCS_OK;
	memcpy(&header, bytes_of_header, sizeof(header));
	ddp_envelope *envelope = &header.envelope;
	envelope->source = source;
	if (net->refusing && (envelope->tag & DDP_NET_MEETING_TAG) != DDP_NET_MEETING_TAG)
		return UCS_OK;
	bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
	ddp_transfer *t = rendezvous || is_behind(net, envelope) ? NULL : take_posted(net, envelope);
	if (t != NULL) {
		if (fits(net, t, envelope, bytes)) {
			if (bytes > 0)
				memcpy(t->buffer, data, bytes);
			t->done = true;
		}
		ddp_net_taken(net, source, header.charge);
		return UCS_OK;
	}
	/* A rendezvous is begun after the callback, in ddp_net_progress(). */
	if (!keep(net, &header, data, bytes, param->recv_attr)) {
		net->flooding = source;
		return UCS_OK;
	}
	return rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t ddp_net_failure_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	ddp_net *net = argument;
	failure_header came;

	(void)data;
	(void)bytes;
	(void)param;
	if (ddp_net_source(net, header, header_bytes, sizeof(came)) == DDP_NOBODY || net->failure_came)
		return UCS_OK;
	memcpy(&came, header, sizeof(came));
	net->failure = came.failure;
	net->failure.text[sizeof(net->failure.text) - 1] = '\0';
	if (net->failure.status <= DDP_OK || net->failure.status > DDP_ERR_INTERNAL)
		net->failure.status = DDP_ERR_PEER;
	if (net->failure.culprit < 0 || net->failure.culprit >= net->comm->size)
		net->failure.culprit = DDP_NOBODY;
	net->failure_came = true;
	return UCS_OK;
}

static arrival *take_arrival(ddp_net *net, int peer, uint64_t tag)
{
	for (arrival **link = &net->arrivals; *link != NULL; link = &(*link)->next) {
		arrival *a = *link;
		if (a->envelope.source != peer || a->envelope.tag != tag)
			continue;
		*link = a->next;
		if (a->next == NULL)
			net->arrivals_end = link;
		net->kept_bytes -= ddp_arrival_weight(a);
		ddp_net_taken(net, peer, a->charge);
		return a;
	}
	return NULL;
}

bool ddp_net_progress(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	bool moved = false;

	if (net->down)
		return false;
	for (int i = 0; i < TURNS_MAX && ucp_worker_progress(net->worker) != 0; i++)
		moved = true;
	if (ddp_net_answer(net))
		moved = true;
	/* Rendezvous that were waited for already, and what came behind them. */
	for (arrival *a = net->arrivals, *next; a != NULL; a = next) {
		next = a->next;
		ddp_transfer *t = a->rendezvous || a->behind ? take_posted(net, &a->envelope) : NULL;
		if (t == NULL)
			continue;
		deliver(net, t, take_arrival(net, t->peer, t->envelope.tag));
		moved = true;
		next = net->arrivals;
	}
	ddp_net_answer_inquiries(net);
	ddp_net_send_credits(net);
	return moved;
}

/* ---- sending ----------------------------------------------------------------------- */

static void set_envelope(const ddp_comm *comm, uint64_t tag, ddp_envelope *envelope)
{
	const ddp_header *h = ddp_node_header(comm, comm->node.self);

	*envelope = (ddp_envelope){
		.tag = tag, .count = h->count, .source = comm->rank, .root = h->root,
		.counts_hash = h->counts_hash, .kind = h->kind, .type = h->type, .op = h->op,
		.flags = h->form,
	};
}

static void sent(void *request, ucs_status_t status, void *user)
{
	redeem(user, status);
	ucp_request_free(request);
}

bool ddp_net_notify(ddp_net *net, int peer, unsigned int id, const void *header, size_t bytes)
{
	const connection *c = &net->peers[peer];
	ticket *t = c->settled && c->lost == UCS_OK && c->ep != NULL ? new_ticket(net, peer) : NULL;

	if (t == NULL)
		return false;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = sent, .user_data = t, .flags = UCP_AM_SEND_FLAG_EAGER,
	};
	memcpy(&t->header, header, bytes);
	t->header.seal = seal_for(net, peer);
	begun(t, ucp_am_send_nbx(c->ep, id, &t->header, bytes, NULL, 0, &param));
	return true;
}

ddp_status ddp_net_begin_send(ddp_net *net, ddp_transfer *transfer)
{
	ticket *t = ticket_of(net, transfer);

	if (t == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "out of memory");
	bool whole = ddp_net_charge(net, transfer, &t->header.charge);
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = sent, .user_data = t, .flags = whole ? 0 : UCP_AM_SEND_FLAG_RNDV,
	};
	begun(t, ucp_am_send_nbx(net->peers[transfer->peer].ep, DDP_AM_DATA, &t->header,
	                         sizeof(t->header), transfer->data, transfer->bytes, &param));
	return DDP_OK;
}

ddp_status ddp_net_send_as(ddp_comm *comm, int peer, const ddp_envelope *envelope,
                           const void *buffer, size_t bytes, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	ddp_transfer **end = &net->held;
	ucp_ep_h ep;

	*transfer = (ddp_transfer){ .net = net, .peer = peer, .envelope = *envelope, .data = buffer,
	                            .bytes = bytes };
	if (net->down)
		return ddp_comm_check(comm);
	net->sent_bytes += bytes;
	ddp_status status = ddp_net_connect(net, peer, &ep);
	if (status != DDP_OK)
		return status;
	if (net->peers[peer].settled)
		return ddp_net_begin_send(net, transfer);
	while (*end != NULL)
		end = &(*end)->next;
	*end = transfer;
	return DDP_OK;
}

uint64_t ddp_net_sent_bytes(const ddp_comm *comm)
{
	return comm->net->sent_bytes;
}

void ddp_net_recv_as(ddp_comm *comm, int peer, const ddp_envelope *envelope, void *buffer,
                     size_t bytes, ddp_transfer *transfer)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = comm->net;
	ddp_transfer **end = &net->posted;
	ucp_ep_h ep;

	*transfer = (ddp_transfer){ .net = net, .peer = peer, .envelope = *envelope, .buffer = buffer,
	                            .bytes = bytes };
	if (net->down)
		return;
	/* Only an endpoint of one's own tells of the peer's death. A failure to
	   connect is reported when the message is waited for. */
	(void)ddp_net_connect(net, peer, &ep);
	/* A message that came while UCX made another connection may wait for a
	   receiver that was there before. */
	bool waiting = false;
	for (; *end != NULL; end = &(*end)->next)
		waiting = waiting || ((*end)->peer == peer && (*end)->envelope.tag == envelope->tag);
	arrival *a = waiting ? NULL : take_arrival(net, peer, envelope->tag);
	if (a != NULL)
		deliver(net, transfer, a);
	else
		*end = transfer;
}

ddp_status ddp_net_send(ddp_comm *comm, int peer, uint64_t tag, const void *buffer, size_t bytes,
                        ddp_transfer *transfer)
{
	ddp_envelope envelope;

	set_envelope(comm, tag, &envelope);
	return ddp_net_send_as(comm, peer, &envelope, buffer, bytes, transfer);
}

void ddp_net_recv(ddp_comm *comm, int peer, uint64_t tag, void *buffer, size_t bytes,
                  ddp_transfer *transfer)
{
	ddp_envelope envelope;

	set_envelope(comm, tag, &envelope);
	ddp_net_recv_as(comm, peer, &envelope, buffer, bytes, transfer);
}

/* ---- waiting ------------------------------------------------------------------------ */

typedef struct transfers {
	const ddp_transfer *list;
	int count;
} transfers;

static int missing_transfer(ddp_comm *comm, const void *argument)
{
	const transfers *t = argument;

	(void)comm;
	for (int i = 0; i < t->count; i++) {
		if (!t->list[i].done)
			return t->list[i].peer;
	}
	return DDP_NOBODY;
}

ddp_status ddp_net_wait_gathering(ddp_comm *comm, const ddp_transfer *list, int count,
                                  uint64_t gather_ns)
{
	const transfers t = { list, count };
	const ddp_condition condition = { .missing = missing_transfer, .argument = &t,
	                                  .sleeps_for = DDP_SLEEPS_FOR_NET, .gather_ns = gather_ns };

	return ddp_comm_await(comm, &condition);
}

ddp_status ddp_net_wait(ddp_comm *comm, const ddp_transfer *list, int count)
{
	return ddp_net_wait_gathering(comm, list, count, 0);
}

static void describe(const ddp_envelope *e, char *text, size_t bytes)
{
	static const size_t by_counts[1];
	const ddp_collective c = {
		.kind = (ddp_kind)e->kind, .type = (ddp_type)e->type, .op = (ddp_op)e->op,
		.root = e->root, .count = e->count,
		.counts = (e->flags & DDP_HEADER_VECTOR) != 0 ? by_counts : NULL,
	};

	ddp_collective_describe(&c, text, bytes);
}

static uint64_t sequence_of(const ddp_envelope *e)
{
	return (e->tag & ~question_bit) >> 24;
}

static ddp_status break_unfit(ddp_comm *comm, const ddp_envelope *have, size_t have_bytes,
                              const ddp_envelope *want, size_t want_bytes)
{
	char texts[2][128], sizes[80] = "";

	if (want->kind == DDP_SEND)
		return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
		                      "%s sent %s[%llu] with tag %d, but %s expects %s[%llu]",
		                      ddp_rank_text(comm, have->source), ddp_type_name((ddp_type)have->type),
		                      (unsigned long long)have->count, (int)(want->tag & 0xffff),
		                      ddp_rank_text(comm, comm->rank), ddp_type_name((ddp_type)want->type),
		                      (unsigned long long)want->count);
	describe(want, texts[0], sizeof(texts[0]));
	describe(have, texts[1], sizeof(texts[1]));
	if (same_operation(have, want))
		snprintf(sizes, sizeof(sizes), " (%zu bytes were expected, %zu came)", want_bytes, have_bytes);
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
	                      "operation #%llu differs: %s issued %s, but %s issued %s%s",
	                      (unsigned long long)sequence_of(have), ddp_rank_text(comm, comm->rank),
	                      texts[0], ddp_rank_text(comm, have->source), texts[1], sizes);
}

/* A wait for this peer has lasted. If it took the operation for another, it
   may wait for us in turn, or be through: it is told what this rank is at, and
   compares. */
static void ask(ddp_comm *comm, int peer)
{
	ddp_net *net = comm->net;
	uint64_t now = ddp_now_ns();

	if (comm->sequence == 0 || comm->running->kind == DDP_SEND || comm->running->kind == DDP_RECV)
		return;
	if (net->asked_sequence != comm->sequence) {
		net->asked_sequence = comm->sequence;
		net->ask_ns = now + (uint64_t)ASK_MS * 1000000;
	}
	if (now < net->ask_ns || (net->question.net != NULL && !net->question.done))
		return;
	net->ask_ns = now + (uint64_t)ASK_MS * 1000000;
	/* A failure to send is seen by who waits. */
	(void)ddp_net_send(comm, peer, question_bit | ddp_net_tag(comm, 0), NULL, 0, &net->question);
}

/* What operation `sequence`, one of the last, was here. */
static ddp_envelope past_envelope(const ddp_comm *comm, uint64_t sequence)
{
	const ddp_fingerprint *f = &comm->past[sequence % DDP_PAST];

	return (ddp_envelope){ .tag = sequence << 24, .source = comm->rank, .kind = f->kind,
	                       .type = f->type, .op = f->op, .flags = f->form, .root = f->root,
	                       .count = f->count, .counts_hash = f->counts_hash };
}

/* For an operation so long ago that what it was here is forgotten. */
static ddp_status break_unasked(ddp_comm *comm, const ddp_envelope *have)
{
	char text[128];

	describe(have, text, sizeof(text));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, have->source,
	                      "operation #%llu differs: %s issued %s, and sent what %s, now at operation "
	                      "#%llu, did not wait for", (unsigned long long)sequence_of(have),
	                      ddp_rank_text(comm, have->source), text, ddp_rank_text(comm, comm->rank),
	                      (unsigned long long)comm->sequence);
}

/* A message of an operation that was another one here will never be asked for. */
static ddp_status check_arrivals(ddp_comm *comm)
{
	for (arrival *a = comm->net->arrivals, *next; a != NULL; a = next) {
		const uint64_t sequence = sequence_of(&a->envelope);
		next = a->next;
		if ((a->envelope.tag & DDP_NET_PAIR_TAG) != 0 || sequence > comm->sequence)
			continue;
		const bool known = comm->sequence - sequence < DDP_PAST;
		const bool question = (a->envelope.tag & question_bit) != 0;
		const ddp_envelope mine = past_envelope(comm, sequence);
		if (known && !same_operation(&a->envelope, &mine))
			return break_unfit(comm, &a->envelope, a->bytes, &mine, 0);
		if (!known && !question)
			return break_unasked(comm, &a->envelope);
		if (question)
			ddp_net_drop(comm->net, take_arrival(comm->net, a->envelope.source, a->envelope.tag));
	}
	return DDP_OK;
}

ddp_status ddp_net_check(ddp_comm *comm, int missing)
{
	ddp_net *net = comm->net;

	if (net->down)
		return DDP_OK;
	if (net->failure_came)
		return ddp_comm_break(comm, (ddp_status)net->failure.status, net->failure.culprit, "%s",
		                      net->failure.text);
	if (net->unfit)
		return break_unfit(comm, &net->unfit_have, net->unfit_have_bytes, &net->unfit_want,
		                   net->unfit_want_bytes);
	if (net->out_of_memory)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, comm->rank, "%s has no memory to receive what %s sends",
		                      ddp_rank_text(comm, comm->rank), ddp_rank_text(comm, net->flooding));
	if (net->flooding != DDP_NOBODY)
		return ddp_comm_break(comm, DDP_ERR_NOMEM, net->flooding,
		                      "%s has no memory for messages that it has not asked for yet: %zu MiB are "
		                      "kept, and %s sent more", ddp_rank_text(comm, comm->rank),
		                      net->kept_bytes >> 20, ddp_rank_text(comm, net->flooding));
	if (missing != DDP_NOBODY && net->peers[missing].lost != UCS_OK) {
		char operation[128];
		ddp_collective_describe(comm->running, operation, sizeof(operation));
		return ddp_comm_break(comm, DDP_ERR_PEER, missing, "the connection to %s is lost (%s), in %s #%llu",
		                      ddp_rank_text(comm, missing), ucs_status_string(net->peers[missing].lost),
		                      operation, (unsigned long long)comm->sequence);
	}
	if (missing != DDP_NOBODY && !ddp_is_local(comm, missing))
		ask(comm, missing);
	return check_arrivals(comm);
}

bool ddp_net_arm(ddp_comm *comm)
{
	DDP_UCX_FOR_LIBDDP();

	return comm->net->down || ucp_worker_arm(comm->net->worker) != UCS_ERR_BUSY;
}

void ddp_net_sleep(ddp_comm *comm, int timeout_ms)
{
	ddp_net *net = comm->net;
	struct pollfd events[2] = { { .fd = atomic_load(&net->poll_fd), .events = POLLIN },
	                            { .fd = net->bell[0], .events = POLLIN } };

	(void)poll(events, 2, timeout_ms);
}

void ddp_net_rest(ddp_comm *comm, uint64_t ns)
{
	struct pollfd bell = { .fd = comm->net->bell[0], .events = POLLIN };
	const struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	(void)ppoll(&bell, 1, &time, NULL);
}

void ddp_net_quiet_bell(ddp_comm *comm)
{
	char rings[64];

	while (read(comm->net->bell[0], rings, sizeof(rings)) == (ssize_t)sizeof(rings))
		continue;
}

void ddp_net_kick(ddp_comm *comm, int i)
{
	/* If the pipe is full, it wakes the sleeper anyway. */
	ssize_t ignored = write(comm->net->bells[i], "", 1);

	(void)ignored;
}

