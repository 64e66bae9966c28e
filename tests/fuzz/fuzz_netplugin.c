/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of NCCL's network plugin: any bytes, in pieces of any size, from somebody
 * who does not hold the key, and from somebody who does. A listener gets bytes only of those who do.
 *
 * fuzz-sources: libruntime/nccl_plugins/net/handshake.c libruntime/wireup/auth.c libruntime/base/error.c libruntime/base/c_locale.c
 * fuzz-libs: -lcrypto
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_plugins/net/handshake.h"

enum { LISTENS = 1, PROVED = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A listener's acceptor says so much before it gives its peer out; the input is what comes then. */
static void prove(net_handshake *connector, const ddp_key *key)
{
	ddp_challenge challenge;
	ddp_hello hello;
	ddp_verdict verdict;
	const void *said;
	void *at;

	if (ddp_challenge_make(&challenge) != DDP_OK || net_handshake_room(connector, &at) != sizeof(challenge))
		abort();
	memcpy(at, &challenge, sizeof(challenge));
	if (net_handshake_filled(connector, sizeof(challenge)) != DDP_OK ||
	    net_handshake_output(connector, &said) != sizeof(hello))
		abort();
	memcpy(&hello, said, sizeof(hello));
	net_handshake_sent(connector, sizeof(hello));
	if (ddp_hello_check(key, &challenge, &hello) != DDP_OK ||
	    ddp_verdict_make(key, &hello, "other", &verdict) != DDP_OK ||
	    net_handshake_room(connector, &at) != sizeof(verdict))
		abort();
	memcpy(at, &verdict, sizeof(verdict));
	if (net_handshake_filled(connector, sizeof(verdict)) != DDP_OK || !net_handshake_proved(connector))
		abort();
}

static void feed(net_handshake *h, const uint8_t *data, size_t size, size_t piece)
{
	void *at;
	size_t room;

	while (size > 0 && (room = net_handshake_room(h, &at)) > 0) {
		room = room < piece ? room : piece;
		room = room < size ? room : size;
		memcpy(at, data, room);
		data += room;
		size -= room;
		if (net_handshake_filled(h, room) != DDP_OK)
			return;
	}
}

static void check_card(const net_handshake *h)
{
	const net_card *c = &h->theirs;
	size_t host = strlen(h->peer_host);

	if (c->host_count > DDP_HOST_PLACES_MAX || c->address_bytes == 0 || c->address_bytes > NET_ADDRESS_MAX ||
	    c->address == NULL || host >= DDP_AUTH_HOST_BYTES)
		abort();
	/* All of it is there to be read. */
	unsigned int sum = 0;
	for (size_t i = 0; i < c->address_bytes; i++)
		sum += ((const unsigned char *)c->address)[i];
	if (sum > 255 * c->address_bytes)
		abort();
}

/* The first byte says which side it is and what it knows, the second the largest piece. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const ddp_key key = { .present = true, .bytes = { 1, 2, 3 } };
	net_card card = { .rank = 1, .connection = 7, .address = "address", .address_bytes = 7 };
	ddp_hello hello = { .rank = 0 };
	net_handshake tested;

	if (size < 2)
		return 0;
	const bool listens = (data[0] & LISTENS) != 0, proved = (data[0] & PROVED) != 0;
	memset(hello.host, data[1], sizeof(hello.host));
	if ((listens ? net_handshake_accept(&tested, &hello, &card) : net_handshake_connect(&tested, &key, &card)) != DDP_OK)
		abort();
	if (proved && !listens)
		prove(&tested, &key);
	feed(&tested, data + 2, size - 2, 1 + (size_t)data[1]);
	if (!proved && !listens && (net_handshake_proved(&tested) || net_handshake_heard(&tested)))
		abort();
	if (net_handshake_heard(&tested)) {
		check_card(&tested);
		if (net_handshake_answer(&tested) != DDP_OK)
			abort();
	}
	net_handshake_end(&tested);
	return 0;
}
