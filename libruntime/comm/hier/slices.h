/* SPDX-License-Identifier: Apache-2.0 */
/* comm/hier/slices: how a reduction between nodes is cut, and who wants which share. */
#pragma once

#include "comm/hier/reduction.h"

/* Sets slices, mine, width and chunks; *windows to the number of windows. */
ddp_status ddp_slices_cut(ddp_reduction *x, size_t *windows);
/* Returns the reduction's shape as comm/hier/reduction describes it. */
ddp_shape ddp_shape_of(const ddp_reduction *x);
bool ddp_rank_wants(const ddp_reduction *x, const ddp_slice *p, int rank);
bool ddp_node_wants(const ddp_reduction *x, const ddp_slice *p, int node);

static inline bool ddp_owns(const ddp_reduction *x, const ddp_slice *p)
{
	return p->owner == DDP_EVERY_NODE || p->owner == x->node;
}

/* This rank's input for a slice, addressed like the whole input. */
static inline const char *ddp_input_of(const ddp_reduction *x, const ddp_slice *p)
{
	if (x->c->send_list == NULL)
		return x->input;
	return (const char *)((uintptr_t)x->c->send_list[p->target] - p->range.begin * x->element);
}

/* The part of a share that is in the present window. */
static inline ddp_range ddp_window_of(const ddp_reduction *x, const ddp_slice *p)
{
	return ddp_window(p->range, x->width, x->window);
}
