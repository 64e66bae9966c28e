/*
 * comm/inter_reduce: the parts of a reduction between nodes. The input is cut
 * into pieces. A piece has a channel: on each node, the rank with that index
 * combines the node's inputs and talks to the same rank of other nodes. And
 * it has an owner, the node that combines the nodes' partial results; or all
 * nodes do, which costs one exchange less.
 *
 * A piece is cut into segments, of which several are under way, so that the
 * network has always something to carry.
 */
#ifndef DDP_COMM_INTER_REDUCE_H
#define DDP_COMM_INTER_REDUCE_H

#include "comm/blocks.h"
#include "comm/inter.h"

enum { DDP_EVERY_NODE = -1, DDP_SEGMENTS_MAX = 16 };

typedef struct ddp_piece {
	ddp_range range;
	int channel;
	int owner;     /* a node, or DDP_EVERY_NODE */
	int target;    /* the one rank that wants the result, or DDP_NOBODY */
} ddp_piece;

/* A segment of each of this channel's pieces, under way. */
typedef struct ddp_segment {
	char *buffers;
	ddp_transfer *sends, *recvs;  /* partial results */
	ddp_transfer *result_sends, *result_recvs;
	int send_count, recv_count, result_send_count, result_recv_count;
} ddp_segment;

typedef struct ddp_reduction {
	ddp_comm *comm;
	const ddp_collective *c;
	ddp_type travel;       /* of nodes' partial results */
	size_t element;        /* bytes of an element, */
	size_t travel_bytes;   /* and of one of a partial result */
	size_t total;          /* elements of a rank's input */
	const char *input;
	char *output;          /* addressed like the input */
	char *spare;           /* reduce_scatter over its own input */
	int node, nodes;
	ddp_piece *pieces;     /* all channels', the same list on all ranks */
	int count;
	int *mine;             /* those of this rank's channel */
	int mine_count, owned_count;
	bool spread;           /* owners send results to nodes that want them */
	bool small;            /* inputs came with the headers */
	bool doubling;         /* and the nodes combine by recursive doubling */
	bool direct;           /* other ranks' inputs and outputs are in shared memory */
	bool plain;            /* the input is the node's partial result, as it is */
	double divisor;        /* of the result, before it is rounded; 0: it is not divided */
	size_t width;          /* elements of a piece per window */
	size_t window;         /* number of the present one */
	size_t segment_count;  /* elements of a segment */
	size_t depth;          /* segments under way */
	ddp_segment segments[DDP_SEGMENTS_MAX];
	ddp_fold fold;         /* of this node's inputs */
	void **parts;          /* [nodes] */
} ddp_reduction;

/* ---- comm/inter_pieces: who does what, and who wants it ---------------------------- */

/* Sets pieces, mine, width and segments; *windows to the number of windows. */
ddp_status ddp_pieces_cut(ddp_reduction *x, size_t *windows);
bool ddp_rank_wants(const ddp_reduction *x, const ddp_piece *p, int rank);
bool ddp_node_wants(const ddp_reduction *x, const ddp_piece *p, int node);

static inline bool ddp_owns(const ddp_reduction *x, const ddp_piece *p)
{
	return p->owner == DDP_EVERY_NODE || p->owner == x->node;
}

/* The part of a piece that is in the present window. */
static inline ddp_range ddp_window_of(const ddp_reduction *x, const ddp_piece *p)
{
	return ddp_window(p->range, x->width, x->window);
}

/* ---- comm/inter_local: inputs and outputs on this node ------------------------------- */

/* Combines this node's inputs of a range of piece i. */
void ddp_local_combine(ddp_reduction *x, int i, ddp_range range, char *partial);
/* The places where the ranks of this node want a range of piece i; this rank's
   own first. At most node.size; returns how many. */
int ddp_local_places(const ddp_reduction *x, int i, ddp_range range, void **places);
/* Before and after a window: what is not in shared memory passes through slots. */
void ddp_local_stage(const ddp_reduction *x);
void ddp_local_pull(const ddp_reduction *x);

/* ---- comm/inter_segments: between nodes ------------------------------------------------ */

/* Buffers of the segments; they stay with the communicator. */
ddp_status ddp_segments_prepare(ddp_reduction *x);
/* All segments of the present window. */
ddp_status ddp_segments_run(ddp_reduction *x);
/* Instead, for a small all_reduce: recursive doubling of the only piece. */
ddp_status ddp_segments_double(ddp_reduction *x);

#endif
