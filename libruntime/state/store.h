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

/* Makes DIR if need be, and tries whether files can be made in it. */
ddp_status ddp_store_prepare(const char *dir);

/* That a model of this process owns a directory, as long as it holds this and lives. */
typedef struct ddp_store_lock ddp_store_lock;

/*
 * Makes DIR if need be, becomes its owner, and removes temporary files that a crash
 * left. DDP_ERR_STATE tells who owns it; `who` is what other processes are told of
 * this one. Where the file system knows no locks, that is a warning. `owner` tells the
 * models of this process apart: several calls of one owner may own a directory together.
 */
ddp_status ddp_store_lock_take(const char *dir, const char *who, const void *owner, ddp_store_lock **lock);
void ddp_store_lock_release(ddp_store_lock *lock);
/* Whether an owner of this process has DIR. */
bool ddp_store_lock_is_here(const char *dir);
/* Whether DIR is still the directory that was locked: it may have been removed, or
   unmounted. */
bool ddp_store_lock_holds(const ddp_store_lock *lock, const char *dir);

/* The steps of DIR's files that are later than one. */
typedef struct ddp_later {
	int64_t *steps; /* malloc'd */
	int count;
} ddp_later;

/* Where they cannot be listed, there are none, and a warning. */
void ddp_store_list_later(const char *dir, int64_t step, ddp_later *later);

/*
 * Writes step's file, making DIR if need be. If the caller owns DIR, all but the
 * newest `keep` of the steps up to `step` are removed when it is on the disk, and files of
 * `later` steps, which were there when saving began, renamed to end in ".aside": training has
 * left them, by going back or by beginning anew, so a resume shall not take them. What came
 * there since is newer, of a rank that the job's failure left alone. `later` NULL: DIR is
 * another's, and all its files stay. On failure the old ones stay, and nothing
 * is left of the new file, unless it was only the directory that could not be
 * brought to the disk.
 */
ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep,
                           const ddp_later *later);

/*
 * Opens and verifies a file, or a directory's newest file that is whole and that `check` (NULL:
 * none) approves of; those that are not (DDP_ERR_FORMAT), or are no regular files, are passed
 * over, with a warning each that names it and the one that is taken. *found is false if the
 * directory is absent or holds none; if it holds only broken ones, or the disk cannot
 * read one, that is an error.
 */
ddp_status ddp_store_open(const char *path, ddp_status (*check)(const ddp_safetensors *file),
                          ddp_safetensors *file, bool *found);

#endif
