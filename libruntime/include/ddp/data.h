/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/data.h: datasets, image transforms, the sampler and the loader.
 */
#ifndef DDP_DATA_H
#define DDP_DATA_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data ------------------------------------------------------------------ */

/* A source of equally large samples. read() is called from a thread of the loader, from
   several at the same time where the loader has several readers, and by loaders that share
   a dataset: those that are opened below may be, from any thread. It fills in all of `sample`,
   sample_bytes, which may lie at any address, and returns DDP_OK; or another status, with the
   reason by ddp_set_error(), which the batch's ddp_loader_next() then returns. One of your own is
   zero where it is not set. */
typedef struct ddp_dataset {
	int64_t size;        /* samples */
	size_t sample_bytes;
	ddp_status (*read)(void *self, int64_t index, void *sample);
	void (*close)(void *self);
	void *self;
	uint64_t digest;     /* of what the samples hold; 0: not known. Where ranks give others to
	                        ddp_loader_create(), it refuses them */
	uint64_t reserved[4]; /* 0 */
} ddp_dataset;

typedef enum ddp_token_format {
	DDP_TOKENS_BYTES = 0, /* any file: each byte is a token, vocabulary 256 */
	DDP_TOKENS_U16,       /* raw little-endian uint16 */
	DDP_TOKENS_LLMC       /* llm.c .bin: 256 int32 of header (magic 20240520), uint16 */
} ddp_token_format;

/*
 * Opens a token file as samples of length + 1 int32 tokens; sample i starts at
 * token i * length (inputs are the first `length`, targets are shifted by
 * one). If there is no file of that name, `path` may be a pattern of the shell's, such as
 * "shard_*.bin" or "{a,b}.bin": the files that match, each once, are one dataset, in the order
 * of their names, with shard_2 before shard_10, and samples do not go over from one to the next.
 * Each alternative in braces must match.
 * DDP_ERR_FORMAT if a file is cut short, naming the byte, or has fewer than length + 1
 * tokens. [first, last) as fractions of all tokens choose a part: 0, 0.9 to train on.
 */
DDP_API ddp_status ddp_tokens_open(const char *path, ddp_token_format format,
                                   int length, double first, double last,
                                   ddp_dataset *dataset);
DDP_API void ddp_dataset_close(ddp_dataset *dataset);

/* Images of bytes, and their labels: a sample is a byte of label, then the image
   [channels, height, width]. */
typedef struct ddp_image_shape {
	int channels, height, width;
} ddp_image_shape;

/*
 * Opens a pair of IDX files, in which MNIST comes: images [count, height, width] of bytes, and
 * labels [count]. DDP_ERR_FORMAT names the byte at which a file is damaged.
 */
DDP_API ddp_status ddp_idx_open(const char *images, const char *labels,
                                ddp_image_shape *shape, ddp_dataset *dataset);
/* Opens CIFAR-10's binary files as one dataset, in their order. A label above 9 is an
   error of read(). */
DDP_API ddp_status ddp_cifar10_open(const char *const *paths, int count,
                                    ddp_image_shape *shape, ddp_dataset *dataset);

enum { DDP_IMAGE_CHANNELS_MAX = 4 };

/* What becomes of images on their way to a model. */
typedef struct ddp_image_transform {
	size_t size;                             /* sizeof(ddp_image_transform) */
	float mean[DDP_IMAGE_CHANNELS_MAX];      /* of each channel, whose numbers are 0 to 1 */
	float deviation[DDP_IMAGE_CHANNELS_MAX]; /* likewise; 0: 1 */
	int crop_padding;  /* cut at random from the image with so many zero bytes around it */
	bool flip;         /* mirror about every other image */
	uint64_t seed;     /* of both */
} ddp_image_transform;

/*
 * Gives `count` samples as images [count, height, width, channels], of (byte / 255 - mean) /
 * deviation, and labels [count]. What is random hangs on the seed and the sample's number
 * alone: `first`, first + 1, ... So give numbers that differ over ranks and batches, such as
 * (epoch * batches + batch) * world size + rank, times the batch size. Local.
 */
DDP_API ddp_status ddp_transform_images(const ddp_image_shape *shape,
                                        const ddp_image_transform *transform,
                                        const void *samples, int64_t count, uint64_t first,
                                        float *images, int32_t *labels);

typedef enum ddp_tail {
	DDP_TAIL_PAD = 0, /* repeat samples until ranks are even: PyTorch's default */
	DDP_TAIL_DROP,    /* drop the tail: drop_last=True; a loader then drops the
	                     last incomplete update, too */
	DDP_TAIL_UNEVEN   /* each sample exactly once; some ranks get fewer */
} ddp_tail;

