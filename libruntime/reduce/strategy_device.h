/* strategy_device: what strategies share whose arenas are a device's. */
#ifndef DDP_REDUCE_STRATEGY_DEVICE_H
#define DDP_REDUCE_STRATEGY_DEVICE_H

#include "reduce/strategy.h"

/* As reduce() and update() of ddp_strategy. */
ddp_status ddp_device_finish(struct ddp_model *model, double *squares);
ddp_status ddp_device_update(struct ddp_model *model, const ddp_update *update, bool reduced,
                             double *squares);

#endif
