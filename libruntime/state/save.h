/* SPDX-License-Identifier: Apache-2.0 */
/* save: functions of saving that the training loop and loading need besides those of ddp.h. */
#pragma once

#include "ddp.h"

/* Tries whether rank 0 can write checkpoints to `dir`, so that a wrong name
   is an error before the training and not behind it. Collective; the same
   result on all ranks. */
ddp_status ddp_checkpoint_prepare(ddp_model *model, const char *dir);

/* After ddp_checkpoint_prepare(): a thread makes the memory for the copy that the first ddp_checkpoint_save_async() to
   that directory takes, so that training does not wait for its pages then. The model is in the host's memory. Without
   memory, that save tells so. */
void ddp_save_reserve(ddp_model *model);

/* Waits until a checkpoint that is written beside training is; that it was not is a warning
   here. Collective. An error: the communicator is broken. */
ddp_status ddp_save_end(ddp_model *model);

/* All ranks agree on whether rank 0 writes a checkpoint beside training. If it does, ddp_model_free() waits for the end
   with all of them. */
void ddp_save_follow(ddp_model *model, bool saves);
