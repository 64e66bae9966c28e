/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/handshake.h"

#include <endian.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

enum phase { CHALLENGE, VERDICT, CARD, CARD_REST, DONE, FAILED };

/* Before the hosts and the address; little-endian. */
typedef struct card_head {
	int32_t rank;
	uint32_t connection;
	uint32_t host_count;
	uint32_t address_bytes;
} card_head;

_Static_assert(sizeof(card_head) == 16 && sizeof(ddp_place) == 20, "no padding on the wire");

ddp_status net_key_of_listener(const ddp_key *step, const unsigned char nonce[DDP_NONCE_BYTES], ddp_key *key)
{
	unsigned char text[8 + DDP_NONCE_BYTES] = "ncclnet1";
	unsigned int length = 0;

	memcpy(text + 8, nonce, DDP_NONCE_BYTES);
	if (HMAC(EVP_sha256(), step->bytes, DDP_KEY_BYTES, text, sizeof(text), key->bytes, &length) == NULL ||
	    length != DDP_KEY_BYTES)
		return ddp_fail(DDP_ERR_INTERNAL, "OpenSSL cannot compute HMAC-SHA256");
	key->present = true;
	return DDP_OK;
}

/* ---- what travels --------------------------------------------------------------------- */

/* Waits for so many bytes; `in` keeps the room of the longest message so far. */
static ddp_status want(net_handshake *h, enum phase phase, size_t bytes)
{
	unsigned char *in = realloc(h->in, bytes);

	if (in == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the %zu bytes that a handshake receives", bytes);
	h->in = in;
	h->phase = phase;
	h->wanted = bytes;
	h->had = 0;
	return DDP_OK;
}

static ddp_status say(net_handshake *h, const void *message, size_t bytes)
{
	unsigned char *out = realloc(h->out, h->out_bytes + bytes);

	if (out == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the %zu bytes that a handshake sends",
		                h->out_bytes + bytes);
	memcpy(out + h->out_bytes, message, bytes);
	h->out = out;
	h->out_bytes += bytes;
	return DDP_OK;
}

static ddp_status write_card(net_handshake *h, const net_card *c)
{
	const card_head head = {
		.rank = (int32_t)htole32((uint32_t)c->rank), .connection = htole32(c->connection),
		.host_count = htole32(c->host_count), .address_bytes = htole32((uint32_t)c->address_bytes),
	};
	const size_t host_bytes = c->host_count * sizeof(*c->hosts);

	if (c->address_bytes == 0 || c->address_bytes > NET_ADDRESS_MAX)
		return ddp_fail(DDP_ERR_INTERNAL, "UCX's address has %zu bytes", c->address_bytes);
	h->card_bytes = sizeof(head) + host_bytes + c->address_bytes;
	h->card = malloc(h->card_bytes);
	if (h->card == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the %zu bytes that a handshake tells",
		                h->card_bytes);
	memcpy(h->card, &head, sizeof(head));
	memcpy(h->card + sizeof(head), c->hosts, host_bytes);
	memcpy(h->card + sizeof(head) + host_bytes, c->address, c->address_bytes);
	return DDP_OK;
}

/* ---- the machine ---------------------------------------------------------------------- */

/* Messages show users the name that the peer gives its host. */
static void keep_host(net_handshake *h, const char *host)
{
	size_t length = strnlen(host, DDP_AUTH_HOST_BYTES - 1);

	for (size_t i = 0; i < length; i++)
		h->peer_host[i] = host[i] > ' ' && host[i] < 127 ? host[i] : '?';
	h->peer_host[length] = '\0';
}

static ddp_status begin(net_handshake *h, const net_card *ours, enum phase phase, size_t bytes)
{
	ddp_status status = write_card(h, ours);

	if (status == DDP_OK)
		status = want(h, phase, bytes);
	if (status != DDP_OK)
		net_handshake_end(h);
	return status;
}

ddp_status net_handshake_connect(net_handshake *h, const ddp_key *key, const net_card *ours)
{
	*h = (net_handshake){ .key = *key };
	return begin(h, ours, CHALLENGE, sizeof(h->challenge));
}

ddp_status net_handshake_accept(net_handshake *h, const ddp_hello *hello, const net_card *ours)
{
	*h = (net_handshake){ .listens = true };
	keep_host(h, hello->host);
	return begin(h, ours, CARD, sizeof(card_head));
}

void net_handshake_end(net_handshake *h)
{
	free(h->card);
	free(h->in);
	free(h->out);
	free(h->theirs.address);
	explicit_bzero(h, sizeof(*h));
	h->phase = FAILED;
}

static ddp_status take_challenge(net_handshake *h)
{
	ddp_job self = { .rank = 0 };

	memcpy(&h->challenge, h->in, sizeof(h->challenge));
	if (!ddp_challenge_may_be_ours(&h->challenge, sizeof(h->challenge)))
		return ddp_fail(DDP_ERR_PEER, "who listens there is no process of this version of slurm-ddp's "
		                "plugin: let all nodes have the same one");
	if (gethostname(self.hostname, sizeof(self.hostname) - 1) != 0)
		snprintf(self.hostname, sizeof(self.hostname), "unknown");
	ddp_status status = ddp_hello_make(&h->key, &h->challenge, NULL, &self, &h->hello);
	if (status == DDP_OK)
		status = say(h, &h->hello, sizeof(h->hello));
	return status == DDP_OK ? want(h, VERDICT, sizeof(h->verdict)) : status;
}

static ddp_status take_verdict(net_handshake *h)
{
	memcpy(&h->verdict, h->in, sizeof(h->verdict));
	if (ddp_verdict_is_refusal(&h->verdict))
		return ddp_fail(DDP_ERR_AUTH, "it did not accept this process's key: DDP_KEY must be the same "
		                "in all processes of a job");
	ddp_status status = ddp_verdict_check(&h->key, &h->hello, &h->verdict);
	if (status != DDP_OK)
		return ddp_fail_context(status, "who listens there is not of this job");
	keep_host(h, h->verdict.host);
	status = say(h, h->card, h->card_bytes);
	return status == DDP_OK ? want(h, CARD, sizeof(card_head)) : status;
}

static ddp_status take_card(net_handshake *h)
{
	card_head head;

	memcpy(&head, h->in, sizeof(head));
	h->theirs.rank = (int)(int32_t)le32toh((uint32_t)head.rank);
	h->theirs.connection = le32toh(head.connection);
	h->theirs.host_count = le32toh(head.host_count);
	h->theirs.address_bytes = le32toh(head.address_bytes);
	if (h->theirs.host_count > DDP_HOST_PLACES_MAX || h->theirs.address_bytes == 0 ||
	    h->theirs.address_bytes > NET_ADDRESS_MAX)
		return ddp_fail(DDP_ERR_PEER, "it sent a card with %u addresses and %zu bytes of UCX's: let all "
		                "nodes have the same version of slurm-ddp", h->theirs.host_count, h->theirs.address_bytes);
	return want(h, CARD_REST, h->theirs.host_count * sizeof(ddp_place) + h->theirs.address_bytes);
}

static ddp_status take_card_rest(net_handshake *h)
{
	const size_t host_bytes = h->theirs.host_count * sizeof(ddp_place);

	memcpy(h->theirs.hosts, h->in, host_bytes);
	h->theirs.address = malloc(h->theirs.address_bytes);
	if (h->theirs.address == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the peer's address of %zu bytes",
		                h->theirs.address_bytes);
	memcpy(h->theirs.address, h->in + host_bytes, h->theirs.address_bytes);
	h->phase = DONE;
	h->wanted = h->had = 0;
	return DDP_OK;
}

size_t net_handshake_room(net_handshake *h, void **at)
{
	*at = h->in + h->had;
	return h->phase < DONE ? h->wanted - h->had : 0;
}

ddp_status net_handshake_filled(net_handshake *h, size_t bytes)
{
	static ddp_status (*const take[])(net_handshake *) = {
		[CHALLENGE] = take_challenge, [VERDICT] = take_verdict,
		[CARD] = take_card, [CARD_REST] = take_card_rest,
	};

	h->had += bytes;
	if (h->phase >= DONE || h->had < h->wanted)
		return DDP_OK;
	ddp_status status = take[h->phase](h);
	if (status != DDP_OK)
		h->phase = FAILED;
	return status;
}

size_t net_handshake_output(const net_handshake *h, const void **from)
{
	const size_t bytes = h->out_bytes - h->out_sent;

	*from = bytes > 0 ? h->out + h->out_sent : NULL;
	return bytes;
}

void net_handshake_sent(net_handshake *h, size_t bytes)
{
	h->out_sent += bytes;
}

bool net_handshake_begun(const net_handshake *h)
{
	return h->phase != CHALLENGE || h->had > 0;
}

bool net_handshake_proved(const net_handshake *h)
{
	return h->phase == CARD || h->phase == CARD_REST || h->phase == DONE;
}

bool net_handshake_heard(const net_handshake *h)
{
	return h->phase == DONE;
}

ddp_status net_handshake_answer(net_handshake *h)
{
	if (!h->listens || h->answered || h->phase != DONE)
		return DDP_OK;
	h->answered = true;
	return say(h, h->card, h->card_bytes);
}

bool net_handshake_done(const net_handshake *h)
{
	return h->phase == DONE && h->answered == h->listens && h->out_sent == h->out_bytes;
}
