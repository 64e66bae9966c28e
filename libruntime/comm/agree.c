#include "comm/agree.h"

#include "base/error.h"
#include "comm/core/comm.h"
#include "comm/request.h"

ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	const int64_t own = mine == DDP_OK ? 0 : (int64_t)mine << 32 | comm->rank;
	int64_t worst;
	ddp_status status = ddp_comm_run(comm, &(ddp_collective){ .kind = DDP_ALL_REDUCE, .send = &own,
	                                                          .recv = &worst, .count = 1,
	                                                          .type = DDP_I64, .op = DDP_MAX });

	if (status != DDP_OK || mine != DDP_OK || worst == 0)
		return status != DDP_OK ? status : mine;
	return ddp_fail((ddp_status)(worst >> 32), "%s could not %s (%s)",
	                ddp_rank_text(comm, (int)(worst & INT32_MAX)), what,
	                ddp_status_name((ddp_status)(worst >> 32)));
}
