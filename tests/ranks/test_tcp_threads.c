/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan tsan */
/* Wire-up by TCP with many ranks: each is a thread of this process, so that
   whatever ranks were to share would be seen by a thread sanitizer. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/support/test.h"
#include "wireup/agreement.h"
#include "wireup/wireup.h"

enum { RANKS = 300, ROUNDS = 3, PER_NODE = 7 };
static const uint64_t patience_ns = 60000000000u;

struct rank {
	pthread_t thread;
	ddp_job job;
	ddp_status status;
	char message[1024];
};

static struct rank *ranks;
static ddp_key key = { .present = true };

static ddp_status exchange(const struct rank *rank, ddp_wireup *wireup, uint64_t deadline_ns)
{
	void **blobs = calloc(RANKS, sizeof(*blobs));
	size_t *sizes = calloc(RANKS, sizeof(*sizes));
	ddp_status status = DDP_OK;

	for (int round = 0; round < ROUNDS && status == DDP_OK; round++) {
		int64_t blob[2] = { rank->job.rank, round };
		status = wireup->ops->exchange(wireup, blob, sizeof(blob), deadline_ns, blobs, sizes);
		for (int r = 0; r < RANKS && status == DDP_OK; r++) {
			int64_t wanted[2] = { r, round };
			if (sizes[r] != sizeof(wanted) || memcmp(blobs[r], wanted, sizeof(wanted)) != 0)
				status = ddp_fail(DDP_ERR_INTERNAL, "test: blob of rank %d is wrong", r);
		}
		ddp_blobs_free(blobs, RANKS);
	}
	free(blobs);
	free(sizes);
	return status;
}

static void *be_rank(void *argument)
{
	struct rank *rank = argument;
	uint64_t deadline_ns = ddp_now_ns() + patience_ns;
	ddp_wireup *wireup;

	rank->status = ddp_wireup_open(&rank->job, &key, "tcp", deadline_ns, &wireup);
	if (rank->status == DDP_OK) {
		rank->status = ddp_agree(wireup, &rank->job, deadline_ns);
		if (rank->status == DDP_OK)
			rank->status = exchange(rank, wireup, deadline_ns);
		wireup->ops->close(wireup);
	}
	snprintf(rank->message, sizeof(rank->message), "%s", ddp_last_error());
	return NULL;
}

TEST(hundreds_of_ranks_exchange_and_agree)
{
	pthread_attr_t small;

	ranks = calloc(RANKS, sizeof(*ranks));
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 512 * 1024);
	for (int r = RANKS - 1; r >= 0; r--) {
		ddp_job *job = &ranks[r].job;
		*job = (ddp_job){ .rank = r, .world_size = RANKS, .local_rank = r % PER_NODE,
		                  .local_world_size = r / PER_NODE == RANKS / PER_NODE ? RANKS % PER_NODE : PER_NODE,
		                  .node_rank = r / PER_NODE, .nnodes = DDP_UNKNOWN, .master_port = 29499 };
		snprintf(job->hostname, sizeof(job->hostname), "node%d", r / PER_NODE);
		snprintf(job->master_addr, sizeof(job->master_addr), "127.%d.%d.%d",
		         getpid() >> 15 & 127, getpid() >> 7 & 255, (getpid() & 127) + 1);
		assert_int_equal(pthread_create(&ranks[r].thread, &small, be_rank, &ranks[r]), 0);
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(ranks[r].thread, NULL);
	for (int r = 0; r < RANKS; r++) {
		if (ranks[r].status != DDP_OK)
			fail_msg("rank %d: %s", r, ranks[r].message);
		assert_int_equal(ranks[r].job.nnodes, (RANKS + PER_NODE - 1) / PER_NODE);
	}
	pthread_attr_destroy(&small);
	free(ranks);
}

TEST(descriptors_are_all_given_back)
{
	/* stdin, stdout, stderr, and nothing far beyond */
	int next = dup(0);
	close(next);
	assert_true(next >= 0 && next <= 20);
}
