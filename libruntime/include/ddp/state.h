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
 * Writes DIR/step-NNNNNNNN.safetensors: parameters under their names,
 * optimizer state under "optimizer.", what ways of reducing keep under "ddp.", step,
 * loader position and seed as metadata. Rank 0 writes, under a temporary name, fsynced, renamed,
 * directory fsynced; then all but the last `keep` (0: 3) are removed, and later
 * steps than this one, which training has left by going back or by beginning
 * anew, get names that end in ".aside". One model at a time writes to DIR: another
 * one's save, of this program or of another run, gets DDP_ERR_STATE until the model that saved
 * there last is freed, or saves elsewhere. Each
 * tensor carries a CRC-32C. Only rank 0 touches DIR (made if absent), and the
 * others wait however long it takes; success or failure is the same on all
 * ranks. Collective; loader may be NULL.
 * Once the world is broken, the calling rank writes alone, what it has: all
 * ranks have the same parameters after the same step, so let one of those left
 * call it, or give each a directory of its own. The state that a dead rank
 * kept (DDP_SHARD_AUTO, or DDP_SHARD_STATE on one node) is read from its memory by a rank of its
 * node, which outlives it; with DDP_SHARD_AUTO over several nodes any node has all of it. What is spread over nodes, or DDP_SHARD_GRADIENTS, cannot be saved
 * any more: DDP_ERR_STATE.
 * DDP_ERR_STATE if a rank was in the middle of an update, or a load failed:
 * what there is belongs to no step, the last checkpoint is where to go on.
 * DDP_ERR_NOT_FINITE if a parameter that is trained, or the optimizer's state, holds an
 * infinity or a NaN; what is frozen (a mask, say) and buffers are saved as they are.
 */
DDP_API ddp_status ddp_checkpoint_save(ddp_model *model, ddp_loader *loader,
                                       const char *dir, int keep);
/*
 * The same, but rank 0 only copies what is to be written, and a thread of its own writes it
 * while training goes on. It takes memory for the copy, of parameters and optimizer's state,
 * until the model is freed. ddp_checkpoint_wait() waits until it is on the disk: an error of
 * writing is its own, on all ranks. The next save, or load, also waits, but then that is a
 * warning. So does ddp_model_free(), on all ranks, if no call has waited before. All are collective. After an error the checkpoints
 * before are kept, as ever. Where there is no memory for the copy, that is a warning, and
 * begin writes at once. Once the world is broken, begin is ddp_checkpoint_save(), and wait is
 * of rank 0's own thread: on the others it is DDP_ERR_PEER, for they cannot know.
 */
DDP_API ddp_status ddp_checkpoint_save_async(ddp_model *model, ddp_loader *loader,
                                        const char *dir, int keep);
DDP_API ddp_status ddp_checkpoint_wait(ddp_model *model);
/*
 * Loads a file, or a directory's newest complete checkpoint, passing over
 * broken ones, with a warning that names the file and the one that is loaded in its place. What
 * the disk cannot read (DDP_ERR_IO) may be good, and is an error. *step is the number of steps done, 0 if the
 * directory is absent or has none. Exact: training goes on as if it had not
 * stopped, also with another batch and world, if a global batch of the loader
 * begins where it had stopped. If the loader's dataset holds other samples than then
 * (ddp_dataset.digest), that is a warning. Model options that were others then are named in
 * warnings, and stay, but for those that change no result: bucket_mb, first_bucket_mb, shard,
 * late_gather, memory, stream, params_memory and grads_memory. Of hook, it is only known whether
 * there was one, and of the parameters, whether all had the same kinds, groups and no_decay: what
 * was frozen and is trained now begins with a new optimizer's state, and the state of what is
 * frozen now is left out;
 * loss_scale is named with DDP_SCALING_FIXED only. The learning rate that ddp_model_set_learning_rate()
 * had set comes back, unless the model was made with another one than then; so does the scale
 * to which DDP_SCALING_DYNAMIC had come.
 * A file that does not fit the model or the loader, is damaged or cut short
 * is an error, and neither is changed. If the disk or the communicator fails after the file was
 * verified, the model is loaded in part: see ddp_model_load_params(). Rank 0 reads, the others get the
 * tensors by broadcast. Collective. Between any two calls of the model: what the
 * step under way has of gradients and announcements is forgotten, also if
 * nothing is loaded.
 */
DDP_API ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader,
                                       const char *path, int64_t *step);

typedef struct ddp_load_options {
	size_t size;              /* sizeof(ddp_load_options) */
	const char *file_prefix;  /* the file's names begin with it, */
	const char *model_prefix; /* where the model's begin with this: "transformer." and NULL, say;
	                             what begins otherwise, in the model or in the file, is left
	                             alone. NULL: "" */
	bool partial;             /* not strict: see below */
} ddp_load_options;

/*
 * Loads parameters alone, what is frozen and buffers too, from a safetensors file of this or
 * another program, or a directory's newest checkpoint: to fine-tune a model, or to take over a
 * part of one. Steps, the optimizer's state, the loader and the options stay as they are. Tensors
 * may be F32, F16, BF16 or F64.
 *
 * Unless it is partial, the file has each tensor of the model, and no other (PyTorch's
 * strict=True), except for what a checkpoint holds beside parameters. A partial one takes what
 * both have by name, at least one: *loaded (NULL: not told) is how many. A model of several
 * files is loaded by a partial call for each. Shapes must be the same in any case.
 *
 * options NULL: strict, with the same names. DDP_ERR_FORMAT names the tensor that does not fit.
 * Names, shapes and types are compared before the first value is stored, so after such an error the
 * model is as it was. If reading (DDP_ERR_IO) or the communicator fails later, the model holds a part
 * of the new values. Steps, saves and ddp_model_load_params() are then DDP_ERR_STATE until
 * ddp_checkpoint_load() succeeds; without a checkpoint, make the model anew. The same holds after a
 * ddp_checkpoint_load() or an average that fails half-way.
 * Rank 0 reads, and all ranks have what it read: what is not loaded still needs
 * ddp_model_broadcast_params(), before or after. Between any two calls of the model; what the step
 * under way has of gradients and announcements is forgotten. Collective.
 */
DDP_API ddp_status ddp_model_load_params(ddp_model *model, const char *path, const ddp_load_options *options,
                                   int *loaded);

/*
 * State of the program's own that goes with the model's checkpoints, such as that of
 * its random generator: each rank gives its own, which is copied. A checkpoint saves
 * what each had given last, and ddp_checkpoint_load() puts in its place what the rank
 * of the same number had given then: nothing, if there was none. Once the world is
 * broken, the rank that saves alone saves its own only.
 */
enum { DDP_USER_STATE_MAX = 65536 }; /* bytes */
DDP_API ddp_status ddp_model_set_user_state(ddp_model *model, const void *state, size_t bytes);
/* NULL and 0 if there is none. Valid until the next ddp_model_set_user_state() or load. */
DDP_API const void *ddp_model_user_state(const ddp_model *model, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
