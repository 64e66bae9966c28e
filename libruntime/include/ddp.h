/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp.h - data-parallel training across processes and nodes.
 *
 * A program calls ddp_init(), registers its parameters in a ddp_model, and
 * then, per step, computes gradients into the arena that the model gives it,
 * says ddp_model_grad_ready() for each parameter as backward produces it, and ends
 * the step with ddp_model_step(). On one node, each rank then sums and updates a
 * part for all; between nodes, gradient buckets are all-reduced while backward
 * still runs (Li et al., "PyTorch Distributed: Experiences on Accelerating
 * Data Parallel Training", VLDB 2020), and the ranks of each node share out the
 * update.
 *
 * Conventions
 *  - Every function that can fail returns a ddp_status. On anything but
 *    DDP_OK, ddp_last_error() gives a full sentence for the calling thread.
 *  - The library never exits the process and never prints; messages go to
 *    the callback of ddp_set_log(), which is unset at first.
 *  - Options structures begin with their size: .size = sizeof(options). So programs
 *    go on working with later releases, whose structures are longer; one that sets an
 *    option which this release does not know gets DDP_ERR_INVALID, and so does one that
 *    sets no size. Zero in any other field means its default, and DDP_ZERO is 0 itself
 *    where that is another number. Options structures are copied; their strings need to
 *    live for the call only.
 *  - Other structures that programs make room for end with `reserved` words, which are for
 *    fields of later releases; but ddp_image_shape and ddp_bucket_hook stay as they are. What
 *    the library fills in has zeros there. Where the program fills a structure in they must be
 *    0, as all that is left out of { .field = value } is: else DDP_ERR_INVALID.
 *  - NULL for what a function needs (a context, communicator, model, loader, request, path, a
 *    place for a result) is DDP_ERR_INVALID where a status is returned; it does nothing in void
 *    functions; others give NULL or 0 (ddp_comm_rank() -1, ddp_model_loss_scale() 1, ddp_schedule_rate()
 *    NaN). What may be NULL is said: options (all their defaults), stats, what is freed.
 *  - Output pointers are written on success only, unless said otherwise.
 *  - Times are in the unit that the name ends in (_ms, _ns, _seconds); sizes
 *    are in bytes where the name says bytes, else in elements.
 *  - Threads: a ddp_context, ddp_model or ddp_loader is used by one thread at
 *    a time. Collectives of one communicator are issued from one thread at a
 *    time, in the same order on all ranks; other threads may send and receive
 *    beside them. ddp_comm_abort(), ddp_set_log() and ddp_last_error() may be
 *    called from any thread at any time.
 */
#ifndef DDP_H
#define DDP_H

#include "ddp/base.h"
#include "ddp/job.h"
#include "ddp/comm.h"
#include "ddp/optim.h"
#include "ddp/model.h"
#include "ddp/data.h"
#include "ddp/state.h"
#include "ddp/train.h"

#endif
