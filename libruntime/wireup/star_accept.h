/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_accept: until all ranks have come, rank 0 accepts the processes that have proven the step's key
 * (acceptor.h). Each such process is the rank whose number it sends.
 */
#ifndef DDP_WIREUP_STAR_ACCEPT_H
#define DDP_WIREUP_STAR_ACCEPT_H

#include "wireup/star_links.h"

/* Accepts ranks until all have come. */
ddp_status ddp_accept_ranks(struct ddp_centre *centre, uint64_t deadline_ns);

#endif
