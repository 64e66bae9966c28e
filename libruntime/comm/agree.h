/* comm/agree: do all ranks fare well? */
#ifndef DDP_COMM_AGREE_H
#define DDP_COMM_AGREE_H

#include "ddp.h"

/* All ranks tell how they fared, with `mine`. If it is not DDP_OK on all, it is an
   error on all; on the others one that says which rank could not do `what`. */
ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what);

#endif
