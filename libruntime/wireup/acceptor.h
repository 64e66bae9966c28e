/* SPDX-License-Identifier: Apache-2.0 */
/* acceptor: accepts the connections of a listener, and returns those that have proven the step's key.
   Any process may connect, so connections without a proof cost little and are few: if there are too
   many, the oldest one is dropped at once. The oldest one has had the most time for its proof, so a
   peer that answers the challenge gets through however many processes connect. A peer whose connection
   is dropped nevertheless connects again.

     acceptor -> peer       challenge (auth.h)
     peer     -> acceptor   hello
     acceptor -> peer       verdict */
#pragma once

#include "base/log.h"
#include "wireup/auth.h"

enum { DDP_UNPROVEN_MAX = 256 };

struct ddp_newcomer;

typedef struct ddp_acceptor {
	/* The caller sets these. */
	int listener;        /* the acceptor closes it, whatever comes */
	const ddp_key *key;  /* has to stay */
	const char *who;     /* "wire-up: rank 0 on n0", for the log; has to stay */
	const char *host;    /* this one's, for the verdict; has to stay */
	bool bound;          /* peers count only if the hello names both ends of its connection */
	bool same_user;      /* peers count only if the kernel says that they are this user's */
	int unproven_max;    /* at once; the acceptor lowers it where descriptors are scarce */

	/* The rest is the acceptor's, and begins as zeros. */
	int epoll;           /* readable when ddp_acceptor_next() has something to do */
	struct ddp_newcomer *unproven, *last_unproven; /* the oldest first */
	struct ddp_newcomer *proven;
	int unproven_count;
	int refused, refusals_told; /* connections that do not hold the key */
	uint64_t told_ns;
	char last_refused[80];
	char misled[400];    /* who holds the key, and came by a connection with other ends; "": nobody */
	ddp_log_limit drops, misleads; /* one message each */
} ddp_acceptor;

/* On failure the acceptor is closed. */
ddp_status ddp_acceptor_open(ddp_acceptor *acceptor);
/* Does what can be done without waiting, and gives a peer that has proven the key: *fd is kept
   (base/descriptors.h); -1: there is none at present. */
ddp_status ddp_acceptor_next(ddp_acceptor *acceptor, int *fd, ddp_hello *hello);
/* Drops all peers that were not given out. May be called more than once. */
void ddp_acceptor_close(ddp_acceptor *acceptor);
