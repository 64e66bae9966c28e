/* SPDX-License-Identifier: Apache-2.0 */
/* attacker: another user of the host, who looks for the TCP ports on which a user's processes listen, connects
   there, and sends what ends a process in which UCX reads it. He leaves processes alone that are not the
   test's. The test's own processes are refused socket filters from then on, as some kernels do to ordinary users. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { ATTACKER_PHASES = 3 }; /* the victim opens, works, closes */

/* What the test, the victim and the attacker share, by test_share(). */
typedef struct attacker {
	atomic_int phase;                 /* of the victim, who keeps it up to date */
	atomic_int sent[ATTACKER_PHASES]; /* connections on which something was sent */
	atomic_bool stop, refused;        /* the latter: a filter was refused */
	atomic_int refusals;              /* as the victim counts them */
	atomic_bool floods;               /* with connections on which nothing is sent */
	atomic_size_t copied;             /* bytes of a proof that was sent in the test, as one on the way might copy it */
	unsigned char copy[256];
	atomic_bool listens[65536];       /* at this port, a process of the test */
} attacker;

/* The attacker runs from here on, as the last ordinary user where the test is root's. Its victim is `victim`. */
pid_t attacker_begin(attacker *s, uid_t victim);
/* Ends it, and expects that it was not ended before. */
void attacker_end(attacker *s, pid_t pid);

/* As while an attacker runs: filters are refused, and proofs copied; NULL: no longer. */
void attacker_refuse_filters(attacker *s);

/* The user who is attacked: an ordinary one, also if the test is root's. The calling process
   becomes his by the second. */
uid_t attacker_victim(void);
void attacker_be_victim(void);
