/*
 * auth: each end of a connection proves that it holds the step's key, by
 * HMAC-SHA256 over the other's nonce, before either parses what the other
 * sent. Messages are of fixed size:
 *
 *   rank 0 -> rank r   challenge: magic, nonce
 *   rank r -> rank 0   hello:     nonce, rank, world size, host name, proof
 *   rank 0 -> rank r   verdict:   host name, proof; all zero: not accepted
 *
 * This keeps other processes out; it does not encrypt, and it does not protect what
 * follows against someone who can change packets on their way.
 */
#ifndef DDP_WIREUP_AUTH_H
#define DDP_WIREUP_AUTH_H

#include "job/job.h"

enum {
	DDP_NONCE_BYTES = 32,
	DDP_PROOF_BYTES = 32,
	DDP_AUTH_HOST_BYTES = 64 /* cut off if longer; terminated */
};

typedef struct ddp_challenge {
	char magic[8];
	unsigned char nonce[DDP_NONCE_BYTES];
} ddp_challenge;

typedef struct ddp_hello {
	unsigned char nonce[DDP_NONCE_BYTES];
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

ddp_status ddp_hello_make(const ddp_key *key, const ddp_challenge *challenge,
                          const ddp_job *job, ddp_hello *hello);
/* DDP_ERR_AUTH unless the proof holds. */
ddp_status ddp_hello_check(const ddp_key *key, const ddp_challenge *challenge,
                           const ddp_hello *hello);

ddp_status ddp_verdict_make(const ddp_key *key, const ddp_hello *hello,
                            const char *host, ddp_verdict *verdict);
bool ddp_verdict_is_refusal(const ddp_verdict *verdict);
ddp_status ddp_verdict_check(const ddp_key *key, const ddp_hello *hello,
                             const ddp_verdict *verdict);

#endif
