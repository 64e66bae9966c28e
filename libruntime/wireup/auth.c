/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/auth.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"

enum { END_TEXT = INET6_ADDRSTRLEN + 8 };

static const char magic[] = "ddpwire2";

_Static_assert(sizeof(ddp_ends) == 36, "no padding on the wire");
_Static_assert(sizeof(ddp_challenge) == 8 + DDP_NONCE_BYTES, "no padding on the wire");
_Static_assert(sizeof(ddp_hello) == DDP_NONCE_BYTES + sizeof(ddp_ends) + 8 + DDP_AUTH_HOST_BYTES + DDP_PROOF_BYTES,
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

/* ---- the ends ---------------------------------------------------------------------------- */

static void take_end(const struct sockaddr_storage *address, struct ddp_end *end)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;

	if (address->ss_family == AF_INET) {
		memcpy(end->address, mapped, sizeof(mapped));
		memcpy(end->address + sizeof(mapped), &in->sin_addr, sizeof(in->sin_addr));
		memcpy(end->port, &in->sin_port, sizeof(end->port));
	} else if (address->ss_family == AF_INET6) {
		memcpy(end->address, &in6->sin6_addr, sizeof(end->address));
		memcpy(end->port, &in6->sin6_port, sizeof(end->port));
	}
}

ddp_ends ddp_ends_of(int fd, bool listens)
{
	struct sockaddr_storage here = { 0 }, there = { 0 };
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
	ddp_ends ends = { 0 };

	if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0 ||
	    getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0)
		return ends;
	take_end(listens ? &there : &here, &ends.from);
	take_end(listens ? &here : &there, &ends.to);
	return ends;
}

bool ddp_ends_are_same(const ddp_ends *a, const ddp_ends *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static void show(const struct ddp_end *end, char text[END_TEXT])
{
	struct in6_addr whole;
	char address[INET6_ADDRSTRLEN] = "?";

	memcpy(&whole, end->address, sizeof(whole));
	const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&whole);

	inet_ntop(is_ipv4 ? AF_INET : AF_INET6, is_ipv4 ? end->address + 12 : end->address, address, sizeof(address));
	snprintf(text, END_TEXT, is_ipv4 ? "%s:%d" : "[%s]:%d", address, end->port[0] << 8 | end->port[1]);
}

const char *ddp_ends_show(const ddp_ends *ends, char text[DDP_ENDS_TEXT])
{
	char from[END_TEXT], to[END_TEXT];

	show(&ends->from, from);
	show(&ends->to, to);
	snprintf(text, DDP_ENDS_TEXT, "%s to %s", from, to);
	return text;
}

/* ---- the messages ------------------------------------------------------------------------ */

ddp_status ddp_hello_make(const ddp_key *key, const ddp_challenge *challenge, const ddp_ends *ends,
                          const ddp_job *job, ddp_hello *hello)
{
	memset(hello, 0, sizeof(*hello));
	if (ends != NULL)
		hello->ends = *ends;
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
	return prove(key, "verdict", hello->proof, verdict, offsetof(ddp_verdict, proof),
	             verdict->proof);
}

bool ddp_verdict_is_refusal(const ddp_verdict *verdict)
{
	static const ddp_verdict refusal;

	return memcmp(verdict, &refusal, sizeof(refusal)) == 0;
}

void ddp_verdict_refuse_ends(ddp_verdict *verdict)
{
	memset(verdict, 0xff, sizeof(*verdict));
}

bool ddp_verdict_is_about_ends(const ddp_verdict *verdict)
{
	ddp_verdict refusal;

	ddp_verdict_refuse_ends(&refusal);
	return memcmp(verdict, &refusal, sizeof(refusal)) == 0;
}

ddp_status ddp_verdict_check(const ddp_key *key, const ddp_hello *hello,
                             const ddp_verdict *verdict)
{
	return check(key, "verdict", hello->proof, verdict, offsetof(ddp_verdict, proof),
	             verdict->proof);
}
