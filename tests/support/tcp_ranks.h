/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_ranks: a test's ranks with a wire-up by TCP. Each
   test uses a port of its own at an address of the loopback net. */
#pragma once

#include <stdatomic.h>

#include "tests/support/ranks.h"
#include "wireup/auth.h"
#include "wireup/wireup.h"

enum { WORLD_MAX = TEST_RANKS_MAX, LONG_MS = 60000, SHORT_MS = 1500 };

struct outcome {
	ddp_status status;
	int about;             /* the rank that the error is about; -1: none */
	double seconds;
	uint64_t sent_bytes;   /* that the other ends have acknowledged */
	char message[1024];
};

struct rank {
	ddp_job job;
	ddp_key key;
	int timeout_ms;
	int delay_ms;
	atomic_bool *awaits;   /* it comes once this is true, from when on its time counts; NULL: at once */
	bool absent;
	bool idles;            /* after it has joined */
	int dies_us;           /* after so many microseconds; 0: never */
	int agent_ends_ms;     /* the process that started it ends after so long; 0: with it */
	const char *run_id;    /* torchrun's; NULL: of the test's environment */
	const char *node;      /* ranks with another text are on other nodes; NULL: all are on one */
	long file_bytes;       /* the largest file that it may make; 0: any */
	int leaves_at;         /* it is no libddp, and ends when this ddp_frame_kind comes, */
	bool hangs;            /* or says nothing from then on */
	size_t descriptors;    /* limit; 0: as it is */
	size_t blob_bytes;
	int rounds;
};

extern struct rank ranks[WORLD_MAX];
extern struct outcome outcomes[WORLD_MAX];

/* For cmocka: before each test. */
int begin(void **state);

/* `world` ranks that will all come and exchange a small blob. */
void arrange(int world);

/* Runs the ranks, each in a process, and gathers how each of them fared. */
void run(int count);

/* Fails unless the rank ended with this status and said these words. */
void expect(int rank, ddp_status status, const char *words);
void all_are_well(int count);

void sleep_ms(long ms);

/* A connection to where rank 0 listens, once it does; -1: it never did. */
int connect_raw(void);
