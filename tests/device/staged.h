/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged: the test device's own backend of communicators (comm/core/backend.h), which sends its memory
 * through the host's.
 *
 * An operation is cut into chunks. For each, one queue of the device copies the input to
 * memory of the host, the next runs the operation of the backend `host` on that, and a
 * third copies the result back; so these overlap. All of that is enqueued when the
 * operation is issued, ordered by events alone: the host waits for nothing, and never
 * touches the device's memory.
 */
#ifndef TESTS_DEVICE_STAGED_H
#define TESTS_DEVICE_STAGED_H

#include "comm/core/backend.h"

/* For `operations` of device/backend.h. */
const ddp_backend *ddp_test_operations(const ddp_comm_services *services);

#endif
