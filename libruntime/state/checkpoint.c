/*
 * Loading a model with all its ranks. Only rank 0 touches the file system, so a directory
 * on its node's own disk serves as well as a shared one, and thousands of ranks make one
 * reader: the others get the tensors by broadcast. A file is verified before the first
 * byte of the model changes.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "context.h"
#include "data/loader.h"
#include "reduce/facts.h"
#include "reduce/model.h"
#include "reduce/tensors.h"
#include "state/leader.h"
#include "state/metadata.h"
#include "state/save.h"
#include "state/store.h"
#include "state/user.h"

/* 4 MiB: all that a load needs besides the model, on each rank. */
enum { CHUNK_ELEMENTS = 1 << 20 };

/* A place in the row of all tensors' elements. */
struct place {
	int tensor;
	int64_t first; /* element of it */
};

struct load {
	const char *path;
	ddp_model *model;
	ddp_tensors tensors;
	int64_t elements;     /* of all tensors */
	float *chunk;
	struct place place;   /* where the chunk begins */
	int64_t count;        /* elements in the chunk */
	ddp_safetensors file; /* rank 0 */
	uint32_t sum;         /* rank 0: of the tensor that is read */
	ddp_users users;
	ddp_position position;
};

static void shape_text(int ndim, const int64_t *shape, char *text, size_t bytes)
{
	size_t used = 0;

	snprintf(text, bytes, "%s", ndim == 0 ? "of a single number" : "");
	for (int i = 0; i < ndim && used < bytes; i++)
		used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? "x" : "", shape[i]);
}

static ddp_status check_tensor(const ddp_safetensors *file, const ddp_tensor *want)
{
	char has[192], wants[192];
	const ddp_safetensor *have = ddp_safetensors_find(file, want->name);

	if (have == NULL)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is missing", file->path, want->name);
	if (strcmp(have->dtype, "F32") != 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has dtype %s, the model has F32",
		                file->path, want->name, have->dtype);
	if (have->ndim == want->ndim &&
	    memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof(*want->shape)) == 0)
		return DDP_OK;
	shape_text(have->ndim, have->shape, has, sizeof(has));
	shape_text(want->ndim, want->shape, wants, sizeof(wants));
	return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has shape %s, the model has %s", file->path,
	                want->name, has, wants);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_extra(const char *name)
{
	return strncmp(name, DDP_EXTRA_PREFIX, strlen(DDP_EXTRA_PREFIX)) == 0;
}

static bool is_of_model(const char *name)
{
	return !is_extra(name) && !ddp_users_is_name(name);
}

/* The file's tensor `name` is none of the model's. */
static ddp_status refuse_tensor(const char *path, const char *name)
{
	if (strcmp(name, "optimizer.missed_steps") == 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s is of a development version before libddp 0.2: its tensor %s counts the steps that "
		                "parameters missed by their places in the program's list, and libddp does so by their "
		                "names now; finish that training with the libddp that began it, or begin anew",
		                path, name);
	return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is not of this model or optimizer", path, name);
}

/* All of them, or it does without: they are of a way of reducing, not of the model. */
static void look_for_extras(struct load *load)
{
	const ddp_tensors *tensors = &load->tensors;
	int found = 0, in_file = 0;

	for (int i = 0; i < load->file.count; i++)
		in_file += is_extra(load->file.tensors[i].name);
	for (int i = tensors->count - tensors->extras; i < tensors->count; i++)
		found += check_tensor(&load->file, &tensors->list[i]) == DDP_OK;
	load->position.has_extras = found == tensors->extras;
	if (in_file == 0 && tensors->extras > 0)
		ddp_log(DDP_LOG_WARN, "%s holds nothing that a way of reducing (option compress) kept back; "
		        "it begins anew", load->file.path);
	else if (in_file != tensors->extras || !load->position.has_extras)
		ddp_log(DDP_LOG_WARN, "%s: what gradients had been kept back there is left out: it needs the same "
		        "options compress and powersgd, and more than one rank", load->file.path);
}

/* The file has just what the model has. */
static ddp_status check_tensors(const struct load *load)
{
	const ddp_tensors *tensors = &load->tensors;
	const int count = tensors->count - tensors->extras;
	int lacks = 0;

	for (int i = 0; i < count; i++) {
		if (tensors->list[i].optional &&
		    ddp_safetensors_find(&load->file, tensors->list[i].name) == NULL) {
			lacks++;
			continue;
		}
		ddp_status status = check_tensor(&load->file, &tensors->list[i]);
		if (status != DDP_OK)
			return status;
	}
	int others = 0;
	for (int i = 0; i < load->file.count; i++)
		others += is_of_model(load->file.tensors[i].name);
	if (others == count - lacks)
		return DDP_OK;
	const char **names = calloc((size_t)tensors->count, sizeof(*names));
	if (names == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for %d names", load->file.path,
		                tensors->count);
	for (int i = 0; i < count; i++)
		names[i] = tensors->list[i].name;
	qsort(names, (size_t)count, sizeof(*names), compare_names);
	const char *odd = NULL;
	for (int i = 0; i < load->file.count && odd == NULL; i++) {
		const char *name = load->file.tensors[i].name;
		if (is_of_model(name) &&
		    bsearch(&name, names, (size_t)count, sizeof(*names), compare_names) == NULL)
			odd = name;
	}
	free(names);
	return refuse_tensor(load->file.path, odd);
}

