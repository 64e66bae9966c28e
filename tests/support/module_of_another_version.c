/* A module as a later libddp might have it: for the refusal of test_device. */
#include "device/backend.h"

DDP_API extern const ddp_device_backend ddp_device_module;
const ddp_device_backend ddp_device_module = {
	.version = DDP_DEVICE_VERSION + 1, .bytes = sizeof(ddp_device_module) + 8, .kind = "cuda",
};
