/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_plugins/net/worker: UCX's part of a device, which all connections of the process through
   it share. It is there as long as somebody uses it. */
#pragma once

#include <pthread.h>

#include "comm/net/guard.h"
#include "nccl_plugins/net/device.h"
#include "nccl_plugins/net/handshake.h"

/* UCX may still write to this memory. UCX 1.13 does not end all that was under way with a process
   that has died; it does with the worker, but for a connection that is being made. */
typedef struct net_leftover {
	struct net_leftover *next;
	void *memory;
	void (*release)(void *memory); /* NULL: it is never freed, nor is the worker */
} net_leftover;

typedef struct net_worker {
	pthread_mutex_t lock;    /* who calls UCX, or reads what UCX writes, holds it */
	const net_device *device;
	int users;               /* under the lock of all workers */
	struct net_leftover *leftovers;
	struct net_worker *next; /* that is never freed */
	ucp_context_h context;
	ucp_worker_h ucx;
	ucp_address_t *address;  /* as peers get it: behind it is who may connect here */
	size_t address_bytes;
	ddp_listeners listeners; /* UCX's */
	ddp_guard *guard;        /* of these */
	ddp_key key;             /* of the step */
	bool checks;             /* the guard asks who connects */
	int unfiltered;          /* an errno: why the kernel does not filter; 0: it does */
	ddp_place *hosts;        /* that the kernel lets in there */
	int host_count;
	ucp_ep_h self;           /* of flushes; NULL: none yet */
} net_worker;

/* The device's worker; the first user makes it, the last one ends it. `step` is the step's key. */
ddp_status net_worker_use(int device, const ddp_key *step, net_worker **worker);
/* One user more of a worker that is in use. */
void net_worker_share(net_worker *w);
void net_worker_leave(net_worker *w);

void net_worker_lock(net_worker *w);
void net_worker_unlock(net_worker *w);

/* ---- with the lock ---- */

/* Fills the card that connections of this process give their peers. Its texts are not copied. */
void net_worker_card(const net_worker *w, uint32_t connection, net_card *card);

/* From now on the kernel lets the peer's host connect to UCX, and UCX of this process proves the key to the peer's. */
ddp_status net_worker_admit(net_worker *w, const net_card *peer);

void net_worker_leave_over(net_worker *w, void *memory, void (*release)(void *memory));

/* Moves what is under way. False: nothing moved. */
bool net_worker_progress(net_worker *w);
