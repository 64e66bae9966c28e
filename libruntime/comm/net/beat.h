/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/beat: a connection by which a process knows whether another node lives. It is a TCP connection of its
   own with a process there, and both ends prove who they are. What counts is the other node's kernel, which
   acknowledges the kernel's keepalive probes and the bytes that come here, also while the process is stopped.
   So silence is time in which that kernel acknowledges nothing.

   TCP sends lost bytes again later and later, so it may need twice as long as a network was away. While nothing is
   acknowledged, further connections to the same place are begun, one after the other: if the kernel there answers
   one, the node lives. */
#pragma once

#include <poll.h>

#include "comm/net/auth.h"

/* Detects that a node is silent. The caller tells when it last had a sign of life, and asks from time to time. Time in
   which the caller did not ask, as it did not run itself, counts little. There is no clock in here. */

/* So much of the time between two checks counts, at most. */
#define DDP_DETECTOR_STEP_NS UINT64_C(1000000000)

/* The kernel's clocks are coarse: signs of life that are so near each other may be one. */
#define DDP_DETECTOR_SAME_NS UINT64_C(50000000)

typedef struct ddp_detector {
	uint64_t heard_ns;   /* when the last sign of life came */
	uint64_t checked_ns; /* the last check */
	uint64_t counted_ns; /* since then, in which the caller ran */
} ddp_detector;

/* A node that is just there. */
void ddp_detector_start(ddp_detector *detector, uint64_t now_ns);
/* A sign of life came at this time; an older one changes nothing. */
void ddp_detector_alive(ddp_detector *detector, uint64_t heard_ns);
/* Returns true if the node has been silent for `limit_ns`, and the caller ran for as long meanwhile. */
bool ddp_detector_is_silent(ddp_detector *detector, uint64_t now_ns, uint64_t limit_ns);
/* The time since the last sign of life. */
uint64_t ddp_detector_silent_ns(const ddp_detector *detector, uint64_t now_ns);

enum { DDP_BEAT_PLACES = 8, DDP_BEAT_FDS = 2 };

/* The first bytes in both directions. */
typedef struct ddp_beat_hello {
	int32_t rank; /* the sender's, in the job */
	uint32_t unused;
	ddp_proof proof; /* by the key from the sender to the receiver */
} ddp_beat_hello;

typedef enum ddp_beat_state {
	DDP_BEAT_WAITS,    /* for the time of the next attempt, or for the peer to connect */
	DDP_BEAT_CONNECTS,
	DDP_BEAT_PROVES,   /* connected; the peer's hello has not come */
	DDP_BEAT_HEARS,
	DDP_BEAT_CUT,      /* the kernel gave the connection up; further connections are tried */
	DDP_BEAT_ENDED     /* the process there has ended, or one side has given the other up */
} ddp_beat_state;

/* A byte on the connection. If a node was called silent and its network is back, this byte tells the node that others
   have given it up. */
typedef enum ddp_beat_word {
	DDP_BEAT_LIVES,
	DDP_BEAT_GAVE_ALL_UP, /* the sender hears nobody */
	DDP_BEAT_GAVE_YOU_UP  /* the sender hears others */
} ddp_beat_word;

typedef struct ddp_beat {
	int rank, self;       /* the peer, and this process, in the job */
	bool connects;        /* this end connects, and the other end listens */
	bool heard;           /* there was a connection, */
	bool refused;         /* and since then nobody listens where it was, or a firewall refuses connections; */
	bool left;            /* the process there has closed the connection: neither a cut nor a reset has ended it */
	bool warned;          /* that there is no connection */
	ddp_beat_state state;
	ddp_proof_key ours, theirs; /* from this process to the peer, and the other way round */
	ddp_place places[DDP_BEAT_PLACES]; /* where it may listen; those that are likely come first */
	int place_count, attempts; /* to connect, since the last connection */
	uint64_t until_ns;    /* of WAITS, CONNECTS and PROVES */
	int fd;
	ddp_beat_hello hello; /* the peer's, as far as it has come */
	size_t hello_bytes;
	ddp_place place;      /* where the peer listens; of HEARS and CUT */
	ddp_detector detector;
	uint64_t period_ns, sent_ns, ran_ns; /* the last byte that went out, and that came */
	ddp_beat_word word;   /* that came last */
	int probe_fd;         /* the further connection; -1: none */
	uint64_t probed_ns;   /* when it was begun */
} ddp_beat;

/* A beat that has no connection yet. `limit_ms` is the time after which a node is silent. */
void ddp_beat_begin(ddp_beat *beat, int limit_ms, uint64_t now_ns);
/* Takes a connection whose peer has proven that it is beat->rank; `port` is where that listens. */
void ddp_beat_adopt(ddp_beat *beat, int fd, uint16_t port, int limit_ms, uint64_t now_ns);
/* Does what can be done now. True: the node has been silent for the limit, or beat->word says that it gave up. */
bool ddp_beat_progress(ddp_beat *beat, int limit_ms, uint64_t now_ns);
/* Whether somebody should be told that the node is not watched: there is no place to connect to, or many attempts
   have failed and it does not look as if the process there has ended. */
bool ddp_beat_is_blind(const ddp_beat *beat);
/* Adds what it waits for; returns how many were added. `next_ns` becomes earlier if it has to be looked at earlier. */
int ddp_beat_poll(const ddp_beat *beat, struct pollfd fds[DDP_BEAT_FDS], uint64_t now_ns, uint64_t *next_ns);
void ddp_beat_end(ddp_beat *beat);
/* Ends it with a word, which the kernel sends for as long as the process runs. */
void ddp_beat_give_up(ddp_beat *beat, ddp_beat_word word);

/* This end's hello, for the connection `fd`. */
bool ddp_beat_hello_send(int fd, int self, const ddp_proof_key *ours);
/* Is the hello one of the rank that it names, on this connection? */
bool ddp_beat_hello_holds(int fd, const ddp_beat_hello *hello, const ddp_proof_key *theirs);
