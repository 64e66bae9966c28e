/* SPDX-License-Identifier: Apache-2.0 */
/* wireup_probe: one rank that discovers itself, wires up, agrees and exchanges
   blobs, but opens no communicator; for tests on clusters. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "job/pmix_client.h"
#include "wireup/agreement.h"

struct plan {
	const char *wireup;
	int timeout_ms, rounds, absent, dies;
	size_t bytes;
};

static ddp_status exchange(ddp_wireup *wireup, const ddp_job *job, const struct plan *plan,
                           int round, uint64_t deadline_ns)
{
	size_t *sizes = calloc((size_t)job->world_size, sizeof(*sizes));
	void **blobs = calloc((size_t)job->world_size, sizeof(*blobs));
	char *blob = malloc(plan->bytes + 1);
	ddp_status status;

	memset(blob, 'a' + (job->rank + round) % 26, plan->bytes);
	status = wireup->ops->exchange(wireup, blob, plan->bytes, deadline_ns, blobs, sizes);
	for (int r = 0; r < job->world_size && status == DDP_OK; r++) {
		memset(blob, 'a' + (r + round) % 26, plan->bytes);
		if (sizes[r] != plan->bytes || memcmp(blobs[r], blob, plan->bytes) != 0)
			status = ddp_fail(DDP_ERR_INTERNAL, "the blob of rank %d is not what it gave", r);
	}
	ddp_blobs_free(blobs, job->world_size);
	free(blob);
	free(blobs);
	free(sizes);
	return status;
}

static ddp_status take_part(ddp_job *job, const struct plan *plan)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)plan->timeout_ms * 1000000u;
	char text[2048];
	ddp_wireup *wireup;
	ddp_key key;

	ddp_status status = ddp_job_discover(job, &key);
	if (status != DDP_OK)
		return status;
	if (job->rank == plan->absent) {
		sleep((unsigned)plan->timeout_ms / 1000 + 3);
		return ddp_fail(DDP_ERR_STATE, "stayed away, as asked");
	}
	status = ddp_wireup_open(job, &key, plan->wireup, deadline_ns, &wireup);
	if (status != DDP_OK)
		return status;
	status = ddp_agree(wireup, job, deadline_ns);
	for (int i = 0; i < plan->rounds && status == DDP_OK; i++) {
		if (job->rank == plan->dies)
			_exit(9);
		status = exchange(wireup, job, plan, i, deadline_ns);
	}
	if (status == DDP_OK)
		status = ddp_job_json(job, text, sizeof(text));
	if (status == DDP_OK)
		printf("%s by %s\n", text, wireup->ops->name);
	wireup->ops->close(wireup);
	return status;
}

int main(int argc, char **argv)
{
	struct plan plan = { .timeout_ms = 20000, .rounds = 3, .absent = -1, .dies = -1, .bytes = 500 };
	ddp_job job = { 0 };
	int option;

	while ((option = getopt(argc, argv, "w:t:n:b:a:d:")) != -1) {
		switch (option) {
		case 'w': plan.wireup = optarg; break;
		case 't': plan.timeout_ms = atoi(optarg) * 1000; break;
		case 'n': plan.rounds = atoi(optarg); break;
		case 'b': plan.bytes = (size_t)atol(optarg); break;
		case 'a': plan.absent = atoi(optarg); break;
		case 'd': plan.dies = atoi(optarg); break;
		default:
			fprintf(stderr, "usage: wireup_probe [-w WIREUP] [-t SECONDS] [-n ROUNDS] [-b BYTES] "
			        "[-a RANK_THAT_STAYS_AWAY] [-d RANK_THAT_DIES]\n");
			return 2;
		}
	}
	uint64_t start_ns = ddp_now_ns();
	ddp_status status = take_part(&job, &plan);
	if (status == DDP_OK)
		return 0;
	printf("%s after %.1f s: %s\n", ddp_status_name(status), ddp_seconds_since(start_ns),
	       ddp_last_error());
	ddp_pmix_detach();
	return 3;
}
