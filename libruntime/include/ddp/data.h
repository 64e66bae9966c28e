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

/* A source of samples of equal size. Threads of the loader call read(). Several threads call it at the same time
   if the loader has several readers or if loaders share a dataset; datasets of the functions below allow this.
   read() writes sample_bytes bytes to `sample`, an address of any alignment, and returns DDP_OK, or another status
   with a reason by ddp_set_error(). ddp_loader_next() returns that status with the batch. */
typedef struct ddp_dataset {
	int64_t size;        /* samples */
	size_t sample_bytes;
	ddp_status (*read)(void *self, int64_t index, void *sample);
	void (*close)(void *self);
	void *self;
	uint64_t digest;     /* a hash of the samples' contents; 0: unknown. ddp_loader_create() refuses datasets
	                        whose digests differ among ranks */
	uint64_t reserved[4]; /* 0 */
} ddp_dataset;

typedef enum ddp_token_format {
	DDP_TOKENS_BYTES = 0, /* any file: each byte is a token, vocabulary 256 */
	DDP_TOKENS_U16,       /* raw little-endian uint16 */
	DDP_TOKENS_LLMC       /* llm.c .bin: 256 int32 of header (magic 20240520), uint16 */
} ddp_token_format;

/*
 * Opens a token file as samples of length + 1 int32 tokens. Sample i starts at token i * length: inputs are the
 * first `length` tokens, and targets are shifted by one. [first, last), as fractions of all tokens, choose a
 * part, such as 0 and 0.9 for training. If there is no file of that name, `path` may be a pattern such as
 * "shard_*.bin" or "{a,b}.bin". The files that match are one dataset, each once, in the order of their names
 * (shard_2 before shard_10). Each alternative in braces must match, and no sample spans two files.
 * DDP_ERR_FORMAT: a file is cut short (the sentence names the byte) or has fewer than length + 1 tokens.
 */
DDP_API ddp_status ddp_tokens_open(const char *path, ddp_token_format format,
                                   int length, double first, double last,
                                   ddp_dataset *dataset);
DDP_API void ddp_dataset_close(ddp_dataset *dataset);

/* Samples of images: one byte of label, then the image [channels, height, width] of bytes. */
typedef struct ddp_image_shape {
	int channels, height, width;
} ddp_image_shape;

/*
 * Opens a pair of IDX files, the format of MNIST: images [count, height, width] of bytes, and labels [count].
 * DDP_ERR_FORMAT names the byte at which a file is damaged.
 */
DDP_API ddp_status ddp_idx_open(const char *images, const char *labels,
                                ddp_image_shape *shape, ddp_dataset *dataset);
/* Opens binary files of CIFAR-10 as one dataset in their order. read() refuses a label above 9. */
DDP_API ddp_status ddp_cifar10_open(const char *const *paths, int count,
                                    ddp_image_shape *shape, ddp_dataset *dataset);

enum { DDP_IMAGE_CHANNELS_MAX = 4 };

/* How ddp_transform_images() changes images. */
typedef struct ddp_image_transform {
	size_t size;                             /* sizeof(ddp_image_transform) */
	float mean[DDP_IMAGE_CHANNELS_MAX];      /* of each channel, on a scale from 0 to 1 */
	float deviation[DDP_IMAGE_CHANNELS_MAX]; /* of each channel, above 0; default 1 */
	int crop_padding;  /* width of a border of zeros around the image, from which an image of the old size is
	                      then cut out at random */
	bool flip;         /* mirror each image with a probability of one half */
	uint64_t seed;     /* of both random choices */
} ddp_image_transform;
#define DDP_IMAGE_TRANSFORM_FIELDS sizeof(ddp_image_transform), { 0, 0, 0, 0 }, { 1, 1, 1, 1 }, 0, false, 0
#define DDP_IMAGE_TRANSFORM { DDP_IMAGE_TRANSFORM_FIELDS }

/*
 * Turns `count` samples into images [count, height, width, channels] of (byte / 255 - mean) / deviation, and
 * labels [count]. Random choices depend only on the seed and on the sample's number: `first`, first + 1, ...
 * Give numbers that differ among ranks and batches, such as ((epoch * batches + batch) * world_size + rank)
 * * batch_size. Local.
 */
DDP_API ddp_status ddp_transform_images(const ddp_image_shape *shape,
                                        const ddp_image_transform *transform,
                                        const void *samples, int64_t count, uint64_t first,
                                        float *images, int32_t *labels);

typedef enum ddp_tail {
	DDP_TAIL_PAD = 0, /* repeat samples until all ranks have equally many, as PyTorch does by default */
	DDP_TAIL_DROP,    /* drop the rest (drop_last=True); a loader also drops the last incomplete update */
	DDP_TAIL_UNEVEN   /* each sample exactly once; some ranks get fewer */
} ddp_tail;

/*
 * Gives the same indices as PyTorch's DistributedSampler for the same arguments (from 214748364 samples on, as
 * PyTorch 2.6 and later). At most 2^32 - 1 samples.
 *
 * A checkpoint holds the place of a ddp_loader, but not that of a sampler. Before each ddp_checkpoint_save(), a
 * program with a sampler stores two numbers by ddp_model_set_user_state(): the epoch, and `samples`, the number
 * of the epoch's samples that all ranks together have used. After ddp_checkpoint_load() it reads them by
 * ddp_model_user_state(), calls ddp_sampler_set_place(), and goes on with indices[0]. The number of ranks may
 * change.
 */
