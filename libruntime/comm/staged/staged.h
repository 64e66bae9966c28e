/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/staged: the backend for a device's memory that sends it through the host's: what
 * a GPU has without NCCL, and what the asynchronous test device has.
 *
 * An operation is cut into chunks. For each, one queue of the device copies the input to
 * memory of the host, the next runs the operation of the backend `host` on that, and a
 * third copies the result back; so these overlap. All of that is enqueued when the
 * operation is issued, ordered by events alone: the host waits for nothing, and never
 * touches the device's memory.
 */
#ifndef DDP_COMM_STAGED_STAGED_H
#define DDP_COMM_STAGED_STAGED_H

#include "comm/core/backend.h"

extern const ddp_backend ddp_backend_staged;

#endif
