/* SPDX-License-Identifier: Apache-2.0 */
/* layout: a checked copy of a parameter list, and where each tensor lies in
   the arenas. Tensors follow one another in the given order, but for those
   that ddp_layout_arrange() moves; each begins at a multiple of 64 bytes, and
   the gap behind a tensor stays zero. What is not trained is behind the rest, in the
   parameters' arena only. */
#pragma once

#include "ddp.h"

enum { DDP_ALIGN_ELEMENTS = 16, DDP_PARAM_NAME_MAX = 255 };

typedef struct ddp_slot {
	char *name;
	int param;        /* as the program counts them */
	int ndim;
	int64_t shape[DDP_MAX_DIMS];
	ddp_tensor_kind kind;
	bool no_decay;
	bool grouped;     /* it has a decay of its own */
	ddp_param_group group; /* a factor of 1 unless the program gave one */
	int64_t sparse_rows;
	bool rows_only;   /* its gradient has no dense part */
	bool rows_travel; /* apart from the dense part of the gradient */
	int64_t offset; /* in elements, a multiple of DDP_ALIGN_ELEMENTS */
	int64_t count;  /* elements */
} ddp_slot;

typedef struct ddp_layout {
	int count;
	int trained;      /* of these, the first in the order of the arenas */
	int64_t all;      /* elements of the parameters' arena, gaps included */
	int64_t elements; /* of these, the first, which are trained: those of any other arena */
	int64_t dense;    /* of these, the first, which have gradients that travel in buckets;
	                     the rest have rows that travel, and nothing else */
	int64_t buffers, mean, broadcast; /* where buffers begin, behind what is frozen; those
	                     that are averaged, and those behind them, which are broadcast */
	ddp_slot *slots;  /* in the order of the arenas */
	int *slot_of;     /* [count]: a parameter's slot */
} ddp_layout;

/* Checks the list and copies it. DDP_ERR_INVALID names the wrong parameter. */
ddp_status ddp_layout_make(const ddp_param *params, int count, ddp_layout *layout);
/* Decides whose rows travel among `ranks` (1: nobody's), and moves those
   parameters to the end of the arenas: their dense parts are complete when
   backward has begun, and buckets travel from the end to the beginning. Behind
   them are those without a dense part, then what is not trained. */
ddp_status ddp_layout_arrange(ddp_layout *layout, int ranks);
void ddp_layout_free(ddp_layout *layout);

/* Writes "[2, 3]"; cut if `bytes` are too few. */
void ddp_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes);
