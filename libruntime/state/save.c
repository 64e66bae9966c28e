/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a model with all its ranks, of which rank 0 writes: at once, or, from a copy, in a
   thread of its own while training goes on. */
#include "state/save.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/path.h"
#include "base/thread.h"
#include "context.h"
#include "data/loader.h"
#include "kernels.h"
#include "reduce/model_state.h"
#include "reduce/tensors.h"
#include "state/leader.h"
#include "state/lock.h"
#include "state/metadata.h"
#include "state/store.h"
#include "state/user.h"
#include "watch/watch.h"

enum { KEEP_DEFAULT = 3 };

/* ---- room for a copy ------------------------------------------------------------------ */

/* Memory for a copy of a model, which a thread of its own may fill with pages. The struct begins as zeros. */
struct room {
	float *memory; /* [elements], or NULL */
	int64_t elements;
	pthread_t thread;
	bool fills; /* the thread is not joined yet */
};

static size_t room_bytes(const struct room *room)
{
	return (size_t)room->elements * sizeof(float);
}

static void *fill(void *argument)
{
	const struct room *room = argument;
	volatile char *bytes = (volatile char *)room->memory;
	const size_t page = ddp_system_page_bytes();

	for (size_t at = 0; at < room_bytes(room); at += page)
		bytes[at] = 0;
	return NULL;
}

static void end_filling(struct room *room)
{
	if (room->fills)
		pthread_join(room->thread, NULL);
	room->fills = false;
}

static void room_free(struct room *room)
{
	end_filling(room);
	ddp_pages_free(room->memory, room_bytes(room));
	*room = (struct room){ 0 };
}

/* Makes room for at least so many elements. What was in it may be lost. Afterwards no thread writes there. False: there
   is no memory, and no room any more. */
static bool room_take(struct room *room, int64_t elements)
{
	end_filling(room);
	if (elements <= room->elements)
		return true;
	room_free(room);
	room->elements = elements;
	room->memory = ddp_pages_alloc(room_bytes(room));
	if (room->memory == NULL)
		room->elements = 0;
	return room->memory != NULL;
}

/* After room_take(): lets a thread write the pages of memory that nobody has written yet. A page of new memory costs
   its first writer the time until the system has found and cleared it, which on virtual machines may be a second for
   each 300 MB. If no thread can be started, the pages come later. */
static void room_fill(struct room *room)
{
	room->fills = room->elements > 0 && ddp_thread_start(&room->thread, fill, room) == 0;
}

/* ---- the directory's owner --------------------------------------------------------- */

/* Goes with the model of the rank that writes. */
struct owner {
	ddp_model *model;
	ddp_store_lock *lock;
	struct background *background; /* a save that another thread writes, or NULL */
	struct room copies;            /* what it writes */
	char dir[];
};

static ddp_status end_background(struct owner *owner);
static ddp_status await_file(ddp_model *model);

