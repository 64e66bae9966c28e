/* SPDX-License-Identifier: Apache-2.0 */
/* auth: each end of a connection proves that it holds the step's key, by
   HMAC-SHA256 over the other's nonce, before either parses what the other
   sent. Messages are of fixed size:

     rank 0 -> rank r   challenge: magic, nonce
     rank r -> rank 0   hello:     nonce, ends, rank, world size, host name, proof
     rank 0 -> rank r   verdict:   host name, proof; all zero, or all ones: not accepted

   A proof holds for one connection: rank 0 accepts a hello only if the connection has the addresses and
   ports that the hello names, and the verdict's proof covers the hello's proof. So a process that passes
   the messages of two ranks on, without the key, is refused.
   The handshake keeps other processes out. It does not encrypt, and it does not protect later messages
   against an attacker who can change packets. */
#pragma once

#include "job/job.h"

enum {
	DDP_NONCE_BYTES = 32,
	DDP_PROOF_BYTES = 32,
	DDP_AUTH_HOST_BYTES = 64, /* cut off if longer; terminated */
	DDP_ENDS_TEXT = 128
};

typedef struct ddp_challenge {
	char magic[8];
	unsigned char nonce[DDP_NONCE_BYTES];
} ddp_challenge;

/* Both ends of a connection by TCP, in network order; zeros for another one. An IPv4 address is
   ::ffff:a.b.c.d, as a socket of IPv6 shows it. */
typedef struct ddp_ends {
	struct ddp_end {
		unsigned char address[16], port[2];
	} from, to; /* who connects, who listens */
} ddp_ends;

typedef struct ddp_hello {
	unsigned char nonce[DDP_NONCE_BYTES];
	ddp_ends ends;
	uint32_t rank, world_size; /* little-endian */
	char host[DDP_AUTH_HOST_BYTES];
	unsigned char proof[DDP_PROOF_BYTES];
} ddp_hello;

typedef struct ddp_verdict {
	char host[DDP_AUTH_HOST_BYTES];
	unsigned char proof[DDP_PROOF_BYTES];
} ddp_verdict;

ddp_status ddp_challenge_make(ddp_challenge *challenge);
/* The first `bytes` bytes of the challenge have come. Returns false as soon as another program must
   have sent them. */
bool ddp_challenge_may_be_ours(const ddp_challenge *challenge, size_t bytes);

/* `listens`: fd is the listener's end. */
ddp_ends ddp_ends_of(int fd, bool listens);
/* "10.0.0.2:4242 to 10.0.0.1:29500" */
const char *ddp_ends_show(const ddp_ends *ends, char text[DDP_ENDS_TEXT]);
bool ddp_ends_are_same(const ddp_ends *a, const ddp_ends *b);

/* `ends` NULL: the proof is to hold for any connection. */
ddp_status ddp_hello_make(const ddp_key *key, const ddp_challenge *challenge, const ddp_ends *ends,
                          const ddp_job *job, ddp_hello *hello);
/* DDP_ERR_AUTH unless the proof holds. */
ddp_status ddp_hello_check(const ddp_key *key, const ddp_challenge *challenge,
                           const ddp_hello *hello);

ddp_status ddp_verdict_make(const ddp_key *key, const ddp_hello *hello,
                            const char *host, ddp_verdict *verdict);
bool ddp_verdict_is_refusal(const ddp_verdict *verdict);
/* The refusal of a hello that came by a connection with other ends than it names. */
void ddp_verdict_refuse_ends(ddp_verdict *verdict);
bool ddp_verdict_is_about_ends(const ddp_verdict *verdict);
ddp_status ddp_verdict_check(const ddp_key *key, const ddp_hello *hello,
                             const ddp_verdict *verdict);
