/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge: which grains of a model's gradients to all-reduce together, so that a step ends as
 * early as it can. A bucket leaves when its last gradient is complete and the bucket before it
 * is done, so many small ones can leave early, but each costs a latency: merged-gradient
 * scheduling, MG-WFBP (Shi, Chu and Li, "MG-WFBP: Efficient data communication for distributed
 * synchronous SGD algorithms", INFOCOM 2019). Their costs are latency + bytes / bandwidth, too;
 * here the last update counts as well, and the optimum is searched for among all cuts.
 */
#ifndef DDP_REDUCE_MERGE_H
#define DDP_REDUCE_MERGE_H

#include <stdint.h>

enum { DDP_GRAINS_MAX = 1024 };

typedef struct ddp_merge_case {
	int count;               /* 1 to DDP_GRAINS_MAX grains, in the order in which they travel */
	const double *ready;     /* [count]: seconds from some moment on until its gradients are there */
	const int64_t *elements; /* [count] */
	double latency;          /* seconds of an all-reduce, and of each element in it */
	double per_element;
	double update;           /* seconds of an element's update, which begins when all gradients are
	                            there, and the element's sum; 0: updates do not count */
} ddp_merge_case;

/* Writes where buckets end, as for ddp_bucket_plan_cut(), to ends [count of grains], and returns
   how many buckets that makes. */
int ddp_merge(const ddp_merge_case *c, int *ends);

/* When the step ends with these buckets: seconds from that moment on. */
double ddp_merge_end(const ddp_merge_case *c, const int *ends, int count);

#endif
