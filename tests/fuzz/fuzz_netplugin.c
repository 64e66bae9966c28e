/*
 * The handshake of NCCL's network plugin: any bytes, in pieces of any size, from somebody
 * who does not hold the key, and from somebody who does.
 *
 * fuzz-sources: libruntime/netplugin/handshake.c libruntime/wireup/auth.c libruntime/base/error.c libruntime/base/c_locale.c
 * fuzz-libs: -lcrypto
 */
#include <stdlib.h>
#include <string.h>

#include "netplugin/handshake.h"

enum { LISTENS = 1, PROVED = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What one side has to say goes to the other. */
static void carry(net_handshake *from, net_handshake *to)
{
	const void *said;
	void *at;
	size_t bytes = net_handshake_output(from, &said), room;

	for (size_t sent = 0; sent < bytes; sent += room) {
		room = net_handshake_room(to, &at);
		if (room == 0)
			return;
		room = room < bytes - sent ? room : bytes - sent;
		memcpy(at, (const char *)said + sent, room);
		net_handshake_sent(from, room);
		if (net_handshake_filled(to, room) != DDP_OK)
			abort();
	}
}

/* The input is what the other says instead of its card. */
static void prove(net_handshake *tested, net_handshake *other)
{
	for (int i = 0; i < 3; i++) {
		carry(other, tested);
		if (net_handshake_proved(tested))
			return;
		carry(tested, other);
	}
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
	net_handshake tested, other;

	if (size < 2)
		return 0;
	const bool listens = (data[0] & LISTENS) != 0, proved = (data[0] & PROVED) != 0;
	if (net_handshake_begin(&tested, listens, &key, &card) != DDP_OK ||
	    net_handshake_begin(&other, !listens, &key, &card) != DDP_OK)
		abort();
	if (proved)
		prove(&tested, &other);
	feed(&tested, data + 2, size - 2, 1 + (size_t)data[1]);
	if (!proved && (net_handshake_proved(&tested) || net_handshake_heard(&tested)))
		abort();
	if (net_handshake_heard(&tested)) {
		check_card(&tested);
		if (net_handshake_answer(&tested) != DDP_OK)
			abort();
	}
	net_handshake_end(&tested);
	net_handshake_end(&other);
	return 0;
}
