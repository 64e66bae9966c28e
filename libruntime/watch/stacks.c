/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	FRAMES_MAX = 48,
	OWN_FRAMES = 1,     /* the handler's own */
	TURNS_MAX = 100000, /* that a thread waits for another's stack: none is worth a thread that hangs */
	BELOW_LAST = 5,     /* slurm_ddp begins there, too */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int file = -1;
static atomic_bool busy; /* a thread writes its stack */

/* The handler may interrupt a thread that holds any lock of the C library's, so it takes none that is not recursive.
   backtrace_symbols_fd() takes the dynamic linker's, which is: a thread that holds it goes on, and another thread
   waits until dlopen() has returned there. The thread in dlopen() does not wait for long for the waiting one, see
   on_signal(). */

static void put(const char *text)
{
	if (write(file, text, strlen(text)) < 0)
		return; /* the reader finds less */
}

static void put_number(long number)
{
	char text[24];
	size_t at = sizeof(text) - 1;

	text[at] = '\0';
	do
		text[--at] = (char)('0' + number % 10);
	while ((number /= 10) > 0 && at > 0);
	put(text + at);
}

static void put_stack(void)
{
	void *frames[FRAMES_MAX];
	char name[17] = "";
	const int count = backtrace(frames, FRAMES_MAX);

	prctl(PR_GET_NAME, name);
	put("stack of thread ");
	put_number(syscall(SYS_gettid));
	put(" (");
	put(name);
	put("):\n");
	if (count > OWN_FRAMES)
		backtrace_symbols_fd(frames + OWN_FRAMES, count - OWN_FRAMES, file);
}

/* The same signal to each other thread. */
static void pass_on(int number)
{
	_Alignas(8) char entries[4096];
	const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const long own = syscall(SYS_gettid);
	long got;

	while (folder >= 0 && (got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < got;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			long thread = 0;
			for (const char *c = entry->d_name; *c >= '0' && *c <= '9'; c++)
				thread = thread * 10 + (*c - '0');
			if (thread > 0 && thread != own)
				syscall(SYS_tgkill, getpid(), thread, number);
			at += entry->d_reclen;
		}
	}
	if (folder >= 0)
		close(folder);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	const int saved = errno;
	bool taken = false;

	(void)context;
	if (info->si_code != SI_TKILL)
		pass_on(number);
	for (int turn = 0; turn < TURNS_MAX && !taken; turn++) {
		taken = !atomic_exchange(&busy, true);
		if (!taken)
			sched_yield();
	}
	if (taken) {
		put_stack();
		atomic_store(&busy, false);
	}
	errno = saved;
}

static int free_signal(void)
{
	struct sigaction action;

	for (int number = SIGRTMAX - BELOW_LAST; number > SIGRTMIN; number--)
		if (sigaction(number, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL)
			return number;
	return -1;
}

static void install(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
	const int number = free_signal();
	void *frame[1];
	char name[32];

	if (number < 0)
		return;
	snprintf(name, sizeof(name), "ddp_stack-%d", number);
	file = memfd_create(name, MFD_CLOEXEC);
	if (file < 0)
		return;
	/* The first call loads a library. */
	(void)backtrace(frame, 1);
	sigemptyset(&action.sa_mask);
	if (fcntl(file, F_SETFL, O_APPEND) != 0 || sigaction(number, &action, NULL) != 0) {
		close(file);
		file = -1;
	}
}

void ddp_stacks_install(void)
{
	const char *dir = getenv("DDP_RECORD_DIR");

	/* slurm_ddp shows Python's stacks, and a process has one such file. */
	if (dir != NULL && dir[0] != '\0' && getenv("DDP_PYTHON") == NULL)
		pthread_once(&once, install);
}
