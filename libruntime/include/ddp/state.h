/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/state.h: checkpoints.
 */
#ifndef DDP_STATE_H
#define DDP_STATE_H

#include "data.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- state ------------------------------------------------------------------ */

/*
 * Writes DIR/step-NNNNNNNN.safetensors: parameters under their names, the optimizer's state under
 * "optimizer.", the state of compression and local SGD under "ddp.", and the step, the loader's place and the
 * seed as metadata. Each tensor has a CRC-32C. Rank 0 writes under a temporary name, calls fsync, renames, and
 * calls fsync on the directory. It then removes all except the last `keep` (0: 3) checkpoints. If DIR has
 * checkpoints of later steps, training has gone back or begun again; they get names that end in ".aside".
 * Only rank 0 writes to DIR, and makes it if it is missing. The other ranks wait until it has finished, without
 * a timeout, and all ranks get the same result. Collective; loader may be NULL.
 *
 * One model at a time writes to DIR: the save of another model, in this program or another one, is DDP_ERR_STATE
 * until the first model is freed or saves elsewhere. It is also DDP_ERR_STATE if a rank was in the middle of an
 * update or a load has failed; then go on from the last checkpoint. DDP_ERR_NOT_FINITE: a trained parameter or
 * the optimizer's state is infinite or NaN; frozen parameters and buffers are saved as they are.
 *
 * When the world is broken, the calling rank writes alone. All ranks have the same parameters after the same
 * step, so let one survivor call it, or give each survivor its own directory. On one node, a rank reads the
 * state of a dead rank from the memory that they shared. Over several nodes with DDP_SHARD_AUTO, every node has
 * all state. State that was spread over nodes, or by DDP_SHARD_GRADIENTS, is lost: DDP_ERR_STATE.
 */
DDP_API ddp_status ddp_checkpoint_save(ddp_model *model, ddp_loader *loader,
                                       const char *dir, int keep);
/*
 * Does the same as ddp_checkpoint_save(), but a thread of rank 0 writes the file while training goes on. Rank 0
 * first copies the parameters and the optimizer's state, into memory that it keeps until the model is freed. If
 * there is no memory for the copy, it warns and writes at once. ddp_checkpoint_wait() waits until the file is on
 * the disk, and returns an error of writing on all ranks. The next save or load, and ddp_model_free(), also wait,
 * but only warn of an error of writing. After an error the earlier checkpoints are kept. Collective. When the world
 * is broken, this call works as ddp_checkpoint_save(), and ddp_checkpoint_wait() returns DDP_ERR_PEER on all ranks
 * except rank 0, because no other rank can know the result.
 */
DDP_API ddp_status ddp_checkpoint_save_async(ddp_model *model, ddp_loader *loader,
                                        const char *dir, int keep);
DDP_API ddp_status ddp_checkpoint_wait(ddp_model *model);
/*
 * Loads a file, or the newest complete checkpoint of a directory. If newer files of the directory are damaged, a
 * warning names them and the file that is loaded instead. DDP_ERR_IO: the disk cannot read a file, which may be
 * good. *step becomes the number of steps done, or 0 if the directory is missing or empty. Training then goes on
 * exactly as if it had not stopped. The number of ranks, batch_size and accumulate may change: the loader goes on
 * at the sample at which training stopped, and a warning tells if an update has another number of samples. Rank 0
 * reads and broadcasts. Collective. It may be called between any two calls of the model, and drops the gradients
 * and announcements of the step under way, even if it loads nothing.
 *
 * If a file does not fit the model or the loader, is damaged, or is cut short, that is an error, and model and
 * loader do not change. If the disk or the communicator fails after the file was verified, the model is partly
 * loaded: see ddp_model_load_params().
 *
 * Warnings name what differs from the checkpoint: the samples of the dataset (ddp_dataset.digest), and model
 * options, except those that change no result (bucket_mb, first_bucket_mb, shard, late_gather, memory, stream,
 * params_memory, grads_memory). Training goes on with the model's present options. If a parameter was frozen and
 * is now trained, its optimizer state begins anew; the state of a parameter that is now frozen is left out. The
 * learning rate of ddp_model_set_learning_rate() is restored, unless the option learning_rate of the model
 * differs from that of the saved model. A dynamic loss scale is restored.
 */
DDP_API ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader,
                                       const char *path, int64_t *step);

typedef struct ddp_load_options {
	size_t size;              /* sizeof(ddp_load_options) */
	const char *file_prefix;  /* the prefix that names have in the file, such as "transformer."; NULL: "" */
	const char *model_prefix; /* the prefix that they have in the model in its place; NULL: "". Tensors without
	                             the prefix, in the file or the model, are left alone */
	bool partial;             /* load the tensors that both have: see below */
} ddp_load_options;
#define DDP_LOAD_OPTIONS_FIELDS sizeof(ddp_load_options), NULL, NULL, false
#define DDP_LOAD_OPTIONS { DDP_LOAD_OPTIONS_FIELDS }

/*
 * Loads parameters and buffers alone, from a safetensors file of this or another program or from a directory's
 * newest checkpoint, to fine-tune a model or to use a part of one. Steps, optimizer state, loader and options do
 * not change. Tensors may be F32, F16, BF16 or F64; shapes must be equal. Without `partial`, the file must have
 * each tensor of the model and no other (PyTorch's strict=True); a checkpoint's optimizer state does not count.
 * With `partial`, the tensors with the same names are loaded, at least one; *loaded (may be NULL) becomes their
 * number. If a model is in several files, load each file with `partial`. options NULL: DDP_LOAD_OPTIONS.
 *
 * DDP_ERR_FORMAT: a tensor does not fit; the sentence names it, and the model is unchanged. If reading
 * (DDP_ERR_IO) or the communicator fails later, the model is partly loaded: steps, saves and this call are
 * DDP_ERR_STATE until ddp_checkpoint_load() succeeds. The same holds if ddp_checkpoint_load() or an average fails
 * half-way. Rank 0 reads, and all ranks get the tensors that it has read; the model's other tensors still need
 * ddp_model_broadcast_params(). It may be called between any two calls of the model, and drops the gradients and
 * announcements of the step under way. Collective.
 */
DDP_API ddp_status ddp_model_load_params(ddp_model *model, const char *path, const ddp_load_options *options,
                                   int *loaded);

/*
 * State of the program that goes with the model's checkpoints, such as that of its random generator. Each rank
 * sets its own state, which is copied. A checkpoint saves the last state of each rank, and
 * ddp_checkpoint_load() restores that of the same rank number, or none. When the world is broken, a rank that
 * saves alone saves its own state only.
 */
enum { DDP_USER_STATE_MAX = 65536 }; /* bytes */
DDP_API ddp_status ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes);
/* Returns the state; NULL and 0 if there is none. Valid until the next ddp_model_set_user_state() or load. */
DDP_API const void *ddp_model_user_state(const ddp_model *model, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
