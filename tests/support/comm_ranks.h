/*
 * comm_ranks: forks the ranks of a communicator for a test. Blobs are
 * exchanged through memory that the ranks share; ranks may be put on pretend
 * nodes, which then reach each other through the network only.
 */
#ifndef TESTS_COMM_RANKS_H
#define TESTS_COMM_RANKS_H

#include <stdbool.h>
#include <sys/types.h>

#include "comm/comm.h"

enum { TEST_RANKS_MAX = 16 };

typedef struct test_world {
	int ranks;
	const int *node_of;  /* [ranks]: pretend node; NULL: all on one */
	int timeout_ms;      /* of each operation once all have opened; 0: 60000 */
	/* Runs in each rank; what it returns is the rank's exit code. A failed
	   CHECK() prints and exits with 1. */
	int (*body)(ddp_comm *comm, void *argument);
	void *argument;
	void (*at_start)(const pid_t *pids, void *argument); /* in the parent, once all run; may be NULL */
	bool expect_deaths;  /* ranks may be killed; the others must end by themselves */
} test_world;

/* Returns 0 if every rank returned 0, and prints which did not. Ranks that
   still run after 50 s are killed, which is a failure. */
int test_world_run(const test_world *world);

/* Waits until the main thread of a process sleeps. */
void test_await_sleep(pid_t pid);

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

void test_check_failed(const char *file, int line, const char *what) __attribute__((noreturn));

#endif