static void let_go(void *attached)
{
	struct owner *owner = attached;

	if ((owner->model->saves ? await_file(owner->model) : end_background(owner)) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	ddp_store_lock_release(owner->lock);
	room_free(&owner->copies);
	free(owner);
}

/* Goes with the model of the other ranks once a save was begun. Without it they would wait for rank 0 in
   ddp_finalize(), which has a deadline. */
static void follow(void *attached)
{
	ddp_model *model = attached;

	if (model->saves)
		(void)await_file(model);
}

void ddp_save_follow(ddp_model *model, bool saves)
{
	model->saves = saves;
	if (saves && model->attached == NULL)
		ddp_model_attach(model, model, follow);
}

static struct owner *owner_of(const ddp_model *model)
{
	return model->attached != model ? model->attached : NULL;
}

static ddp_store_writer writer_of(const ddp_model *model)
{
	const ddp_job *job = &model->context->job;
	ddp_store_writer writer = { .job_id = job->job_id, .step_id = job->step_id, .requeues = model->context->requeues,
	                      .restarts = job->restart_count };

	snprintf(writer.name, sizeof(writer.name), "rank %d of job %" PRIu32 ".%" PRIu32 " on %s, process %ld",
	         job->rank, job->job_id, job->step_id, job->hostname, (long)getpid());
	return writer;
}

static ddp_status take_lock(ddp_model *model, const char *dir, const ddp_store_writer *writer)
{
	struct owner *owner = calloc(1, sizeof(*owner) + strlen(dir) + 1);
	if (owner == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the record of checkpoint directory %s", dir);
	owner->model = model;
	strcpy(owner->dir, dir);
	ddp_status status = ddp_store_lock_take(dir, writer, model, &owner->lock);
	if (status != DDP_OK) {
		free(owner);
		return status;
	}
	ddp_model_attach(model, owner, let_go);
	return DDP_OK;
}

/* Makes sure that this model owns `dir`, from now until the model is freed or saves
   elsewhere. */
static ddp_status own_directory(ddp_model *model, const char *dir, const ddp_store_writer *writer)
{
	const struct owner *owner = owner_of(model);

	if (owner != NULL && strcmp(owner->dir, dir) == 0) {
		if (ddp_store_lock_holds(owner->lock, dir))
			return DDP_OK;
		ddp_status status = access(dir, F_OK) == 0 ? ddp_store_lock_check(dir, writer) : DDP_OK;
		if (status != DDP_OK)
			return status;
		ddp_log(DDP_LOG_WARN, "checkpoint directory %s is not the one any more that this run has "
		        "written to: it was removed, replaced or unmounted, and with it the checkpoints "
		        "before; it is made anew", dir);
	}
	return take_lock(model, dir, writer);
}

/* ---- save ------------------------------------------------------------------------- */

struct save {
	const char *dir;
	char *absolute; /* rank 0: the same, from the root */
	int keep;
	bool alone; /* the world is broken */
	bool owns;
	ddp_later later; /* files that were there before */
	int world_size;
	int threads; /* of the program's thread: OpenMP's number is each thread's own */
	ddp_position position;
	ddp_store_writer writer;
	ddp_users users; /* rank 0, and who saves alone */
	ddp_tensors tensors; /* empty: from memory that the writer reaches */
	ddp_model *model;
};

/* Lists what the file is to hold: it leaves out a tensor of zeros that it may lack. A resume would take a file that is
   not finite, as the newest one, and train on from it in vain. */
static ddp_status list_finite(const ddp_tensors *tensors, ddp_safetensors_tensor *all, int *count)
{
	for (int i = 0; i < tensors->count; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		const bool anything = tensor->untrained && !tensor->optional;
		const float largest = anything ? 1 : dk_largest(tensor->data, ddp_tensor_elements(tensor));
		if (!tensor->untrained && !isfinite(largest))
			return ddp_fail(DDP_ERR_NOT_FINITE, "tensor %s holds an infinity or a NaN; the "
			                "checkpoints before are kept: go back to one, with a lower learning "
			                "rate", tensor->name);
		if (!tensor->optional || largest != 0)
			all[(*count)++] = (ddp_safetensors_tensor){
				.name = tensor->name, .ndim = tensor->ndim, .shape = tensor->shape, .data = tensor->data,
			};
	}
	return DDP_OK;
}

/* The program may chdir() before another thread has written. */
static ddp_status resolve_directory(struct save *save)
{
	ddp_status status = ddp_path_absolute("checkpoint directory", save->dir, &save->absolute);

	if (status == DDP_OK)
		save->dir = save->absolute;
	return status;
}

/* Becomes the directory's owner, and lists what is there, and what is to be written. */
static ddp_status collect(struct save *save)
{
	dk_set_threads(save->threads);
	ddp_status status = resolve_directory(save);
	if (status != DDP_OK)
		return status;
	status = own_directory(save->model, save->dir, &save->writer);
	save->owns = status == DDP_OK;
	/* It may be rank 0 that owns it, and lives; what is saved comes first then. But another
	   model's files are no checkpoints of this one. */
	if (status == DDP_ERR_STATE && save->alone && !ddp_store_lock_is_here(save->dir)) {
		ddp_log(DDP_LOG_WARN, "%s; this rank writes there, too, since the job has failed",
		        ddp_last_error());
		status = DDP_OK;
	}
	if (status != DDP_OK)
		return status;
	if (save->owns)
		ddp_store_list_later(save->dir, save->position.step, &save->later);
	return ddp_model_list(save->model, save->alone, &save->tensors);
}

static ddp_status write_file(const struct save *save)
{
	const int most = save->tensors.count + save->users.ranks;
	ddp_safetensors_tensor *all = calloc((size_t)most + 1, sizeof(*all));
	ddp_metadata metadata;
	int count = 0;

	if (all == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "checkpoint directory %s: no memory for a list of %d tensors", save->dir, most);
	/* Tensors are in the host's memory, where the program's own queue may not reach. */
	dk_queue *before = dk_use(NULL);
	ddp_status status = list_finite(&save->tensors, all, &count);
	dk_use(before);
	if (status == DDP_OK) {
		count += ddp_users_tensors(&save->users, all + count);
		ddp_metadata_write(&save->position, save->world_size, &metadata);
		status = ddp_store_write(save->dir, save->position.step, all, count, metadata.pairs, metadata.count, save->keep,
		                         save->owns ? &save->later : NULL, &save->writer);
	}
	free(all);
	return status;
}

static ddp_status save_file(void *argument)
{
	struct save *save = argument;
	ddp_status status = collect(save);

	return status == DDP_OK ? write_file(save) : status;
}

/* ---- while training goes on ---------------------------------------------------------------- */

enum { COPY_GRAIN = 1 << 18, REASON_MAX = 1024 };

/* A save whose tensors are all in memory of its own. */
struct background {
	pthread_t thread;
	struct save save;
	ddp_status status;
	char reason[REASON_MAX];
};

static void *write_background(void *argument)
{
	struct background *background = argument;

	dk_set_threads(1); /* the others compute */
	background->status = write_file(&background->save);
	if (background->status != DDP_OK)
		snprintf(background->reason, sizeof(background->reason), "%s", ddp_last_error());
	return NULL;
}

static void free_save(struct save *save)
{
	ddp_users_free(&save->users);
	ddp_tensors_free(&save->tensors);
	free(save->later.steps);
	free(save->absolute);
}

static ddp_status not_saved(ddp_status status, int64_t step)
{
	return ddp_fail_context(status, "checkpoint of step %" PRId64 " was not saved", step);
}

static ddp_status end_background(struct owner *owner)
{
	struct background *background = owner->background;

	if (background == NULL)
		return DDP_OK;
	owner->background = NULL;
	pthread_join(background->thread, NULL);
	ddp_status status = background->status;
	if (status != DDP_OK)
		not_saved(ddp_fail(status, "%s", background->reason), background->save.position.step);
	free_save(&background->save);
	free(background);
	return status;
}

struct copy {
	float *to;
	const float *from;
};

static void copy_span(void *argument, int64_t first, int64_t last)
{
	const struct copy *copy = argument;

	memcpy(copy->to + first, copy->from + first, (size_t)(last - first) * sizeof(float));
}

static int64_t elements_to_copy(const ddp_tensors *tensors)
{
	int64_t elements = 0;

	for (int i = 0; i < tensors->count; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		elements += tensor->own || tensor->data == NULL ? 0 : ddp_tensor_elements(tensor);
	}
	return elements;
}

static ddp_status copy_tensors(struct owner *owner, ddp_tensors *tensors)
{
	const int64_t elements = elements_to_copy(tensors);

	if (!room_take(&owner->copies, elements))
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a copy of the model (%" PRId64 " bytes)",
		                elements * (int64_t)sizeof(float));
	float *next = owner->copies.memory;
	for (int i = 0; i < tensors->count; i++) {
		ddp_tensor *tensor = &tensors->list[i];
		const int64_t count = ddp_tensor_elements(tensor);
		if (tensor->own)
			continue;
		dk_parallel(count, COPY_GRAIN, copy_span, &(struct copy){ .to = next, .from = tensor->data });
		tensor->data = next;
		next += count;
	}
	return DDP_OK;
}

/* Leaves the save's memory to the thread that writes it. DDP_ERR_NOMEM: the save is as it
   was, but for where its tensors are. */
static ddp_status start_background(struct save *save)
{
	struct owner *owner = owner_of(save->model);
	ddp_status status = copy_tensors(owner, &save->tensors);

	if (status != DDP_OK)
		return status;
	struct background *background = calloc(1, sizeof(*background));
	if (background == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to write it while training goes on");
	background->save = *save;
	background->save.dir = owner->dir;
	const int failed = ddp_thread_start(&background->thread, write_background, background);
	if (failed != 0) {
		free(background);
		return ddp_fail_errno(DDP_ERR_NOMEM, failed, "cannot start a thread that writes it (see ulimit -u)");
	}
	owner->background = background;
	save->model->saves = true; /* also if the other ranks do not hear of it */
	save->users = (ddp_users){ 0 };
	save->tensors = (ddp_tensors){ 0 };
	save->later = (ddp_later){ 0 };
	save->absolute = NULL;
	return DDP_OK;
}

static ddp_status begin_file(void *argument)
{
	struct save *save = argument;
	ddp_status status = collect(save);

	if (status != DDP_OK || start_background(save) == DDP_OK)
		return status;
	ddp_log(DDP_LOG_WARN, "checkpoint of step %" PRId64 ": %s; training waits until it is written",
	        save->position.step, ddp_last_error());
	return write_file(save);
}

/* On rank 0. */
static ddp_status end_file(void *argument)
{
	struct owner *owner = owner_of(argument);

	return owner != NULL ? end_background(owner) : DDP_OK;
}

static ddp_status await_file(ddp_model *model)
{
	const bool begun = model->saves;

	model->saves = false;
	if (ddp_comm_broken(model->comm))
		return end_file(model);
	return begun ? ddp_leader_run(model, end_file, model, NULL, 0) : DDP_OK;
}

ddp_status ddp_checkpoint_wait(ddp_model *model)
{
	if (model == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_checkpoint_wait(): the model is NULL");
	ddp_comm *comm = model->comm;
	if (ddp_comm_rank(comm) != 0 && ddp_comm_broken(comm))
		return ddp_fail(DDP_ERR_PEER, "whether rank 0 has written the checkpoint that was begun is not "
		                "known here, since the job has failed: ddp_checkpoint_save() saves what this "
		                "rank has");
	ddp_model_set_phase(model, DDP_PHASE_CHECKPOINT);
	const bool alone = ddp_comm_broken(comm);
	ddp_status status = await_file(model);
	ddp_model_set_phase(model, DDP_PHASE_IDLE);
	if (status != DDP_OK && !alone)
		ddp_watch_error(model->context->watch, status);
	return status;
}

ddp_status ddp_save_end(ddp_model *model)
{
	ddp_comm *comm = model->comm;
	ddp_status status = await_file(model);

	if (status == DDP_OK || ddp_comm_broken(comm))
		return status;
	if (ddp_comm_rank(comm) == 0)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	return DDP_OK;
}

/* ---- with all ranks ------------------------------------------------------------------ */

static ddp_status prepare_directory(void *argument)
{
	struct save *save = argument;
	ddp_status status = resolve_directory(save);

	if (status == DDP_OK)
		status = ddp_store_prepare(save->dir);
	return status == DDP_OK ? own_directory(save->model, save->dir, &save->writer) : status;
}

ddp_status ddp_checkpoint_prepare(ddp_model *model, const char *dir)
{
	struct save save = { .dir = dir, .model = model, .writer = writer_of(model) };

	/* The directory is that of the ranks which a newcomer is to join. */
	if (model->context->renewal.joins)
		return DDP_OK;
	/* A file that a thread of this process still writes is not the rest of a crash. */
	ddp_status status = ddp_save_end(model);
	if (status != DDP_OK)
		return status;
	status = ddp_leader_run(model, prepare_directory, &save, NULL, 0);
	free_save(&save);
	return status;
}

/* A list without arenas has no data of what these will hold. */
void ddp_save_reserve(ddp_model *model)
{
	struct owner *owner = owner_of(model);
	ddp_tensors tensors;

	if (owner == NULL || owner->copies.memory != NULL)
		return;
	if (ddp_model_tensors(model, false, &tensors) == DDP_OK && room_take(&owner->copies, elements_to_copy(&tensors)))
		room_fill(&owner->copies);
	ddp_tensors_free(&tensors);
}

/* The world is broken: this rank saves what it has. */
static ddp_status save_alone(struct save *save)
{
	/* Another thread may still write the file before. */
	if (end_file(save->model) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
	const ddp_status status = ddp_users_own(ddp_comm_rank(save->model->comm), save->model, &save->users);
	return status == DDP_OK ? save_file(save) : status;
}

/* `write` is for rank 0. */
static ddp_status save_together(struct save *save, ddp_status (*write)(void *save))
{
	ddp_status status = ddp_save_end(save->model);

	if (status == DDP_OK)
		status = ddp_model_gather(save->model, &save->tensors);
	if (status == DDP_OK)
		status = ddp_users_gather(save->model->comm, save->model, &save->users);
	return status == DDP_OK ? ddp_leader_run(save->model, write, save, NULL, 0) : status;
}

static ddp_status save_by(ddp_model *model, ddp_loader *loader, const char *dir, int keep,
                          ddp_status (*write)(void *save))
{
	if (model == NULL || dir == NULL)
		return ddp_fail(DDP_ERR_INVALID, "checkpoint: the %s is NULL", model == NULL ? "model" : "directory");
	if (dir[0] == '\0' || keep < 0)
		return ddp_fail(DDP_ERR_INVALID, "checkpoint: a directory and keep >= 0 are needed");
	/* A newcomer has nothing to save before it has joined the others. */
	if (model->context->renewal.joins)
		return DDP_OK;
	/* Whether the world is broken is looked at before the model is. */
	struct save save = {
		.dir = dir, .keep = keep > 0 ? keep : KEEP_DEFAULT, .alone = ddp_comm_broken(model->comm),
		.world_size = ddp_comm_size(model->comm), .threads = dk_threads(),
		.position = { .has_loader = loader != NULL }, .model = model, .writer = writer_of(model),
	};
	ddp_status status = ddp_model_begin_save(model, &save.position.step, save.position.hypers);
	if (status != DDP_OK)
		return status;
	if (loader != NULL)
		save.position.loader = ddp_loader_get_state(loader);
	ddp_model_set_phase(model, DDP_PHASE_CHECKPOINT);
	status = save.alone ? save_alone(&save) : save_together(&save, write);
	free_save(&save);
	ddp_model_set_phase(model, DDP_PHASE_IDLE);
	if (status == DDP_OK) {
		ddp_watch_go_on(model->context->watch);
		return DDP_OK;
	}
	(void)not_saved(status, save.position.step);
	/* A rank that saves alone leaves the error there that broke the world. */
	if (!save.alone)
		ddp_watch_error(model->context->watch, status);
	return status;
}

ddp_status ddp_checkpoint_save(ddp_model *model, ddp_loader *loader, const char *dir, int keep)
{
	return save_by(model, loader, dir, keep, save_file);
}

ddp_status ddp_checkpoint_save_async(ddp_model *model, ddp_loader *loader, const char *dir, int keep)
{
	const ddp_status status = save_by(model, loader, dir, keep, begin_file);

	if (status == DDP_OK)
		ddp_save_follow(model, true);
	return status;
}
