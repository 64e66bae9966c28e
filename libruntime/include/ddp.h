/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp.h: data-parallel training across processes and nodes.
 *
 * A program calls ddp_init() and registers its parameters in a ddp_model. In each step, backward
 * adds gradients to memory that the model gives it, ddp_model_grad_ready() says that a gradient is
 * complete, and ddp_model_step() ends the step. Between nodes, buckets of gradients are all-reduced
 * while backward still runs (Li et al., "PyTorch Distributed: Experiences on Accelerating Data
 * Parallel Training", VLDB 2020). On one node, each rank sums and updates its share of the
 * parameters for all ranks. doc/user-guide.md explains the methods; these headers are the contract.
 *
 * Conventions
 *  - A function that can fail returns a ddp_status. After any other status than DDP_OK,
 *    ddp_last_error() has a full sentence for the calling thread.
 *  - The library never ends the process and never prints. Messages go to the callback of
 *    ddp_set_log(). At first there is none.
 *  - An options structure begins with its size. The initialiser of its name sets the size and all
 *    defaults: `ddp_options options = DDP_OPTIONS;`. The program then sets the fields that it wants to
 *    differ. A 0 means 0, and DDP_AUTO lets the library choose, as the field's comment says. In C,
 *    { DDP_OPTIONS_FIELDS, .timeout_ms = 1000 } does the same in one initialiser, if the program is
 *    compiled with -Wno-override-init. A program that was compiled with a shorter structure goes on
 *    working with a later library, which takes the defaults for the missing fields. DDP_ERR_INVALID: the
 *    size is 0, or a longer structure has options that this library does not know. Options are copied;
 *    their strings need to live for the call only.
 *  - Other structures end with `reserved` words for fields of later releases, except
 *    ddp_image_shape and ddp_bucket_hook, which do not grow. The library sets the reserved words of
 *    a result to 0. In a structure that the program fills in, they must be 0 (DDP_ERR_INVALID).
 *  - If an argument that a function needs is NULL, a function with a status returns DDP_ERR_INVALID, and a
 *    void function does nothing. Other functions return NULL or 0 (ddp_comm_rank() -1,
 *    ddp_model_loss_scale() 1, ddp_schedule_rate() NaN). Options, stats and an argument that is freed may
 *    be NULL.
 *  - Results are written on success only, unless a function says otherwise.
 *  - A time has the unit in which its name ends (_ms, _ns, _seconds). A size is in bytes if its name
 *    says bytes, otherwise in elements.
 *  - One thread at a time uses a ddp_context, ddp_model or ddp_loader. One thread at a time issues the
 *    collectives of a communicator, in the same order on all ranks; other threads may send and
 *    receive meanwhile. Any thread may call ddp_comm_abort(), ddp_context_fail(), ddp_set_log() and
 *    ddp_last_error() at any time.
 *  - A program may trap floating-point exceptions (feenableexcept()). The library divides nothing by zero, and its
 *    results overflow or are no number only where those of the program's own values are. DDP_COMPRESS_F16 overflows
 *    in a step whose sums have left the range of f16, and then sums them again in f32.
 *  - "Collective" means that all ranks of the function's communicator or model call it, or all ranks of
 *    the world if it has neither. "Local" means that this rank alone calls it, and does not wait for others.
 */
#ifndef DDP_H
#define DDP_H

#include "ddp/base.h"
#include "ddp/job.h"
#include "ddp/comm.h"
#include "ddp/optim.h"
#include "ddp/model.h"
#include "ddp/step.h"
#include "ddp/data.h"
#include "ddp/state.h"
#include "ddp/train.h"

#endif
