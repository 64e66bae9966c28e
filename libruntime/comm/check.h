/* SPDX-License-Identifier: Apache-2.0 */
/* comm/check: is an operation one that can run? */
#pragma once

#include "ddp.h"

/* Checks `given` and writes it to *c with all fields set: the input's place,
   a scale that is not 0. Local; DDP_ERR_INVALID breaks nothing, unless input and output overlap as
   they must not: that may be so on one rank alone, and is an error on all. */
ddp_status ddp_collective_complete(ddp_comm *comm, const ddp_operation *given,
                                   ddp_operation *c);
