/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net: a message on its way to UCX: its memory, who sends it, its request, the sender's credit, its header. */
#include "comm/net/ucx.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/core/silence.h"

/* ---- memory -------------------------------------------------------------------------- */

void *ddp_ucx_memory(ddp_worker *worker, size_t bytes)
{
	void *memory = malloc(bytes);

	for (int i = 0; memory == NULL && bytes <= sizeof(worker->spares[0]) && i < DDP_NET_SPARES; i++) {
		if (worker->spares_used & UINT32_C(1) << i)
			continue;
		worker->spares_used |= UINT32_C(1) << i;
		memory = worker->spares[i];
	}
	return memory;
}

void ddp_ucx_memory_free(ddp_worker *worker, void *memory)
{
	const uintptr_t offset = (uintptr_t)memory - (uintptr_t)worker->spares;

	if (offset < sizeof(worker->spares))
		worker->spares_used &= ~(UINT32_C(1) << offset / sizeof(worker->spares[0]));
	else
		free(memory);
}

/* ---- seals --------------------------------------------------------------------------- */

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

/* ---- requests ------------------------------------------------------------------------ */

ticket *ddp_ucx_ticket(ticket **list, connection *c, ddp_transfer *transfer, size_t header_bytes)
{
	ticket *t = ddp_ucx_memory(c->worker, sizeof(*t) + header_bytes);

	if (t == NULL)
		return NULL;
	t->next = *list;
	t->link = list;
	t->transfer = transfer;
	t->to = c;
	t->of_data = transfer != NULL;
	if (t->next != NULL)
		t->next->link = &t->next;
	*list = t;
	return t;
}

/* The request has ended. One that the receiver refused, whose communicator is broken
   or closed, was cancelled: nothing is wrong with the connection. */
static void redeem(ticket *t, ucs_status_t status)
{
	if (t->transfer != NULL && status != UCS_OK && status != UCS_ERR_CANCELED)
		ddp_ucx_lose(t->to, status);
	if (t->transfer != NULL) {
		ddp_ucx_news(t->transfer->net);
		if (status == UCS_OK)
			atomic_store(&t->transfer->done, true);
	}
	*t->link = t->next;
	if (t->next != NULL)
		t->next->link = t->link;
	ddp_ucx_memory_free(t->to->worker, t);
}

void ddp_ucx_begun(ticket *t, void *request)
{
	if (request == NULL)
		redeem(t, UCS_OK);
	else if (UCS_PTR_IS_ERR(request))
		redeem(t, UCS_PTR_STATUS(request));
}

void ddp_ucx_received(void *request, ucs_status_t status, size_t length, void *user)
{
	(void)length;
	redeem(user, status);
	ucp_request_free(request);
}

static void sent(void *request, ucs_status_t status, void *user)
{
	redeem(user, status);
	ucp_request_free(request);
}

bool ddp_ucx_notify(ticket **list, connection *c, unsigned int id, const void *header, size_t bytes)
{
	const bool able = atomic_load(&c->settled) && atomic_load(&c->lost) == UCS_OK && c->ep != NULL;
	ticket *t = able ? ddp_ucx_ticket(list, c, NULL, bytes) : NULL;

	if (t == NULL)
		return false;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = sent, .user_data = t, .flags = UCP_AM_SEND_FLAG_EAGER,
	};
	const seal own = ddp_ucx_seal(c);
	memcpy(t->header, header, bytes);
	memcpy(t->header, &own, sizeof(own));
	ddp_ucx_begun(t, ucp_am_send_nbx(c->ep, id, t->header, bytes, NULL, 0, &param));
	return true;
}

/* ---- credit -------------------------------------------------------------------------- */

enum {
	CREDIT_LEAST = 1 << 20, /* of many processes, in all 1 GiB, or this of each */
	CREDIT_MOST = 16 << 20,
	MESSAGE_BYTES = 128,    /* that a message takes beside its data */
	PARTS = 4               /* of a credit: when a sender is told what was taken */
};

static size_t credit_bytes(const connection *c)
{
	size_t share = ((size_t)1 << 30) / (size_t)c->worker->roster->size;

	if (share < CREDIT_LEAST)
		return CREDIT_LEAST;
	return share < CREDIT_MOST ? share : CREDIT_MOST;
}

/* Does a transfer's data fit in its peer's credit? If not, it is only to be announced. *charge is what the receiver
   gives back. */
static bool use_credit(connection *c, const ddp_transfer *t, uint64_t *charge)
{
	uint64_t whole = t->bytes + MESSAGE_BYTES;

	*charge = 0;
	/* Messages of the survivor agreement are few, and come after messages that nobody takes any more. */
	if (ddp_net_is_of_agreement(&t->envelope))
		return true;
	if (t->bytes > 0 && c->sent_bytes - c->credited_bytes + whole > credit_bytes(c))
		return false;
	c->sent_bytes += whole;
	*charge = whole;
	return true;
}

void ddp_ucx_return_credit(connection *c, uint64_t charge)
{
	c->taken_bytes += charge;
	if (c->taken_bytes - c->told_bytes < credit_bytes(c) / PARTS)
		return;
	c->credit_due = true;
	ddp_ucx_due(c);
}

bool ddp_ucx_send_credit(connection *c)
{
	credit_header credit = { .taken_bytes = c->taken_bytes };

	if (atomic_load(&c->lost) == UCS_OK &&
	    !ddp_ucx_notify(&c->worker->tickets, c, DDP_AM_CREDIT, &credit, sizeof(credit)))
		return false;
	c->credit_due = false;
	c->told_bytes = c->taken_bytes;
	return true;
}

