#include "wireup/auth.h"

#include <endian.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const char magic[] = "ddpwire1";

_Static_assert(sizeof(ddp_challenge) == 8 + DDP_NONCE_BYTES, "no padding on the wire");
_Static_assert(sizeof(ddp_hello) == DDP_NONCE_BYTES + 8 + DDP_AUTH_HOST_BYTES + DDP_PROOF_BYTES,
               "no padding on the wire");
_Static_assert(sizeof(ddp_verdict) == DDP_AUTH_HOST_BYTES + DDP_PROOF_BYTES,
               "no padding on the wire");

static ddp_status random_bytes(unsigned char *bytes, int count)
{
	if (RAND_bytes(bytes, count) != 1)
		return ddp_fail(DDP_ERR_IO, "OpenSSL gives no random bytes");
	return DDP_OK;
}

/* The label keeps a proof of one direction from serving in the other. */
static ddp_status prove(const ddp_key *key, const char *label, const unsigned char *nonce,
                        const void *message, size_t bytes, unsigned char *proof)
{
	unsigned char text[8 + DDP_NONCE_BYTES + sizeof(ddp_hello)] = { 0 };
	unsigned int length = 0;

	memcpy(text, label, strlen(label));
	memcpy(text + 8, nonce, DDP_NONCE_BYTES);
	memcpy(text + 8 + DDP_NONCE_BYTES, message, bytes);
	if (HMAC(EVP_sha256(), key->bytes, DDP_KEY_BYTES, text, 8 + DDP_NONCE_BYTES + bytes,
	         proof, &length) == NULL || length != DDP_PROOF_BYTES)
		return ddp_fail(DDP_ERR_INTERNAL, "OpenSSL cannot compute HMAC-SHA256");
	return DDP_OK;
}

static ddp_status check(const ddp_key *key, const char *label, const unsigned char *nonce,
                        const void *message, size_t bytes, const unsigned char *proof)
{
	unsigned char expected[DDP_PROOF_BYTES];
	ddp_status status = prove(key, label, nonce, message, bytes, expected);

	if (status == DDP_OK && CRYPTO_memcmp(expected, proof, DDP_PROOF_BYTES) != 0)
		status = ddp_fail(DDP_ERR_AUTH, "the proof of the step's key is wrong");
	return status;
}

ddp_status ddp_challenge_make(ddp_challenge *challenge)
{
	memcpy(challenge->magic, magic, sizeof(challenge->magic));
	return random_bytes(challenge->nonce, DDP_NONCE_BYTES);
}

bool ddp_challenge_may_be_ours(const ddp_challenge *challenge, size_t bytes)
{
	const size_t known = bytes < sizeof(challenge->magic) ? bytes : sizeof(challenge->magic);

	return memcmp(challenge->magic, magic, known) == 0;
}

static void set_host(char *to, const char *host)
{
	snprintf(to, DDP_AUTH_HOST_BYTES, "%.*s", DDP_AUTH_HOST_BYTES - 1, host);
}

ddp_status ddp_hello_make(const ddp_key *key, const ddp_challenge *challenge,
                          const ddp_job *job, ddp_hello *hello)
{
	memset(hello, 0, sizeof(*hello));
	hello->rank = htole32((uint32_t)job->rank);
	hello->world_size = htole32((uint32_t)job->world_size);
	set_host(hello->host, job->hostname);
	ddp_status status = random_bytes(hello->nonce, DDP_NONCE_BYTES);
	if (status != DDP_OK)
		return status;
	return prove(key, "hello", challenge->nonce, hello, offsetof(ddp_hello, proof), hello->proof);
}

ddp_status ddp_hello_check(const ddp_key *key, const ddp_challenge *challenge,
                           const ddp_hello *hello)
{
	return check(key, "hello", challenge->nonce, hello, offsetof(ddp_hello, proof), hello->proof);
}

ddp_status ddp_verdict_make(const ddp_key *key, const ddp_hello *hello,
                            const char *host, ddp_verdict *verdict)
{
	memset(verdict, 0, sizeof(*verdict));
	set_host(verdict->host, host);
	return prove(key, "verdict", hello->nonce, verdict, offsetof(ddp_verdict, proof),
	             verdict->proof);
}

bool ddp_verdict_is_refusal(const ddp_verdict *verdict)
{
	static const ddp_verdict refusal;

	return memcmp(verdict, &refusal, sizeof(refusal)) == 0;
}

ddp_status ddp_verdict_check(const ddp_key *key, const ddp_hello *hello,
                             const ddp_verdict *verdict)
{
	return check(key, "verdict", hello->nonce, verdict, offsetof(ddp_verdict, proof),
	             verdict->proof);
}
