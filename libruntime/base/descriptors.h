/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors: sockets that a child of this process must not keep. A child that fork() makes
   (of a data loader, say) would hold a connection open, and so hide this process's death from
   its peer. Close-on-exec does not help: such a child calls no exec(). */
#pragma once

#include "ddp.h"

/* From now on, fork() closes *fd in the child. On failure, *fd is closed, and -1. */
ddp_status ddp_descriptor_keep(int *fd);

/* Closes a descriptor that ddp_descriptor_keep() has taken; does nothing with another one. */
void ddp_descriptor_close(int fd);
