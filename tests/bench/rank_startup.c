/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of startup: says when its first all-reduce was done. The clock is
   the machine's, the same in every process on it. */
#include <stdio.h>

#include "base/clock.h"
#include "ddp.h"

int main(void)
{
	ddp_context *context;
	float ones = 1;

	if (ddp_init(NULL, &context) ||
	    ddp_all_reduce(ddp_world(context), NULL, &ones, 1, DDP_F32, DDP_SUM)) {
		fprintf(stderr, "rank_startup: %s\n", ddp_last_error());
		return 1;
	}
	printf("@ %d done %llu %g\n", ddp_comm_rank(ddp_world(context)),
	       (unsigned long long)ddp_now_ns(), (double)ones);
	fflush(stdout);
	return ddp_finalize(context) ? 1 : 0;
}
