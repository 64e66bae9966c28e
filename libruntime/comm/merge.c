#include "comm/merge.h"

int ddp_merge_power(int nodes)
{
	int power = 1;

	while (power * 2 <= nodes)
		power *= 2;
	return power;
}

void ddp_merge_pair(ddp_type type, ddp_op op, const void *lower, const void *upper, void *result,
                    size_t count)
{
	const void *src[2] = { lower, upper };
	void *dst[1] = { result };
	const ddp_fold fold = { .type = ddp_accumulator(type), .op = op, .nsrc = 2, .src = src,
	                        .ndst = 1, .dst = dst };

	ddp_fold_run(&fold, 0, count);
}

typedef struct merging {
	const ddp_fold *last;
	void **parts;
	const void *own;
	int left;        /* pairs to come */
	size_t count;
} merging;

/* The pair's value takes the lower's place in `parts`. */
static void combine(merging *m, int low, int high)
{
	const void *src[2] = { m->parts[low], m->parts[high] };

	if (--m->left == 0) {
		ddp_fold last = *m->last;
		last.src = src;
		last.nsrc = 2;
		ddp_fold_run(&last, 0, m->count);
		return;
	}
	void *place = m->parts[low] == m->own ? m->parts[high] : m->parts[low];
	ddp_merge_pair(m->last->type, m->last->op, src[0], src[1], place, m->count);
	m->parts[low] = place;
}

void ddp_merge(const ddp_fold *last, void **parts, int own, int nodes, size_t count)
{
	int power = ddp_merge_power(nodes), extra = nodes - power;
	merging m = { .last = last, .parts = parts, .own = parts[own], .left = nodes - 1,
	              .count = count };

	for (int i = 0; i < extra; i++)
		combine(&m, 2 * i, 2 * i + 1);
	for (int stride = 1; stride < power; stride *= 2) {
		for (int i = 0; i < power; i += 2 * stride) {
			int upper = i + stride;
			/* The i-th of the 2^k values lies where its first part did. */
			combine(&m, i < extra ? 2 * i : i + extra,
			        upper < extra ? 2 * upper : upper + extra);
		}
	}
}
