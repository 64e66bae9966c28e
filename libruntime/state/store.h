/*
 * store: checkpoints as files of a directory, DIR/step-NNNNNNNN.safetensors.
 * A file is there whole or not at all: it is written under a temporary name,
 * synced, renamed, and the directory synced. Local to the calling process.
 */
#ifndef DDP_STATE_STORE_H
#define DDP_STATE_STORE_H

#include "state/safetensors.h"

/* Makes DIR if need be, and tries whether files can be made in it. */
ddp_status ddp_store_prepare(const char *dir);

/*
 * Writes step's file, making DIR if need be, then removes all but the newest
 * `keep` of the steps up to `step`, and temporary files that a crash left.
 * On failure the old ones stay, and nothing is left of the new file, unless it
 * was only the directory that could not be brought to the disk.
 */
ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep);

/*
 * Opens and verifies a file, or a directory's newest file that is whole;
 * broken ones are passed over with a warning. *found is false if the
 * directory is absent or holds none; if it holds only broken ones, that is
 * an error.
 */
ddp_status ddp_store_open(const char *path, ddp_safetensors *file, bool *found);

#endif
