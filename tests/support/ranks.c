/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ranks.h"

#include <fenv.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "tests/support/hung.h"
#include "tests/support/sanitizers.h"

static int this_rank = -1;
static void (*before_failing)(void);
static atomic_int *arrivals; /* of the ranks of a run, in test_ranks_together() */
static int ranks_of_run, rounds, runs;
static bool looks_for_leaks = true;

/* LeakSanitizer asks for it as a process ends. */
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
	return !looks_for_leaks;
}

/* To look for leaks takes a tenth of what ranks take: of the ranks behind the first, every other one does it. */
void test_be_rank(int rank, void (*before)(void))
{
	this_rank = rank;
	before_failing = before;
	looks_for_leaks = rank <= 0 || test_takes((size_t)(rank + runs));
}

void test_check_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "# rank %d: %s:%d: %s failed (last error: %s)\n", this_rank, file, line, what,
	        ddp_last_error());
	if (before_failing != NULL)
		before_failing();
	_exit(1);
}

bool test_says(const char *words)
{
	return strstr(ddp_last_error(), words) != NULL;
}

void test_trap_floats(void)
{
	feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
}

/* Gives what poll() needs to see a process end; .fd is -1 where the kernel has no pidfd_open(). */
static struct pollfd end_of(pid_t pid)
{
	struct pollfd end = { .fd = -1, .events = POLLIN };

#ifdef SYS_pidfd_open
	end.fd = (int)syscall(SYS_pidfd_open, pid, 0);
#else
	(void)pid;
#endif
	return end;
}

/* Waits for the ranks; kills those that are left at the deadline, which is for an
   idle machine, and shows where they hang. */
static int reap(const test_ranks *ranks, const pid_t *pids)
{
	uint64_t start_ns = ddp_now_ns(), limit_ns = 50000000000u;
	bool stretched = false;
	bool ended[TEST_RANKS_MAX] = { false };
	struct pollfd ends[TEST_RANKS_MAX];
	int left = ranks->count, failures = 0, poll_ms = 100;

	for (int r = 0; r < ranks->count; r++) {
		ends[r] = end_of(pids[r]);
		if (ends[r].fd < 0)
			poll_ms = 1;
	}
	while (left > 0) {
		bool late = ddp_now_ns() - start_ns > limit_ns;
		if (late && !stretched) {
			limit_ns *= (uint64_t)test_slowness();
			stretched = true;
			continue;
		}
		for (int r = 0; r < ranks->count; r++) {
			int state;
			if (ended[r])
				continue;
			if (late) {
				fprintf(stderr, "# rank %d of %d hangs\n", r, ranks->count);
				failures++;
				test_show_stacks(pids[r]);
				kill(pids[r], SIGKILL);
			}
			if (waitpid(pids[r], &state, late ? 0 : WNOHANG) != pids[r])
				continue;
			ended[r] = true;
			left--;
			if (ends[r].fd >= 0)
				close(ends[r].fd);
			ends[r].fd = -1;
			bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
			if (late || (killed && ranks->expect_deaths))
				continue;
			if (WIFSIGNALED(state))
				fprintf(stderr, "# rank %d of %d: signal %d\n", r, ranks->count, WTERMSIG(state));
			failures += !WIFEXITED(state) || WEXITSTATUS(state) != 0;
		}
		if (left > 0)
			poll(ends, (nfds_t)ranks->count, poll_ms);
	}
	return failures;
}

void test_count_run(void)
{
	runs++;
}

void test_ranks_begin(int count)
{
	arrivals = test_share(sizeof(*arrivals));
	ranks_of_run = count;
	test_count_run();
}

void test_ranks_end(void)
{
	test_unshare(arrivals, sizeof(*arrivals));
}

int test_ranks_run(const test_ranks *ranks)
{
	pid_t pids[TEST_RANKS_MAX];

	if (ranks->count > TEST_RANKS_MAX)
		return -1;
	test_ranks_begin(ranks->count);
	fflush(NULL);
	for (int r = 0; r < ranks->count; r++) {
		pids[r] = fork();
		if (pids[r] < 0) {
			perror("# fork");
			exit(1); /* the ranks that run end with this process */
		}
		if (pids[r] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			test_be_rank(r, NULL);
			/* The ordinary way, so that the leak check comes too. */
			exit(ranks->body(r, ranks->argument));
		}
	}
	if (ranks->at_start != NULL)
		ranks->at_start(pids, ranks->at_start_argument);
	const int failures = reap(ranks, pids);
	test_ranks_end();
	return failures;
}

void test_ranks_together(void)
{
	rounds++;
	atomic_fetch_add(arrivals, 1);
	while (atomic_load(arrivals) < rounds * ranks_of_run)
		usleep(100);
}

void test_measure(const char *without)
{
	if (without == NULL)
		unsetenv("DDP_MEASURE");
	else
		setenv("DDP_MEASURE", without, 1);
}

void *test_share(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("# mmap");
		exit(1);
	}
	return memory;
}

void test_unshare(void *memory, size_t bytes)
{
	munmap(memory, bytes);
}
