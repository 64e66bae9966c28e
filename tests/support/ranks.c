#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int run_ranks(int ranks, rank_body body, void *user)
{
	return run_ranks_with(ranks, NULL, body, user);
}

int run_ranks_with(int ranks, const ddp_options *options, rank_body body, void *user)
{
	ddp_spawn_result result;
	ddp_context *context;

	fflush(NULL);
	if (ddp_spawn(ranks, &result) != DDP_OK) {
		fprintf(stderr, "# ddp_spawn: %s\n", ddp_last_error());
		return 1;
	}
	if (!result.is_rank)
		return result.exit_code;

	if (ddp_init(options, &context) != DDP_OK) {
		fprintf(stderr, "# ddp_init: %s\n", ddp_last_error());
		_exit(1);
	}
	int code = body(context, user);
	if (code != 0) /* or the others would wait for this rank */
		ddp_comm_abort(ddp_world(context), "an expectation of the test was not met");
	if (ddp_finalize(context) != DDP_OK) {
		fprintf(stderr, "# ddp_finalize: %s\n", ddp_last_error());
		code = code != 0 ? code : 1;
	}
	/* The ordinary way, so that the leak check comes too. */
	exit(code);
}

void *share(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("# mmap");
		exit(1);
	}
	return memory;
}

void unshare(void *memory, size_t bytes)
{
	munmap(memory, bytes);
}

void report_expectation(const char *file, int line, const char *condition)
{
	fprintf(stderr, "# %s:%d: expected %s (last error: %s)\n", file, line, condition,
	        ddp_last_error());
}
