/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

void pause_ms(long ms)
{
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

bool eventfd_raise(int fd)
{
	const uint64_t one = 1;
	ssize_t got;

	do {
		got = write(fd, &one, sizeof(one));
	} while (got < 0 && errno == EINTR);
	return got == (ssize_t)sizeof(one);
}

static void *run_worker(void *argument)
{
	struct worker *worker = argument;

	worker->work();
	(void)eventfd_raise(worker->done);
	return NULL;
}

bool worker_start(struct worker *worker, void (*work)(void))
{
	sigset_t all, before;
	int error;

	worker->work = work;
	worker->done = eventfd(0, EFD_CLOEXEC);
	if (worker->done < 0)
		return false;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&worker->thread, NULL, run_worker, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error == 0)
		return true;
	close(worker->done);
	errno = error;
	return false;
}

bool worker_join(struct worker *worker, int ms)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)ms * 1000000, now_ns;
	struct pollfd done = { .fd = worker->done, .events = POLLIN };
	int count;

	/* By the monotonic clock: an administrator may set the other one. */
	do {
		now_ns = ddp_now_ns();
		count = poll(&done, 1, now_ns < deadline_ns ? (int)((deadline_ns - now_ns + 999999) / 1000000) : 0);
	} while (count < 0 && errno == EINTR);
	if (count != 1)
		return false;
	pthread_join(worker->thread, NULL);
	close(worker->done);
	return true;
}
