/* SPDX-License-Identifier: Apache-2.0 */
/* comm/self: the backend for a device's memory of a communicator of one rank, where NCCL does not run
   operations. There is nothing to send: an operation copies within the device's memory, behind what the
   program's queue holds. The host scales, and makes 0 and 1 of bool, on a copy. A message of the rank to
   itself ends when both sides have been issued, as it does with NCCL. */
#pragma once

#include "comm/core/backend.h"

extern const ddp_backend ddp_backend_self;
