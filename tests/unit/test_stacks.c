/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* watch/stacks and spank/witness/stack: the stacks of a process's threads, on demand. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/witness/stack.h"
#include "tests/support/hung.h"
#include "tests/support/test.h"
#include "watch/stacks.h"

static int ready[2];

static void *sleep_on(void *argument)
{
	while (true)
		pause();
	return NULL;
}

/* A process with three threads that sleep. */
static pid_t start(const char *dir)
{
	const pid_t pid = fork();
	pthread_t threads[2];

	if (pid != 0)
		return pid;
	setenv("DDP_RECORD_DIR", dir, 1);
	unsetenv("DDP_PYTHON");
	ddp_stacks_install();
	ddp_stacks_install();
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, sleep_on, NULL);
	if (write(ready[1], "r", 1) != 1)
		_exit(1);
	sleep_on(NULL);
	_exit(0);
}

static int count(const char *text, const char *word)
{
	int found = 0;

	for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
		found++;
	return found;
}

TEST(threads_tell_their_stacks)
{
	const pid_t pid = start("/records");
	struct stack stack;
	bool found = false;
	char c;

	assert_int_equal(read(ready[0], &c, 1), 1);
	/* A reader does not wait for ever, so on a busy machine a stack may come too late for it. */
	const uint64_t end_ns = ddp_now_ns() + (uint64_t)(60e9 * test_slowness());
	for (int complete = 0; complete < 2 && ddp_now_ns() < end_ns;) {
		assert_true(stack_ask(pid, &stack));
		char *text = stack_take(&stack, ddp_now_ns() + 10000000000ull);
		found = text != NULL && count(text, "stack of thread ") >= 3 && count(text, "(pause+0x") >= 3;
		complete += found;
		free(text);
	}
	assert_true(found);
	/* It goes on. */
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

TEST(nothing_is_installed_without_record)
{
	const pid_t pid = start("");
	struct stack stack;
	char c;

	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_false(stack_ask(pid, &stack));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(void)
{
	return pipe(ready) != 0 ? 1 : test_run(NULL, NULL);
}
