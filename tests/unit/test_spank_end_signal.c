/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit */
/* spank/base/end_signal: the main thread notes what a thread of the program waits for. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/base/end_signal.h"
#include "tests/support/test.h"

enum { ROUNDS = 8 };

static const int ends[] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP };
static int ready[2];

static void *wait_for_signals(void *waited)
{
	int number;

	do {
		if (sigwait(waited, &number) != 0)
			_exit(2);
	} while (number == SIGCONT);
	_exit(end_signal_came() ? number : 1);
}

/* As srun up to SLURM 25.11. It ends with the number of the signal, or 1 if the main thread has not noted it. */
static void act_as_srun(void)
{
	const int numbers[] = { SIGINT, SIGQUIT, SIGCONT, SIGTERM, SIGHUP };
	pthread_t thread;
	sigset_t waited;

	sigemptyset(&waited);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaddset(&waited, numbers[i]);
	if (sigprocmask(SIG_BLOCK, &waited, NULL) != 0 || pthread_create(&thread, NULL, wait_for_signals, &waited) != 0)
		_exit(3);
	end_signal_heed();
	if (write(ready[1], "", 1) != 1)
		_exit(4);
	pthread_join(thread, NULL);
	_exit(5);
}

static void end_with(int number)
{
	_exit(end_signal_came() ? number : 1);
}

/* As srun from SLURM 26.05 on. It ends in the same way. */
static void act_as_later_srun(void)
{
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		signal(ends[i], end_with);
	end_signal_heed();
	/* As for another component of a heterogeneous job. */
	end_signal_heed();
	if (write(ready[1], "", 1) != 1)
		_exit(4);
	for (;;)
		pause();
}

static bool all_asleep(pid_t process)
{
	char command[64];

	snprintf(command, sizeof(command), "! grep -q 'State:.[^S]' /proc/%d/task/*/status", (int)process);
	return system(command) == 0;
}

/* What srun ends with that is sent the signals right one behind the other. */
static int srun_sent(void (*act)(void), int first, int second)
{
	pid_t process = fork();
	int status;
	char byte;

	assert_true(process >= 0);
	if (process == 0)
		act();
	assert_int_equal(read(ready[0], &byte, 1), 1);
	while (!all_asleep(process))
		usleep(1000);
	assert_int_equal(kill(process, first), 0);
	if (second != 0)
		(void)kill(process, second);
	assert_int_equal(waitpid(process, &status, 0), process);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(each_signal_is_noted_and_reaches_the_program)
{
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		assert_int_equal(srun_sent(act_as_srun, ends[i], 0), ends[i]);
		assert_int_equal(srun_sent(act_as_later_srun, ends[i], 0), ends[i]);
	}
}

/* timeout(1) and systemd do so. */
TEST(it_is_noted_with_a_cont_behind_it)
{
	for (int i = 0; i < ROUNDS; i++)
		assert_int_equal(srun_sent(act_as_srun, SIGTERM, SIGCONT), SIGTERM);
}

int main(void)
{
	if (pipe(ready) != 0)
		return 1;
	/* A shell ignores some of them for what it runs in the background. */
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		signal(ends[i], SIG_DFL);
	return test_run(NULL, NULL);
}
