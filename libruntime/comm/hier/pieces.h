/* comm/hier/pieces: how a reduction between nodes is cut, and who wants which piece. */
#ifndef DDP_COMM_HIER_PIECES_H
#define DDP_COMM_HIER_PIECES_H

#include "comm/hier/reduction.h"

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

#endif
