/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/secret.h"

#include <endian.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/error.h"

static ddp_status authenticate(const unsigned char *key, const void *text, size_t bytes,
                               unsigned char digest[DDP_SECRET_BYTES])
{
	unsigned int length = 0;

	if (HMAC(EVP_sha256(), key, DDP_KEY_BYTES, text, bytes, digest, &length) == NULL ||
	    length != DDP_SECRET_BYTES)
		return ddp_fail(DDP_ERR_INTERNAL, "OpenSSL cannot compute HMAC-SHA256");
	return DDP_OK;
}

ddp_status ddp_share_make(ddp_share *share)
{
	if (RAND_bytes(share->bytes, sizeof(share->bytes)) != 1)
		return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
	return DDP_OK;
}

ddp_status ddp_secret_make(const ddp_key *key, const ddp_share *shares, int count,
                           ddp_secret *secret)
{
	static const unsigned char no_key[DDP_KEY_BYTES];

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
