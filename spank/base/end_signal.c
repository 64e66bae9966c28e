/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/end_signal.h"

#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { COUNT = 4 };

static const int ends[COUNT] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP };
static void (*handlers[COUNT])(int number); /* of srun */
static volatile sig_atomic_t came;

/* The thread blocks the signal from here on, so that this one and later ones reach srun's own thread. */
static void note_signal(int number, siginfo_t *info, void *context)
{
	(void)info;
	came = 1;
	sigaddset(&((ucontext_t *)context)->uc_sigmask, number);
	(void)kill(getpid(), number);
}

static bool has_default(int number)
{
	struct sigaction action;

	return sigaction(number, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

static void note_and_pass(int number)
{
	came = 1;
	for (int i = 0; i < COUNT; i++)
		if (ends[i] == number)
			handlers[i](number);
}

/* Puts note_and_pass() before srun's own handler, if there is one. */
static void note_before(int i)
{
	struct sigaction action;

	if (sigaction(ends[i], NULL, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler == SIG_DFL ||
	    action.sa_handler == SIG_IGN || action.sa_handler == note_and_pass)
		return;
	handlers[i] = action.sa_handler;
	action.sa_handler = note_and_pass;
	(void)sigaction(ends[i], &action, NULL);
}

/* Up to SLURM 25.11 srun blocks its signals, and a thread of srun's waits for them and tells nobody. The kernel gives
   a signal to the main thread first, if that does not block the signal. A later srun has a handler, and no thread
   that waits: this handler is called as before. A signal that srun has found ignored stays, too, as srun's thread may
   be about to change that.

   timeout(1) and systemd send SIGCONT right behind SIGTERM. It would wake srun's thread, as the main thread has a
   signal already, and that thread would take SIGTERM before the main thread runs. The kernel drops a SIGCONT that the
   main thread does not block. */
void end_signal_heed(void)
{
	struct sigaction action = { .sa_sigaction = note_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigset_t heeded, blocked;

	if (syscall(SYS_gettid) != getpid() || pthread_sigmask(SIG_BLOCK, NULL, &blocked) != 0)
		return;
	sigemptyset(&heeded);
	for (int i = 0; i < COUNT; i++)
		if (sigismember(&blocked, ends[i]) == 0)
			note_before(i);
		else if (has_default(ends[i]))
			sigaddset(&heeded, ends[i]);
	action.sa_mask = heeded;
	for (int i = 0; i < COUNT; i++)
		if (sigismember(&heeded, ends[i]) == 1)
			(void)sigaction(ends[i], &action, NULL);
	if (has_default(SIGCONT))
		sigaddset(&heeded, SIGCONT);
	pthread_sigmask(SIG_UNBLOCK, &heeded, NULL);
}

bool end_signal_came(void)
{
	return came != 0;
}

void end_signal_default(void)
{
	sigset_t none;

	for (int i = 0; i < COUNT; i++)
		signal(ends[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}
