/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: a test's ranks, each a process. What a rank has to start with, others add:
   comm_ranks a communicator, tcp_ranks a wire-up by TCP, context_ranks a context. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { TEST_RANKS_MAX = 64 };

typedef struct test_ranks {
	int count;
	/* Runs in each rank; what it returns is the rank's exit code. A failed
	   CHECK() prints and exits with 1. */
	int (*body)(int rank, void *argument);
	void *argument;
	void (*at_start)(const pid_t *pids, void *argument); /* in the parent, once all run; may be NULL */
	void *at_start_argument;
	bool expect_deaths;  /* ranks may be killed; the others must end by themselves */
} test_ranks;

/* Forks the ranks and waits for them. Returns how many failed, 0 if every rank
   returned 0, and prints which did not. Ranks that still run after 50 s, longer
   where the machine is slow just then, are killed, which is a failure. */
int test_ranks_run(const test_ranks *ranks);

/* In a rank: waits until all of the run have come here as often, without a communicator,
   which one of them may break as soon as it goes on. None of them may have ended. */
void test_ranks_together(void);

/* What models that are made from now on in this process, and in ranks that it starts, leave out:
   see DDP_MEASURE in ddp.h; NULL: nothing. */
void test_measure(const char *without);

/* Has this process, and threads and ranks that it starts, end by SIGFPE if it divides by zero, or if a result is not a
   number or too large, as programs do that look for such. */
void test_trap_floats(void);

/* Zeroed memory that this process and its later children share. */
void *test_share(size_t bytes);
void test_unshare(void *memory, size_t bytes);

/* In a rank: say where and why, and end the rank, if `condition` is false. */
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			test_check_failed(__FILE__, __LINE__, #condition); \
	} while (0)

/* A status that should be DDP_OK. */
#define CHECK_OK(call) \
	do { \
		ddp_status check_status = (call); \
		if (check_status != DDP_OK) \
			test_check_failed(__FILE__, __LINE__, #call); \
	} while (0)

/* A call that should fail with this status, in a sentence that has these words; and the words of the last error. */
#define CHECK_FAILS(call, status, words) \
	do { \
		CHECK((call) == (status)); \
		CHECK_SAYS(words); \
	} while (0)
#define CHECK_SAYS(words) \
	do { \
		if (!test_says(words)) \
			test_check_failed(__FILE__, __LINE__, words); \
	} while (0)

/* Has the last error these words? */
bool test_says(const char *words);

void test_check_failed(const char *file, int line, const char *what) __attribute__((noreturn));

/* For a harness of ranks: before they are forked, and when they have ended. test_ranks_begin() counts the run. */
void test_count_run(void);
void test_ranks_begin(int count);
void test_ranks_end(void);
/* Which rank a failed CHECK() names, and what is done before
   the rank ends; NULL: nothing. */
void test_be_rank(int rank, void (*before_failing)(void));
