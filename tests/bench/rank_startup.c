/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of startup and wireup: says when its first all-reduce was done. */
#include <stdio.h>

#include "ddp.h"
#include "tests/bench/rank_startup.h"

int main(void)
{
	const struct startup_begin begin = startup_begin();
	ddp_context *context;
	float ones = 1;

	if (ddp_init(NULL, &context) ||
	    ddp_all_reduce(ddp_world(context), NULL, &ones, 1, DDP_F32, DDP_SUM)) {
		fprintf(stderr, "rank_startup: %s\n", ddp_last_error());
		return 1;
	}
	startup_tell(ddp_comm_rank(ddp_world(context)), startup_now_ns(), ones, begin);
	return ddp_finalize(context) ? 1 : 0;
}