static ddp_status check_metadata(const ddp_safetensors *file)
{
	ddp_position position = { 0 };

	return ddp_metadata_read(file, &position);
}

static ddp_status open_file(void *argument)
{
	struct load *load = argument;
	ddp_status status = ddp_store_open(load->path, check_metadata, &load->file, &load->position.found);

	if (status != DDP_OK || !load->position.found)
		return status;
	status = check_tensors(load);
	if (status == DDP_OK)
		look_for_extras(load);
	if (status == DDP_OK)
		status = ddp_metadata_read(&load->file, &load->position);
	return status;
}

/* What is left of the place's tensor, but at most `room` elements; moves behind it. */
static int64_t pass(const ddp_tensors *tensors, struct place *place, int64_t room)
{
	int64_t left = ddp_tensor_elements(&tensors->list[place->tensor]) - place->first;

	if (left > room) {
		place->first += room;
		return room;
	}
	place->first = 0;
	place->tensor++;
	return left;
}

static ddp_status read_chunk(void *argument)
{
	struct load *load = argument;
	struct place place = load->place;

	for (int64_t at = 0, count; at < load->count; at += count) {
		const struct place from = place;
		const ddp_safetensor *tensor =
			ddp_safetensors_find(&load->file, load->tensors.list[from.tensor].name);
		count = pass(&load->tensors, &place, load->count - at);
		if (tensor == NULL) { /* an optional one */
			memset(load->chunk + at, 0, (size_t)count * sizeof(float));
			continue;
		}
		load->sum = from.first == 0 ? 0 : load->sum;
		ddp_status status = ddp_safetensors_read_part(
			&load->file, tensor, from.first * (int64_t)sizeof(float), (size_t)count * sizeof(float),
			load->chunk + at, &load->sum);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static ddp_status store_chunk(struct load *load)
{
	ddp_status status = DDP_OK;

	for (int64_t at = 0, count; at < load->count && status == DDP_OK; at += count) {
		const struct place from = load->place;
		count = pass(&load->tensors, &load->place, load->count - at);
		status = ddp_model_store(load->model, &load->tensors, from.tensor, from.first,
		                         load->chunk + at, count);
	}
	return status;
}

static ddp_status read_users(void *argument)
{
	struct load *load = argument;

	return ddp_users_read(&load->file, &load->users);
}

static ddp_status move_users(ddp_context *context, struct load *load)
{
	ddp_status status = ddp_leader_run(context->world, context->timeout_ms, read_users, load, NULL, 0);

	return status == DDP_OK ? ddp_users_scatter(context->world, &load->users) : status;
}

static ddp_status move_tensors(ddp_context *context, struct load *load)
{
	ddp_status status = DDP_OK;

	for (int64_t done = 0; done < load->elements && status == DDP_OK; done += load->count) {
		int64_t left = load->elements - done;
		load->count = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
		status = ddp_leader_run(context->world, context->timeout_ms, read_chunk, load, NULL, 0);
		if (status == DDP_OK)
			status = ddp_broadcast(context->world, load->chunk, (size_t)load->count, DDP_F32, 0);
		if (status == DDP_OK)
			status = ddp_status_agree(context->world, store_chunk(load), "keep what it loaded");
	}
	return status;
}

static int64_t all_elements(const ddp_tensors *tensors)
{
	int64_t elements = 0;

	for (int i = 0; i < tensors->count; i++)
		elements += ddp_tensor_elements(&tensors->list[i]);
	return elements;
}

/* What can fail on this rank alone. */
static ddp_status prepare_load(struct load *load)
{
	ddp_status status = ddp_model_tensors(load->model, false, &load->tensors);

	if (status != DDP_OK)
		return status;
	load->elements = all_elements(&load->tensors);
	size_t bytes = sizeof(float) *
		(size_t)(load->elements < CHUNK_ELEMENTS ? load->elements : CHUNK_ELEMENTS);
	load->chunk = malloc(bytes);
	if (load->chunk == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of a checkpoint", bytes);
	return ddp_users_prepare(ddp_model_context(load->model)->job.world_size, &load->users);
}

/* Its samples are as many, or the loader refuses to move. */
static void tell_other_dataset(const ddp_comm *comm, const ddp_loader_state *own, const ddp_position *position)
{
	const uint64_t saved = position->has_loader ? position->loader.digest : 0;

	if (saved != 0 && own->digest != 0 && saved != own->digest && ddp_comm_rank(comm) == 0)
		ddp_log(DDP_LOG_WARN, "the loader's dataset holds other samples than the one that training had read when "
		        "it was saved (digest %016" PRIx64 ", then %016" PRIx64 "): training goes on with these, at the "
		        "same place; if it is to begin at their first, load the checkpoint with loader NULL",
		        own->digest, saved);
}

/* Moves the loader on all ranks or on none. Each rank may have one or not. */
static ddp_status seek_together(ddp_comm *comm, ddp_loader *loader, const ddp_position *position)
{
	ddp_loader_state before = { 0 };
	ddp_status own = DDP_OK;

	if (loader != NULL) {
		before = ddp_loader_get_state(loader);
		tell_other_dataset(comm, &before, position);
		own = position->has_loader
		          ? ddp_loader_seek(loader, &position->loader)
		          : ddp_fail(DDP_ERR_INVALID, "the checkpoint holds no loader position; "
		                     "load it with loader NULL");
	}
	ddp_status status = ddp_status_agree(comm, own, "move its loader to the checkpoint's position");
	if (status != DDP_OK && own == DDP_OK && loader != NULL)
		ddp_loader_seek(loader, &before);
	return status;
}

static void name_hyper(const struct load *load, ddp_hyper hyper, double saved, double own)
{
	if (hyper == DDP_HYPER_TREATMENT) /* no number that says something */
		ddp_log(DDP_LOG_WARN, "%s: the kind, group or no_decay of a parameter was another where it was "
		        "saved; training goes on with what it is here", load->file.path);
	else
		ddp_log(DDP_LOG_WARN, "%s: %s was %.10g where it was saved and is %.10g here; training "
		        "goes on with that", load->file.path, ddp_hyper_name(hyper), saved, own);
}

/* The model goes on with its own; but a learning rate that was set by hand comes back
   if the one that the model was made with is the same as then. */
static void take_hypers(struct load *load)
{
	const bool names = ddp_comm_rank(ddp_model_context(load->model)->world) == 0;
	const double *saved = load->position.hypers;
	double own[DDP_HYPERS];

	if (!load->position.has_hypers)
		return;
	ddp_model_get_hypers(load->model, own);
	for (int h = 0; h < DDP_HYPER_OPTIONS; h++) {
		if (names && !isnan(saved[h]) && saved[h] != own[h])
			name_hyper(load, (ddp_hyper)h, saved[h], own[h]);
	}
	if (saved[DDP_HYPER_LEARNING_RATE] == own[DDP_HYPER_LEARNING_RATE] && !isnan(saved[DDP_HYPER_CURRENT_RATE]))
		ddp_set_learning_rate(load->model, saved[DDP_HYPER_CURRENT_RATE]);
	ddp_model_resume_scale(load->model, saved);
}

static ddp_status load_all(ddp_context *context, ddp_loader *loader, struct load *load)
{
	ddp_comm *comm = context->world;
	ddp_status status = ddp_model_drop_step(load->model);

	if (status == DDP_OK)
		status = ddp_save_end(load->model);
	if (status == DDP_OK)
		status = ddp_status_agree(comm, prepare_load(load), "load a checkpoint");
	if (status == DDP_OK)
		status = ddp_leader_run(comm, context->timeout_ms, open_file, load, &load->position,
		                        sizeof(load->position));
	if (status != DDP_OK || !load->position.found)
		return status;
	status = move_users(context, load);
	if (status == DDP_OK)
		status = seek_together(comm, loader, &load->position);
	if (status != DDP_OK)
		return status;
	ddp_model_set_partly_updated(load->model, true);
	if (!load->position.has_extras) {
		ddp_model_forget_extras(load->model, &load->tensors);
		load->elements = all_elements(&load->tensors);
	}
	status = move_tensors(context, load);
	if (status != DDP_OK)
		return status;
	ddp_model_set_step_count(load->model, load->position.step);
	take_hypers(load);
	status = ddp_set_user_state(load->model, load->users.own,
	                            load->users.bytes[context->job.rank]);
	/* From now on a rank may read what the others keep. */
	status = ddp_status_agree(comm, status, "keep the program's state");
	if (status == DDP_OK)
		ddp_model_set_partly_updated(load->model, false);
	return status;
}

ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader, const char *path, int64_t *step)
{
	struct load load = { .path = path, .model = model, .file = { .fd = -1 } };

	if (path == NULL || path[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "checkpoint: a file or directory to load is needed");
	ddp_set_phase(model, DDP_PHASE_CHECKPOINT);
	ddp_status status = load_all(ddp_model_context(model), loader, &load);
	ddp_set_phase(model, DDP_PHASE_IDLE);
	ddp_safetensors_close(&load.file);
	ddp_tensors_free(&load.tensors);
	ddp_users_free(&load.users);
	free(load.chunk);
	if (status != DDP_OK)
		return ddp_fail_context(status, "checkpoint %s was not loaded", path);
	*step = load.position.found ? load.position.step : 0;
	return DDP_OK;
}