typedef struct ddp_sampler ddp_sampler;
DDP_API ddp_status ddp_sampler_create(int64_t size, int world_size, int rank,
                                      uint64_t seed, bool shuffle, ddp_tail tail,
                                      ddp_sampler **sampler);
DDP_API ddp_status ddp_sampler_set_epoch(ddp_sampler *sampler, int64_t epoch);
/* Deals out the samples that are left of the epoch's order behind the first `samples`, 0 .. size - 1. */
DDP_API ddp_status ddp_sampler_set_place(ddp_sampler *sampler, int64_t epoch, int64_t samples);
/* This rank's indices of the epoch, or of what is left of it. The sampler owns them; they are valid until the next
   set_epoch or set_place. */
DDP_API const int64_t *ddp_sampler_indices(const ddp_sampler *sampler, int64_t *count);
DDP_API void ddp_sampler_free(ddp_sampler *sampler);

typedef struct ddp_loader_options {
	size_t size;      /* sizeof(ddp_loader_options) */
	int batch_size;   /* samples per rank and batch; required */
	uint64_t seed;
	bool sequential;  /* no shuffling */
	ddp_tail tail;
	int prefetch;     /* batches read ahead, at least one for each reader; default 2 */
	int readers;      /* threads that read, each a batch at a time; default 1. The order of batches does not
	                     depend on it. Each keeps this rank's indices, 8 bytes a sample */
	int accumulate;   /* batches of a rank in one update, so epochs end with an update: see below. Default
	                     DDP_AUTO: ddp_train() sets its own number; in other loops it is 1 */
	ddp_comm *comm;   /* the ranks that share out the samples; NULL: the world. A model on a
	                     communicator needs a loader on the same communicator */
	int64_t global_batch; /* samples of an update, of all ranks together, in place of accumulate: the same on any
	                     number of ranks. Each rank gets as many batches of an update as the samples take. Ranks
	                     may get one sample more or less than others, and the last batch may be short or empty.
	                     Default 0: batch_size * ranks * accumulate */
} ddp_loader_options;
#define DDP_LOADER_OPTIONS_FIELDS sizeof(ddp_loader_options), 0, 0, false, DDP_TAIL_PAD, 2, 1, DDP_AUTO, NULL, 0
#define DDP_LOADER_OPTIONS { DDP_LOADER_OPTIONS_FIELDS }

/*
 * An update of batch_size * ranks * accumulate samples holds the same samples on any number of ranks. Update u
 * of an epoch begins at sample u * (samples per update) of the epoch's order, and its samples are dealt to the
 * ranks in turn. An epoch consists of whole updates. The last update holds the remaining samples, so some of its
 * batches are short or empty; DDP_TAIL_DROP leaves it out.
 *
 * A run may go on from a checkpoint with updates of another size, at the sample where it was saved. If no update of the
 * new size begins there, updates of the rest of that epoch are counted from there, and the epoch may have fewer
 * batches. With DDP_TAIL_UNEVEN each sample still comes exactly once in the epoch.
 *
 * If global_batch is no multiple of batch_size * ranks, DDP_TAIL_PAD repeats no samples at the end of an epoch.
 *
 * On another number of ranks training still differs: in the last bits, because sums have another order; with
 * DDP_TAIL_PAD in the epoch's last update, in which up to ranks - 1 samples come twice; if the program does
 * something for each rank or batch, such as drawing random numbers; and with DDP_LOSS_MEAN, where each rank has
 * the same weight. A ddp_sampler does not know updates.
 */

typedef struct ddp_loader ddp_loader;
typedef struct ddp_batch {
	const void *data;   /* [samples, sample_bytes] without gaps, aligned to 64 bytes; valid until the next
	                       call */
	int64_t samples;    /* at an epoch's end, or with global_batch, it may be less than batch_size, even 0 */
	int64_t epoch;      /* from 0 */
	int64_t batch;      /* within the epoch, from 0 */
	uint64_t reserved[4];
} ddp_batch;

/* Makes a loader of `dataset`, which must not be closed before the loader is freed. All ranks get the same number
   of batches per epoch, and epochs follow one another without end. Collective. DDP_ERR_MISMATCH, on all ranks:
   their datasets or options differ, for instance because a file is still being copied to a node. Ranks compare
   sizes and ddp_dataset.digest. The digest of a file is made from some of its bytes. */
DDP_API ddp_status ddp_loader_create(ddp_context *context, const ddp_dataset *dataset,
                                     const ddp_loader_options *options,
                                     ddp_loader **loader);
/* Gets the next batch. An error of read() comes with its batch, and again with each further call. */
DDP_API ddp_status ddp_loader_next(ddp_loader *loader, ddp_batch *batch);
/* The number of batches that each rank gets in an epoch. */
DDP_API int64_t ddp_loader_batches_per_epoch(const ddp_loader *loader);
/* The number of batches that each rank gets for an update. It changes when ranks are lost: see ddp_survive(). */
DDP_API int ddp_loader_accumulation(const ddp_loader *loader);
/* Frees a loader. Local. */
DDP_API void ddp_loader_free(ddp_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