/*
 * DistributedSampler of PyTorch: the same indices for the same arguments (for
 * 214748364 samples and more: as PyTorch 2.6 and later). At most 2^32 - 1.
 *
 * A checkpoint knows nothing of a sampler. A loop of one's own keeps the epoch, and how many of
 * the epoch's samples all ranks have done together, by ddp_model_set_user_state() before each
 * ddp_checkpoint_save(), on all ranks. After ddp_checkpoint_load() it takes them by
 * ddp_model_user_state(), calls ddp_sampler_set_epoch(), and goes on with indices[samples /
 * world_size], on any number of ranks that divides `samples`. A ddp_loader does this by itself.
 */
typedef struct ddp_sampler ddp_sampler;
DDP_API ddp_status ddp_sampler_create(int64_t size, int world_size, int rank,
                                      uint64_t seed, bool shuffle, ddp_tail tail,
                                      ddp_sampler **sampler);
DDP_API ddp_status ddp_sampler_set_epoch(ddp_sampler *sampler, int64_t epoch);
/* This rank's indices of the epoch; owned by the sampler until set_epoch. */
DDP_API const int64_t *ddp_sampler_indices(const ddp_sampler *sampler, int64_t *count);
DDP_API void ddp_sampler_free(ddp_sampler *sampler);

typedef struct ddp_loader_options {
	size_t size;      /* sizeof(ddp_loader_options) */
	int batch_size;   /* samples per rank and batch; required */
	uint64_t seed;
	bool sequential;  /* no shuffling */
	ddp_tail tail;
	int prefetch;     /* batches read ahead; 0: 2, and at least one for each reader */
	int readers;      /* threads that read, each a batch at a time; 0: 1. Each keeps the order of
	                     this rank's samples, 8 bytes a sample. What they read comes in the order
	                     of one */
	int accumulate;   /* batches of a rank that make an update, so that epochs end with one: see
	                     below. 0: ddp_train() sets its own; in a loop of one's own 1 */
	ddp_comm *comm;   /* the ranks that share out the samples; NULL: the world. A model on a
	                     communicator needs a loader on the same one: each of its ranks then gets
	                     its share, and ranks of other communicators may get the same samples */
} ddp_loader_options;

/*
 * An update of batch_size * ranks * accumulate samples holds the same samples on any number of
 * ranks: update u of an epoch is of the epoch's order from sample u times that on, dealt to the
 * ranks like cards, and an epoch is of whole updates. Its last one holds what is left, so that
 * some of its batches are short or empty; DDP_TAIL_DROP leaves it out.
 * Other numbers of ranks still differ in: the last bits, as sums are in another order; with
 * DDP_TAIL_PAD, the epoch's last update, in which up to ranks - 1 samples come twice; what a
 * program does by rank or by batch (a random generator, statistics of a batch); and
 * DDP_LOSS_MEAN, by which each rank counts alike however many samples it has. A ddp_sampler
 * knows no updates: of its indices, a loop of one's own cuts the tail.
 */

typedef struct ddp_loader ddp_loader;
typedef struct ddp_batch {
	const void *data;   /* [samples, sample_bytes], one behind the other without a gap, aligned to
	                       64 bytes; valid until the next call */
	int64_t samples;    /* may be below batch_size, even 0, at an epoch's end */
	int64_t epoch;      /* from 0 */
	int64_t batch;      /* within the epoch, from 0 */
	uint64_t reserved[4];
} ddp_batch;

/* The loader reads `dataset`, which must not be closed before it is freed.
   Every rank gets the same number of batches per epoch; epochs follow one
   another without end. Collective: DDP_ERR_MISMATCH, on all ranks, names what they
   gave differently, such as the size of a file that is still being copied to
   one of the nodes. Of files of the same sizes, ranks compare some bytes: those that
   ddp_dataset.digest is of. */
DDP_API ddp_status ddp_loader_create(ddp_context *context, const ddp_dataset *dataset,
                                     const ddp_loader_options *options,
                                     ddp_loader **loader);
/* An error of read() comes with the batch it belongs to, and again with each
   further call. */
DDP_API ddp_status ddp_loader_next(ddp_loader *loader, ddp_batch *batch);
DDP_API int64_t ddp_loader_batches_per_epoch(const ddp_loader *loader);
DDP_API void ddp_loader_free(ddp_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