void ddp_ucx_credit_arrived(connection *c, const control_header *header)
{
	const uint64_t taken_bytes = header->credit.taken_bytes;

	if (taken_bytes > c->credited_bytes && taken_bytes <= c->sent_bytes)
		c->credited_bytes = taken_bytes;
}

/* ---- headers of data ----------------------------------------------------------------- */

enum { NUMBER_BITS = 24 }; /* of a collective's tag, below the sequence (comm/wait/message) */

/* These words follow the seal. So that most of them are small, the sequence stands below the message's number, and the
   sender's rank is told by how it differs from that in the world. */
static void list_words(const data_header *header, uint64_t words[DDP_HEADER_WORDS])
{
	const ddp_envelope *e = &header->envelope;
	const ddp_fingerprint *o = &e->operation;

	words[0] = header->id;
	words[1] = e->tag >> NUMBER_BITS | e->tag << (64 - NUMBER_BITS);
	words[2] = (uint64_t)o->kind | (uint64_t)o->type << 8 | (uint64_t)o->op << 16 | (uint64_t)o->by_counts << 24 |
		(uint64_t)(uint32_t)o->root << 32;
	words[3] = o->count;
	words[4] = o->counts_hash;
	words[5] = (uint32_t)e->source ^ (uint32_t)header->seal.source;
	words[6] = header->charge;
}

/* The reverse. */
static void read_words(const uint64_t words[DDP_HEADER_WORDS], data_header *header)
{
	header->id = words[0];
	header->envelope = (ddp_envelope){
		.tag = words[1] << NUMBER_BITS | words[1] >> (64 - NUMBER_BITS),
		.operation = {
			.kind = (uint8_t)words[2], .type = (uint8_t)(words[2] >> 8), .op = (uint8_t)(words[2] >> 16),
			.by_counts = (uint8_t)(words[2] >> 24), .root = (int32_t)(words[2] >> 32),
			.count = words[3], .counts_hash = (uint32_t)words[4],
		},
		.source = (int32_t)((uint32_t)words[5] ^ (uint32_t)header->seal.source),
	};
	header->charge = words[6];
}

static unsigned int bytes_of(uint64_t word)
{
	return word == 0 ? 0 : (71 - (unsigned int)__builtin_clzll(word)) / 8;
}

/* The seal, half a byte for each word, which counts its bytes, and these bytes, the lowest first. */
size_t ddp_ucx_header_write(const data_header *header, unsigned char to[DDP_HEADER_MAX])
{
	unsigned char *at = to + DDP_HEADER_MIN, *counts = to + DDP_SEAL_BYTES;
	uint64_t words[DDP_HEADER_WORDS];

	memcpy(to, &header->seal, DDP_SEAL_BYTES);
	memset(counts, 0, DDP_HEADER_MIN - DDP_SEAL_BYTES);
	list_words(header, words);
	for (unsigned int i = 0; i < DDP_HEADER_WORDS; i++) {
		const unsigned int bytes = bytes_of(words[i]);
		const uint64_t word = htole64(words[i]);
		counts[i / 2] |= (unsigned char)(bytes << i % 2 * 4);
		memcpy(at, &word, sizeof(word)); /* there is room for all words whole */
		at += bytes;
	}
	return (size_t)(at - to);
}

bool ddp_ucx_header_read(const void *from, size_t bytes, data_header *header)
{
	/* With room behind it, so that each word is read whole, whatever it counts. */
	unsigned char copy[DDP_HEADER_MAX + sizeof(uint64_t)] = { 0 };
	const unsigned char *counts = copy + DDP_SEAL_BYTES;
	uint64_t words[DDP_HEADER_WORDS];
	size_t at = DDP_HEADER_MIN;

	if (bytes < DDP_HEADER_MIN || bytes > DDP_HEADER_MAX)
		return false;
	memcpy(copy, from, bytes);
	*header = (data_header){ .id = 0 };
	memcpy(&header->seal, copy, DDP_SEAL_BYTES);
	for (unsigned int i = 0; i < DDP_HEADER_WORDS; i++) {
		const unsigned int count = counts[i / 2] >> i % 2 * 4 & 15;
		uint64_t word;
		if (count > sizeof(word) || at + count > bytes)
			return false;
		memcpy(&word, copy + at, sizeof(word));
		words[i] = count == 0 ? 0 : le64toh(word) & UINT64_MAX >> (64 - 8 * count);
		at += count;
	}
	read_words(words, header);
	return at == bytes;
}

/* ---- sending ------------------------------------------------------------------------- */

ddp_status ddp_ucx_begin_send(ddp_net *net, ddp_transfer *transfer)
{
	connection *c = ddp_ucx_connection(net, transfer->peer);
	ticket *t = ddp_ucx_ticket(&net->tickets, c, transfer, DDP_HEADER_MAX);

	if (t == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to send a message of %zu bytes", transfer->bytes);
	data_header header = { .seal = ddp_ucx_seal(c), .id = net->id, .envelope = transfer->envelope };
	const bool whole = use_credit(c, transfer, &header.charge);
	const size_t header_bytes = ddp_ucx_header_write(&header, t->header);
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
		.cb.send = sent, .user_data = t, .flags = whole ? 0 : UCP_AM_SEND_FLAG_RNDV,
	};
	ddp_ucx_begun(t, ucp_am_send_nbx(c->ep, DDP_AM_DATA, t->header, header_bytes, transfer->data,
	                                 transfer->bytes, &param));
	return DDP_OK;
}
