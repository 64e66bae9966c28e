/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/handshake: how two processes come to trust each other, as a machine that
   is fed bytes and gives bytes. wireup/auth's challenge, hello and verdict come first,
   for a listener by wireup/acceptor. Only then each side reads the other's card: who it is,
   from where its UCX connects, and UCX's address of it.

     listener -> connector   challenge
     connector -> listener   hello
     listener -> connector   verdict
     connector -> listener   card
     listener -> connector   card, once the kernel lets the connector's host in

   The proofs are by a key made of the step's and of the listener's nonce, so that
   they serve for no other listener, and not in the wire-up. */
#pragma once

#include "comm/net/listener.h"
#include "wireup/auth.h"

enum { NET_ADDRESS_MAX = 64 << 10 };

/* One side tells the other this about itself. */
typedef struct net_card {
	int rank;                /* -1: it has none */
	uint32_t connection;     /* by which messages to it are known */
	uint32_t host_count;
	ddp_place hosts[DDP_HOST_PLACES_MAX];
	size_t address_bytes;
	void *address;           /* UCX's */
} net_card;

typedef struct net_handshake {
	bool listens;
	int phase;
	ddp_key key;
	ddp_challenge challenge;
	ddp_hello hello;
	ddp_verdict verdict;
	char peer_host[DDP_AUTH_HOST_BYTES];
	net_card theirs;
	unsigned char *card;     /* ours, as it travels */
	size_t card_bytes;
	unsigned char *in;       /* of the present phase */
	size_t wanted, had;
	unsigned char *out;
	size_t out_bytes, out_sent;
	bool answered;
} net_handshake;

/* The key of the listener that has this nonce. */
ddp_status net_key_of_listener(const ddp_key *step, const unsigned char nonce[DDP_NONCE_BYTES], ddp_key *key);

/* The connector's. Copies what it needs. */
ddp_status net_handshake_connect(net_handshake *h, const ddp_key *key, const net_card *ours);
/* A listener's with a peer that has proven the key by this hello. */
ddp_status net_handshake_accept(net_handshake *h, const ddp_hello *hello, const net_card *ours);
void net_handshake_end(net_handshake *h);

/* Where the next bytes of the peer go, and at most how many; 0: none are wanted. */
size_t net_handshake_room(net_handshake *h, void **at);
/* So many were written there. DDP_ERR_AUTH: the peer does not hold the key, or says
   so of us. */
ddp_status net_handshake_filled(net_handshake *h, size_t bytes);

/* The bytes to send next; `net_handshake_sent()` says how many of them were sent. */
size_t net_handshake_output(const net_handshake *h, const void **from);
void net_handshake_sent(net_handshake *h, size_t bytes);

/* Has anything come from the peer? */
bool net_handshake_begun(const net_handshake *h);
/* Has the peer proved that it holds the key? */
bool net_handshake_proved(const net_handshake *h);
/* Is `theirs` the peer's card? */
bool net_handshake_heard(const net_handshake *h);
/* The listener's last word, when it has heard. */
ddp_status net_handshake_answer(net_handshake *h);
/* Is all heard, and all sent? */
bool net_handshake_done(const net_handshake *h);
