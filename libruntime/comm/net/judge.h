/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/judge: is a node silent? The caller tells when it last had a sign of life, and asks from time to time.
 * Time in which the caller did not ask, as it did not run itself, counts little. There is no clock in here.
 */
#ifndef DDP_COMM_NET_JUDGE_H
#define DDP_COMM_NET_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

/* So much of the time between two looks counts, at most. */
#define DDP_JUDGE_STEP_NS UINT64_C(1000000000)

/* The kernel's clocks are coarse: signs of life that are so near each other may be one. */
#define DDP_JUDGE_SAME_NS UINT64_C(50000000)

typedef struct ddp_judge {
	uint64_t heard_ns;   /* when the last sign of life came */
	uint64_t looked_ns;  /* the last look */
	uint64_t counted_ns; /* since then, in which the caller ran */
} ddp_judge;

/* A node that is just there. */
void ddp_judge_begin(ddp_judge *judge, uint64_t now_ns);
/* A sign of life came at this time; an older one changes nothing. */
void ddp_judge_hear(ddp_judge *judge, uint64_t heard_ns);
/* Returns true if the node has been silent for `limit_ns`, and the caller ran for as long meanwhile. */
bool ddp_judge_look(ddp_judge *judge, uint64_t now_ns, uint64_t limit_ns);
/* The time since the last sign of life. */
uint64_t ddp_judge_silent_ns(const ddp_judge *judge, uint64_t now_ns);

#endif
