/* ranks: runs a test's body on several local ranks, each a process. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include <stddef.h>

#include "ddp.h"

/* Returns 0 when all is as wanted. What a failed expectation was goes to
   stderr. The context is finalized after it. */
typedef int (*rank_body)(ddp_context *context, void *user);

/* Runs `body` on `ranks` ranks; the exit code of the first that fails, or 0.
   Call it from a process without threads. */
int run_ranks(int ranks, rank_body body, void *user);
/* The same with options for ddp_init(). */
int run_ranks_with(int ranks, const ddp_options *options, rank_body body, void *user);

/* Zeroed memory that this process and the ranks share. */
void *share(size_t bytes);
void unshare(void *memory, size_t bytes);

/* In a body: return 1 and say where and why if `condition` is false. */
#define EXPECT(condition)                                                              \
	do {                                                                           \
		if (!(condition)) {                                                    \
			report_expectation(__FILE__, __LINE__, #condition);            \
			return 1;                                                      \
		}                                                                      \
	} while (0)

void report_expectation(const char *file, int line, const char *condition);

#endif
