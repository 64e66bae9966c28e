/* SPDX-License-Identifier: Apache-2.0 */
/* store: checkpoints as files of a directory, DIR/step-NNNNNNNN.safetensors.
   A file is complete or does not exist: it is written under a temporary name, which no other writer
   uses, synced and renamed, and then the directory is synced. The owner of the directory (state/lock.h)
   removes and renames files there. Local to the calling process. */
#pragma once

#include "state/lock.h"
#include "state/safetensors.h"
#include "state/safetensors_write.h"

/* Makes DIR if it is missing, and tries whether files can be made in it. */
ddp_status ddp_store_prepare(const char *dir);

/* The steps of DIR's files that are later than one. */
typedef struct ddp_later {
	int64_t *steps; /* malloc'd */
	int count;
} ddp_later;

/* If they cannot be listed, it warns, and the list is empty. */
void ddp_store_list_later(const char *dir, int64_t step, ddp_later *later);

/* Writes the file of a step, and makes DIR if it is missing. If the caller owns DIR, two things follow when
   the file is on the disk. Of the files of steps up to `step`, all except the newest `keep` are removed. The
   files of `later` steps, which were there when saving began, get names that end in ".aside": training has
   gone back or begun anew, so a resume must not take them. Files that came after that stay; they are of a
   rank that goes on alone after the job's failure. `later` NULL: the caller does not own DIR, and all its
   files stay. After an error the old files stay and the new file is removed, unless only the sync of the
   directory has failed. DDP_ERR_STATE: a later start of the job of `writer` owns DIR. `writer` NULL: the process
   is in no job. */
ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep,
                           const ddp_later *later, const ddp_store_writer *writer);

/* Opens and verifies a file, or a directory's newest file that is complete and for which `check` (NULL: none)
   returns DDP_OK. It passes over files that are damaged (DDP_ERR_FORMAT) or not regular; a warning names each
   of them and the file that is taken. *found is false if the directory is missing or has no checkpoints. It is
   an error if all files are damaged, or if the disk cannot read a file. */
ddp_status ddp_store_open(const char *path, ddp_status (*check)(const ddp_safetensors *file),
                          ddp_safetensors *file, bool *found);
