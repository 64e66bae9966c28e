/* SPDX-License-Identifier: Apache-2.0 */
/* comm/ops/blocks: where the parts of a collective's buffers lie, in elements. */
#pragma once

#include "comm/ops/names.h"

/* Rank r's block of the buffer that holds a block for each rank. */
static inline size_t ddp_block_count(const ddp_operation *c, int r)
{
	return c->counts != NULL ? c->counts[r] : c->count;
}

/* The elements that all_to_all receives from rank r. */
static inline size_t ddp_recv_count(const ddp_operation *c, int r)
{
	return c->recv_counts != NULL ? c->recv_counts[r] : c->count;
}

/* A part of a range, in elements. */
typedef struct ddp_range {
	size_t begin, count;
} ddp_range;

/* The i-th of `parts` parts of `count` elements, cut at multiples of `align`. */
static inline ddp_range ddp_part(size_t count, int parts, int i, size_t align)
{
	size_t each = (count / (size_t)parts + (count % (size_t)parts != 0) + align - 1) / align * align;
	size_t begin = each * (size_t)i < count ? each * (size_t)i : count;

	return (ddp_range){ begin, count - begin < each ? count - begin : each };
}

/* The k-th window of `width` elements of a range. */
static inline ddp_range ddp_window(ddp_range range, size_t width, size_t k)
{
	size_t skip = width * k < range.count ? width * k : range.count;
	size_t rest = range.count - skip;

	return (ddp_range){ range.begin + skip, rest < width ? rest : width };
}

/* Elements of a chunk of a slice: at most `limit` bytes of accumulators of
   `wide` bytes, at most what fits in `share`, the bytes that a window has for
   each slice, and not much more than the `longest` slice. Whole groups of 64 if
   there is room for one; 0 if there is not even room for an element. */
static inline size_t ddp_chunk_count(size_t limit, size_t share, size_t element, size_t wide,
                                     size_t longest)
{
	size_t room = share / element, count = (share < limit ? share : limit) / wide;
	size_t most = longest > 0 ? longest + 63 : 64;

	if (count < 64)
		return room < 64 ? room : 64;
	return (count < most ? count : most) / 64 * 64;
}
