/* SPDX-License-Identifier: Apache-2.0 */
/* merge: decides which grains of a model's gradients are all-reduced together, so that a step ends
   as early as possible. A bucket starts when its last gradient is complete and the previous bucket
   is reduced. Small buckets can start early, but each costs a latency. This is merged-gradient
   scheduling, MG-WFBP (Shi, Chu and Li, "MG-WFBP: Efficient data communication for distributed
   synchronous SGD algorithms", INFOCOM 2019). As there, a bucket costs latency + bytes / bandwidth.
   In addition, the update after the last bucket counts, and all cuts are searched for the best one. */
#pragma once

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
