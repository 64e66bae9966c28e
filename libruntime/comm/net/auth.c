/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/auth.h"

#include <endian.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/error.h"

static const unsigned char no_key[DDP_KEY_BYTES]; /* of jobs in which not all ranks have the key */
static const char magic[8] = "ddpconn1";

static ddp_status authenticate(const unsigned char *key, const void *text, size_t bytes,
                               unsigned char digest[DDP_SECRET_BYTES])
{
	unsigned int length = 0;

	_Static_assert(sizeof(no_key) == DDP_SECRET_BYTES, "both are keys of authenticate()");
	if (HMAC(EVP_sha256(), key, DDP_SECRET_BYTES, text, bytes, digest, &length) == NULL || length != DDP_SECRET_BYTES)
		return ddp_fail(DDP_ERR_INTERNAL, "OpenSSL cannot compute HMAC-SHA256");
	return DDP_OK;
}

ddp_status ddp_share_make(ddp_share *share)
{
	if (RAND_bytes(share->bytes, sizeof(share->bytes)) != 1)
		return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
	return DDP_OK;
}

ddp_status ddp_secret_make(const ddp_key *key, const ddp_share *shares, int count, ddp_secret *secret)
{
	return authenticate(key != NULL ? key->bytes : no_key, shares, (size_t)count * sizeof(*shares),
	                    secret->bytes);
}

ddp_status ddp_token_make(const ddp_secret *secret, int from, int to, ddp_token *token)
{
	const uint32_t pair[2] = { htole32((uint32_t)from), htole32((uint32_t)to) };
	unsigned char digest[DDP_SECRET_BYTES];
	ddp_status status = authenticate(secret->bytes, pair, sizeof(pair), digest);

	if (status == DDP_OK)
		memcpy(token->bytes, digest, sizeof(token->bytes));
	return status;
}

bool ddp_token_same(const ddp_token *a, const ddp_token *b)
{
	return CRYPTO_memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

/* ---- proofs -------------------------------------------------------------------------- */

ddp_status ddp_proof_key_make(const ddp_key *key, const ddp_share *share, ddp_proof_key *proof_key)
{
	struct {
		char purpose[sizeof(magic)];
		ddp_share share;
	} text = { .share = *share };

	memcpy(text.purpose, magic, sizeof(magic));
	return authenticate(key != NULL ? key->bytes : no_key, &text, sizeof(text), proof_key->bytes);
}

static ddp_status digest(const ddp_proof_key *key, const ddp_place *from, const ddp_place *to, const ddp_proof *proof,
                         unsigned char digest[DDP_SECRET_BYTES])
{
	struct {
		unsigned char nonce[DDP_PROOF_NONCE_BYTES];
		ddp_place from, to;
	} text = { .from = *from, .to = *to };

	_Static_assert(sizeof(text) == DDP_PROOF_NONCE_BYTES + 2 * 20, "no padding");
	memcpy(text.nonce, proof->nonce, sizeof(text.nonce));
	return authenticate(key->bytes, &text, sizeof(text), digest);
}

ddp_status ddp_proof_make(const ddp_proof_key *key, const ddp_place *near, const ddp_place *far, ddp_proof *proof)
{
	memcpy(proof->magic, magic, sizeof(magic));
	if (RAND_bytes(proof->nonce, sizeof(proof->nonce)) != 1)
		return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
	return digest(key, near, far, proof, proof->digest);
}

bool ddp_proof_may_begin(const void *begin, size_t bytes)
{
	return memcmp(begin, magic, bytes < sizeof(magic) ? bytes : sizeof(magic)) == 0;
}

bool ddp_proof_holds(const ddp_proof_key *key, const ddp_place *from, const ddp_place *to, const ddp_proof *proof)
{
	unsigned char wanted[DDP_SECRET_BYTES];

	return ddp_proof_may_begin(proof, sizeof(*proof)) && digest(key, from, to, proof, wanted) == DDP_OK &&
	       CRYPTO_memcmp(proof->digest, wanted, sizeof(wanted)) == 0;
}
