/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/judge.h"

void ddp_judge_begin(ddp_judge *judge, uint64_t now_ns)
{
	*judge = (ddp_judge){ .heard_ns = now_ns, .looked_ns = now_ns };
}

void ddp_judge_hear(ddp_judge *judge, uint64_t heard_ns)
{
	if (heard_ns <= judge->heard_ns)
		return;
	if (heard_ns - judge->heard_ns > DDP_JUDGE_SAME_NS)
		judge->counted_ns = 0;
	judge->heard_ns = heard_ns;
}

uint64_t ddp_judge_silent_ns(const ddp_judge *judge, uint64_t now_ns)
{
	return now_ns > judge->heard_ns ? now_ns - judge->heard_ns : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool ddp_judge_look(ddp_judge *judge, uint64_t now_ns, uint64_t limit_ns)
{
	const uint64_t silent_ns = ddp_judge_silent_ns(judge, now_ns);
	const uint64_t gap_ns = now_ns > judge->looked_ns ? now_ns - judge->looked_ns : 0;

	judge->counted_ns = least(judge->counted_ns + least(gap_ns, DDP_JUDGE_STEP_NS), silent_ns);
	judge->looked_ns = now_ns;
	return silent_ns >= limit_ns && judge->counted_ns >= limit_ns;
}
