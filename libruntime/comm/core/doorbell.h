/* SPDX-License-Identifier: Apache-2.0 */
/* comm/core/doorbell: sleeping, and notifying ranks of this node. In a communicator on one node, a
   thread sleeps on a futex in its rank's lines of the control segment. If there are other nodes, it
   sleeps on its process's pipe, so that it can sleep on the network at the same time. Peers on the node
   open the pipe through /proc, as they open shared memory.

   A process has one pipe for all its communicators and threads. One sleeping thread polls the pipe and
   the network; the other threads sleep on a futex. When the first thread has drained notifications from
   the pipe, all of them look again, whichever communicator was notified. The first thread also wakes when a process of
   the node's ranks ends. */
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ddp.h"

typedef struct ddp_doorbell {
	int pipe[2];           /* of this process: read and write end; -1: none */
	int attention_fd;      /* an eventfd, for the thread of comm/attend */
	int ends_fd;           /* an epoll instance of the processes of the node's ranks */
	_Atomic uint32_t ends; /* changes after processes have ended */
	atomic_bool polled;    /* a thread polls the pipe */
	_Atomic uint32_t turn; /* futex of the others: how often it was emptied */
	atomic_int sleepers;   /* threads that sleep, or are about to */
	atomic_bool attended;  /* the thread of comm/attend wants to know what comes */
} ddp_doorbell;

void ddp_doorbell_init(ddp_doorbell *bell);
/* Makes the process's pipe; and opens those of the node's ranks, fds[comm->size], and watches their processes. */
ddp_status ddp_doorbell_open(ddp_doorbell *bell);
ddp_status ddp_doorbell_open_peers(ddp_comm *comm, const int *fds);
void ddp_doorbell_close(ddp_doorbell *bell);

/* Wakes the threads of this process that sleep; and that of comm/attend. */
void ddp_doorbell_notify_own(ddp_doorbell *bell);
void ddp_doorbell_notify_attention(ddp_doorbell *bell);

/* A sleep: what is begun before the thread looks for the last time at what it waits
   for; then it sleeps, if at all, until a notification comes, or `fd` has something to
   read, or time is over; then it ends, whether it slept or not. */
uint32_t ddp_doorbell_begin(ddp_doorbell *bell);
void ddp_doorbell_sleep(ddp_doorbell *bell, uint32_t begun, int fd, uint64_t timeout_ns);
void ddp_doorbell_end(ddp_doorbell *bell);
/* Sleeps for so long, or until a notification. */
void ddp_doorbell_rest(ddp_doorbell *bell, uint64_t ns);
/* The thread of comm/attend calls this. It sleeps until `fd` has something to read, something has come for any
   thread, or ddp_doorbell_notify_attention() is called. */
void ddp_doorbell_attend(ddp_doorbell *bell, int fd);

/* Wakes the node's ranks that sleep for `event` (or for ANY), if what they
   wait for is there; to be called after each store that others wait for, which
   has to be sequentially consistent. */
void ddp_node_wake(ddp_comm *comm, uint32_t event);
/* Does the same after a store with release order only, if the caller has then waited for the stores of all
   ranks: the last rank wakes those that sleep. It needs a full fence, which costs little when the store has
   long left the core. */
void ddp_node_wake_late(ddp_comm *comm, uint32_t event);
/* Wakes the node's i-th rank, if it sleeps. */
void ddp_node_wake_rank(ddp_comm *comm, int i);
/* Wakes all of the node's ranks, whatever they sleep for. */
void ddp_node_wake_all(ddp_comm *comm);

/* The futex system call, within a process or across those that share memory. */

/* Sleeps while *word == value, at most timeout_ns; may return early. */
static inline void ddp_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
	struct timespec timeout = { .tv_sec = (time_t)(timeout_ns / 1000000000u),
	                            .tv_nsec = (long)(timeout_ns % 1000000000u) };

	syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static inline void ddp_futex_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
