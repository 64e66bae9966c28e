/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a device: memory is the host's, and work is done when it is enqueued. */
#pragma once

#include "device/backend.h"

const ddp_device_backend *ddp_device_cpu(void);
