/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/handshake: the connections between nodes that most operations use. */
#pragma once

#include "ddp.h"

/* Makes them, so that an unreachable node is found before the first operation: among few
   ranks all, among many those of recursive doubling, others when they are first used.
   Collective; of the world, once all ranks have all addresses. */
ddp_status ddp_handshake(ddp_comm *comm);
