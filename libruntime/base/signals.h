/* SPDX-License-Identifier: Apache-2.0 */
/* signals: the signals of a write that fails (SIGPIPE: nobody reads; SIGXFSZ: a file
   larger than ulimit -f) would end the program without a word. Between hold and release the
   calling thread gets the error alone: EPIPE or EFBIG. */
#pragma once

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

typedef struct ddp_held_signals {
	sigset_t before;  /* this thread's mask */
	sigset_t pending; /* the program's own, which stay */
} ddp_held_signals;

static inline void ddp_signals_of_writes(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGPIPE);
	sigaddset(set, SIGXFSZ);
}

static inline void ddp_signals_hold(ddp_held_signals *held)
{
	sigset_t writes;

	ddp_signals_of_writes(&writes);
	sigpending(&held->pending);
	pthread_sigmask(SIG_BLOCK, &writes, &held->before);
}

/* Leaves errno as it is. */
static inline void ddp_signals_release(const ddp_held_signals *held)
{
	const int numbers[] = { SIGPIPE, SIGXFSZ }, error = errno;
	const struct timespec now = { 0 };
	sigset_t pending, one;

	sigpending(&pending);
	for (int i = 0; i < 2; i++) {
		sigemptyset(&one);
		sigaddset(&one, numbers[i]);
		if (sigismember(&pending, numbers[i]) && !sigismember(&held->pending, numbers[i]))
			while (sigtimedwait(&one, NULL, &now) < 0 && errno == EINTR)
				continue;
	}
	pthread_sigmask(SIG_SETMASK, &held->before, NULL);
	errno = error;
}

static inline ssize_t ddp_write(int fd, const void *data, size_t bytes)
{
	ddp_held_signals held;
	ssize_t written;

	ddp_signals_hold(&held);
	do
		written = write(fd, data, bytes);
	while (written < 0 && errno == EINTR);
	ddp_signals_release(&held);
	return written;
}

/* The errno of what failed, or 0. */
static inline int ddp_set_file_size(int fd, off_t bytes)
{
	ddp_held_signals held;

	ddp_signals_hold(&held);
	const int error = ftruncate(fd, bytes) == 0 ? 0 : errno;
	ddp_signals_release(&held);
	return error;
}
