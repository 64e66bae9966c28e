/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library: signals stay with the program's own. */
#pragma once

#include <pthread.h>
#include <signal.h>

/* 0, or the error's number. */
static inline int ddp_thread_start(pthread_t *thread, void *(*body)(void *), void *argument)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(thread, NULL, body, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}
