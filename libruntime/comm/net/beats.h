/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/beats: which nodes a process watches for silence. The first rank of each node has connections
   (comm/net/beat) with those of the nodes that are 1, 2, 4, 8, ... places before and behind its own: few, and
   each node is watched from far and near. A thread of the process looks after them, whatever the program does. */
#pragma once

#include "comm/core/comm.h"
#include "comm/net/auth.h"

enum { DDP_BEATS_MAX = 64 }; /* neighbours of a node */

typedef struct ddp_beats ddp_beats;

/* Listens; nobody is watched yet. */
ddp_status ddp_beats_open(ddp_roster *roster, ddp_beats **beats);
/* Returns the port on which the process listens, in network order. NULL: 0. */
uint16_t ddp_beats_port(const ddp_beats *beats);
/* Process `rank` of another node listens at `port` (0: it does not) of one of the addresses. */
ddp_status ddp_beats_learn(ddp_beats *beats, int rank, uint16_t port, const ddp_place *hosts, int count);
/* Gives the tokens that precede messages to it, and from it. */
void ddp_beats_trust(ddp_beats *beats, int rank, const ddp_token *ours, const ddp_token *theirs);
/* Watches the neighbours of this node among the nodes of the communicator, if this rank is the first one of its
   node there. Those that are watched already go on being so. Silent nodes are noted (comm/core/silence). */
ddp_status ddp_beats_watch(ddp_beats *beats, const ddp_comm *comm);
/* Returns how many nodes this process hears now. */
int ddp_beats_heard(ddp_beats *beats);
/* NULL is allowed. */
void ddp_beats_close(ddp_beats *beats);

/* The neighbours of one of `nodes` nodes: their number. */
int ddp_beats_neighbours(int nodes, int node, int neighbours[DDP_BEATS_MAX]);
