/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/torchrun.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "job/environment.h"

ddp_status ddp_torchrun_key(const ddp_job *job, const ddp_key *key, ddp_key *used)
{
	const char *run = ddp_environment("TORCHELASTIC_RUN_ID");
	unsigned int length = 0;
	char text[512];

	*used = *key;
	if (run == NULL)
		return DDP_OK;
	snprintf(text, sizeof(text), "torchrun %d %s", job->master_port, run);
	if (HMAC(EVP_sha256(), key->bytes, DDP_KEY_BYTES, (const unsigned char *)text, strlen(text), used->bytes,
	         &length) == NULL || length != DDP_KEY_BYTES)
		return ddp_fail(DDP_ERR_INTERNAL, "OpenSSL cannot compute HMAC-SHA256");
	return DDP_OK;
}

pid_t ddp_torchrun_agent(void)
{
	return ddp_environment("TORCHELASTIC_RUN_ID") != NULL ? getppid() : 0;
}

ddp_status ddp_torchrun_check(const ddp_job *job, pid_t agent)
{
	if (agent == 0 || getppid() == agent)
		return DDP_OK;
	return ddp_fail(DDP_ERR_STATE, "rank %d on %s: the process that started this rank (pid %d), torchrun's agent, has "
	                "ended: this rank does not join the ranks of a later start", job->rank, job->hostname,
	                (int)agent);
}
