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
 * calls fsync on the directory. It then removes all but the last `keep` (0: 3) checkpoints. Checkpoints of
 * later steps than this one, from before training went back or began again, get names that end in ".aside".
 * Only rank 0 touches DIR, and makes it if it is missing. The other ranks wait as long as it takes, and all
 * ranks get the same result. Collective; loader may be NULL.
 *
 * One model at a time writes to DIR: the save of another model, in this program or another, is DDP_ERR_STATE
 * until the first model is freed or saves elsewhere. DDP_ERR_STATE also if a rank was in the middle of an
 * update or a load has failed; go on from the last checkpoint then. DDP_ERR_NOT_FINITE: a trained parameter or
 * the optimizer's state is infinite or NaN; frozen parameters and buffers are saved as they are.
 *
 * When the world is broken, the calling rank writes alone. All ranks have the same parameters after the same
 * step, so let one survivor call it, or give each its own directory. On one node, a rank reads the state of a
 * dead rank from the memory that they shared; over several nodes, DDP_SHARD_AUTO has all state on every node.
 * State that was spread over nodes, or by DDP_SHARD_GRADIENTS, is lost: DDP_ERR_STATE.
 */
DDP_API ddp_status ddp_checkpoint_save(ddp_model *model, ddp_loader *loader,
                                       const char *dir, int keep);
/*
 * ddp_checkpoint_save() whose file a thread of rank 0 writes while training goes on. Rank 0 first copies the
 * parameters and the optimizer's state, into memory that it keeps until the model is freed; without memory for
 * the copy it warns and writes at once. ddp_checkpoint_wait() waits until the file is on the disk, and returns an
 * error of writing on all ranks. The next save or load, and ddp_model_free(), also wait, but then an error of
 * writing is a warning. After an error the checkpoints before are kept. Collective. When the world is broken,
 * this is ddp_checkpoint_save(), and ddp_checkpoint_wait() is DDP_ERR_PEER on all ranks but rank 0, which alone
 * can know.
 */
DDP_API ddp_status ddp_checkpoint_save_async(ddp_model *model, ddp_loader *loader,
                                        const char *dir, int keep);
DDP_API ddp_status ddp_checkpoint_wait(ddp_model *model);
/*
 * Loads a file, or the newest complete checkpoint of a directory. It passes over damaged files with a warning
 * that names them and the file that it takes; a file that the disk cannot read may be good, and is DDP_ERR_IO.
 * *step is the number of steps done, or 0 if the directory is missing or empty. Training goes on exactly as if
 * it had not stopped, on another number of ranks too if a global batch of the loader begins where it stopped.
 * Rank 0 reads and broadcasts. Collective. It may be called between any two calls of the model, and drops the
 * gradients and announcements of the step under way, even if it loads nothing.
 *
 * A file that does not fit the model or the loader, is damaged, or is cut short is an error that changes
 * neither. If the disk or the communicator fails after the file was verified, the model is partly loaded: see
 * ddp_model_load_params().
 *
 * Warnings name what differs from the checkpoint: the samples of the dataset (ddp_dataset.digest), and model
 * options, except those that change no result (bucket_mb, first_bucket_mb, shard, late_gather, memory, stream,
 * params_memory, grads_memory). The model's present options count. A parameter that was frozen and is now
 * trained begins with new optimizer state; the state of a parameter that is now frozen is left out. The
 * learning rate of ddp_model_set_learning_rate() comes back, unless the model was made with another one than
 * then. So does a dynamic loss scale.
 */
DDP_API ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader,
                                       const char *path, int64_t *step);

typedef struct ddp_load_options {
	size_t size;              /* sizeof(ddp_load_options) */
	const char *file_prefix;  /* names in the file begin with this, where ... */
	const char *model_prefix; /* ... names in the model begin with this, such as "transformer." and NULL.
	                             Other tensors of both are left alone. NULL: "" */
	bool partial;             /* not strict: see below */
} ddp_load_options;
#define DDP_LOAD_OPTIONS_FIELDS sizeof(ddp_load_options), NULL, NULL, false
#define DDP_LOAD_OPTIONS { DDP_LOAD_OPTIONS_FIELDS }

/*
 * Loads parameters and buffers alone, from a safetensors file of this or another program or from a directory's
 * newest checkpoint, to fine-tune a model or to take over a part of one. Steps, optimizer state, loader and
 * options stay. Tensors may be F32, F16, BF16 or F64. Without `partial`, the file must have each tensor of the
 * model and no other (PyTorch's strict=True), apart from a checkpoint's other tensors. With `partial`, the
 * tensors with the same names are loaded, at least one; *loaded (may be NULL) is their number. Load a model of
 * several files by a partial call for each. Shapes must be equal. options NULL: strict, equal names.
 *
 * DDP_ERR_FORMAT names a tensor that does not fit; the model is then unchanged. If reading (DDP_ERR_IO) or the
 * communicator fails later, the model is partly loaded: steps, saves and this call are DDP_ERR_STATE until
 * ddp_checkpoint_load() succeeds. The same holds if ddp_checkpoint_load() or an average fails half-way. Rank 0
 * reads, and all ranks get what it read; other tensors still need ddp_model_broadcast_params(). It may be called
 * between any two calls of the model, and drops the gradients and announcements of the step under way.
 * Collective.
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
/* The state; NULL and 0 if there is none. Valid until the next ddp_model_set_user_state() or load. */
DDP_API const void *ddp_model_user_state(const ddp_model *model, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
