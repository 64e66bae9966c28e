/* SPDX-License-Identifier: Apache-2.0 */
/* loader: what the checkpoint and the tests need of a ddp_loader. The public part is in
   ddp.h.

   Batch b of an epoch takes the epoch's order from batch_size * ranks * b on, dealt
   to the ranks like cards. So a position, counted in samples of all ranks,
   means the same whatever the batch and the world. If no update of this loader begins
   there, the epoch's updates are counted from there on.
   An epoch is of whole updates, which several batches may make: its tail is cut, or left
   short, by update, so that each update holds the same samples however many ranks share it. */
#pragma once

#include "ddp.h"

/* One rank's loader by itself. What the ranks of a job give must agree. */
ddp_status ddp_loader_make(int rank, int world_size, const ddp_dataset *dataset,
                           const ddp_loader_options *options, ddp_loader **loader);

/* Whose share of the samples it reads: that of rank *rank of *ranks. */
void ddp_loader_place(const ddp_loader *loader, int *rank, int *ranks);

/* Batches of each rank that make an update; DDP_AUTO: the program has not said. */
int ddp_loader_accumulate(const ddp_loader *loader);
/* Cuts epochs into updates of so many batches, from the next batch on. Local: all ranks give the
   same. DDP_ERR_INVALID, with nothing changed: the program has said another number, or
   DDP_TAIL_DROP would drop all samples. */
ddp_status ddp_loader_set_accumulate(ddp_loader *loader, int accumulate);

/* Goes on as rank `rank` of `ranks`, with updates of as many samples, which take more batches if the ranks are fewer.
   Local: all ranks then seek the same place. After an error the loader is as it was. */
ddp_status ddp_loader_refit(ddp_loader *loader, int rank, int ranks);

typedef struct ddp_loader_state {
	int64_t epoch;
	int64_t samples;      /* of the epoch, delivered to all ranks together */
	int64_t global_batch; /* samples of an update, for messages */
	int64_t size;         /* samples in the dataset */
	uint64_t seed;
	bool sequential;
	ddp_tail tail;
	uint64_t digest;      /* of the dataset; 0: not known */
} ddp_loader_state;

/* Where the next ddp_loader_next() will read, and in which order. */
ddp_loader_state ddp_loader_get_state(const ddp_loader *loader);

/* Goes on where `state` was taken. DDP_ERR_INVALID, with nothing changed, if
   the loader's order is another one (dataset size, seed, shuffling or tail),
   naming both. */
ddp_status ddp_loader_seek(ddp_loader *loader, const ddp_loader_state *state);
