/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the plugin's beside Slurm's own: it takes none of the process's
   signals, and nobody waits for it longer than he says. libc only. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

/* Sleeps so long, or until a signal comes. */
void pause_ms(long ms);

/* Wakes those that wait for an eventfd. False, with errno: others have written to it too often. */
bool eventfd_raise(int fd);

struct worker {
	pthread_t thread;
	void (*work)(void);
	int done; /* readable once the work is done */
};

/* Not movable from then on. False, with errno, if there can be no thread. */
bool worker_start(struct worker *worker, void (*work)(void));

/* Waits until the work is done, and gives back what the thread holds. False if that
   takes longer than `ms`: it goes on then, and so does all that it uses. To be called
   again, or never more. */
bool worker_join(struct worker *worker, int ms);
