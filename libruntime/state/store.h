/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: checkpoints as files of a directory, DIR/step-NNNNNNNN.safetensors.
 * A file is complete or does not exist: it is written under a temporary name, which no other writer
 * uses, synced and renamed, and then the directory is synced. One process at a time owns a
 * directory, and only this process removes and renames files there. Local to the calling process.
 */
#ifndef DDP_STATE_STORE_H
#define DDP_STATE_STORE_H

#include "state/safetensors.h"
#include "state/safetensors_write.h"

/* Makes DIR if it is missing, and tries whether files can be made in it. */
ddp_status ddp_store_prepare(const char *dir);

/* With this lock, a model of this process owns a directory until the lock is released or the process ends. */
typedef struct ddp_store_lock ddp_store_lock;

/*
 * Makes DIR if it is missing, becomes its owner, and removes temporary files that a crash has left.
 * DDP_ERR_STATE: another owner has it; the sentence names that owner. `who` is the name of this owner for
 * other processes. If the file system has no locks, it only warns. `owner` tells the models of this process
 * apart: several calls of one owner may own a directory together.
 */
ddp_status ddp_store_lock_take(const char *dir, const char *who, const void *owner, ddp_store_lock **lock);
void ddp_store_lock_release(ddp_store_lock *lock);
/* Whether a model of this process owns DIR. */
bool ddp_store_lock_is_here(const char *dir);
/* Whether DIR is still the directory that was locked: it may have been removed, or
   unmounted. */
bool ddp_store_lock_holds(const ddp_store_lock *lock, const char *dir);

/* The steps of DIR's files that are later than one. */
typedef struct ddp_later {
	int64_t *steps; /* malloc'd */
	int count;
} ddp_later;

/* If they cannot be listed, it warns, and the list is empty. */
void ddp_store_list_later(const char *dir, int64_t step, ddp_later *later);

/*
 * Writes the file of a step, and makes DIR if it is missing. If the caller owns DIR, two things follow when
 * the file is on the disk. Of the files of steps up to `step`, all except the newest `keep` are removed. The
 * files of `later` steps, which were there when saving began, get names that end in ".aside": training has
 * gone back or begun anew, so a resume must not take them. Files that came after that stay; they are of a
 * rank that goes on alone after the job's failure. `later` NULL: the caller does not own DIR, and all its
 * files stay. After an error the old files stay and the new file is removed, unless only the sync of the
 * directory has failed.
 */
ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep,
                           const ddp_later *later);

/*
 * Opens and verifies a file, or a directory's newest file that is complete and for which `check` (NULL: none)
 * returns DDP_OK. It passes over files that are damaged (DDP_ERR_FORMAT) or not regular; a warning names each
 * of them and the file that is taken. *found is false if the directory is missing or has no checkpoints. It is
 * an error if all files are damaged, or if the disk cannot read a file.
 */
ddp_status ddp_store_open(const char *path, ddp_status (*check)(const ddp_safetensors *file),
                          ddp_safetensors *file, bool *found);

#endif
