/* checkpoint: what the loop needs besides ddp.h. */
#ifndef DDP_STATE_CHECKPOINT_H
#define DDP_STATE_CHECKPOINT_H

#include "ddp.h"

/*
 * Tries whether rank 0 can write checkpoints to `dir`, so that a wrong name
 * is an error before the training and not behind it. Collective; the same
 * result on all ranks.
 */
ddp_status ddp_checkpoint_prepare(ddp_model *model, const char *dir);

#endif
