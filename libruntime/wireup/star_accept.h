/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_accept: rank 0 lets in who has proven the step's key (acceptor.h) and takes it for the
 * rank that it says to be, until all ranks have come.
 */
#ifndef DDP_WIREUP_STAR_ACCEPT_H
#define DDP_WIREUP_STAR_ACCEPT_H

#include "wireup/star_links.h"

/* Until all ranks have come. */
ddp_status ddp_accept_ranks(struct ddp_centre *centre, uint64_t deadline_ns);

#endif
