/* SPDX-License-Identifier: Apache-2.0 */
/* comm/follow: finds out when requests of a backend that is asked are complete, and ends
   them: a thread for each lane. For a backend that does not compare, it also sees that all
   ranks have issued the same collective, which they tell each other by the backend host
   meanwhile; and that it ends by its deadline, which counts from when all had issued it
   and those before it had ended. */
#pragma once

#include "comm/core/backend.h"

/* `lane` is one of `comm`, and outlives the follower. Collective. */
ddp_status ddp_follower_open(ddp_comm *comm, const ddp_lane *lane, struct ddp_follower **follower);
/* Has the backend begin the request, and follows it. */
ddp_status ddp_follower_issue(struct ddp_follower *follower, ddp_request *request);
ddp_status ddp_follower_wait_on(struct ddp_follower *follower, ddp_request *request, void *stream);
/* Returns when all requests are complete. If only sends and receives are left, it has the
   backend abort them. NULL is allowed. */
void ddp_follower_stop(struct ddp_follower *follower);
/* Stops it, if that was not done. Collective. NULL is allowed. */
void ddp_follower_close(struct ddp_follower *follower);
