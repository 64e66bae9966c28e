/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a model with all its ranks. Only rank 0 touches the file system, so a directory
   on its node's own disk serves as well as a shared one, and thousands of ranks make one
   reader: the others get the tensors by broadcast. A file is verified before the first
   byte of the model changes. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "context.h"
#include "data/loader.h"
#include "reduce/model_state.h"
#include "reduce/step.h"
#include "reduce/tensors.h"
#include "state/leader.h"
#include "state/metadata.h"
#include "state/save.h"
#include "state/store.h"
#include "state/transfer.h"
#include "state/user.h"
#include "watch/watch.h"

struct load {
	const char *path;
	ddp_transfer transfer;
	ddp_users users;
	ddp_position position;
};

/* One that this library wrote. */
static ddp_status check_tensor(const ddp_safetensors *file, const ddp_tensor *want)
{
	const ddp_safetensor *have = ddp_safetensors_find(file, want->name);

	if (have == NULL)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is missing", file->path, want->name);
	if (strcmp(have->dtype, "F32") != 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has dtype %s, the model has F32",
		                file->path, want->name, have->dtype);
	return ddp_transfer_check_shape(file, have, want);
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
	const ddp_tensors *tensors = &load->transfer.tensors;
	const ddp_safetensors *file = &load->transfer.file;
	int found = 0, in_file = 0;

	for (int i = 0; i < file->count; i++)
		in_file += is_extra(file->tensors[i].name);
	for (int i = tensors->count - tensors->extras; i < tensors->count; i++) {
		load->transfer.origins[i].tensor = ddp_safetensors_find(file, tensors->list[i].name);
		found += check_tensor(file, &tensors->list[i]) == DDP_OK;
	}
	load->position.has_extras = found == tensors->extras;
	if (in_file == 0 && tensors->extras > 0)
		ddp_log(DDP_LOG_WARN, "%s holds nothing that a way of reducing (option compress) kept back; "
		        "it begins anew", file->path);
	else if (in_file != tensors->extras || !load->position.has_extras)
		ddp_log(DDP_LOG_WARN, "%s: what gradients had been kept back there is left out: it needs the same "
		        "options compress and powersgd, and more than one rank", file->path);
}

/* ---- the optimizer's state of what is trained here and was not there, or the reverse ------ */

/* The same optimizer keeps none of it for what was frozen, or, of SGD, without momentum. */
static bool may_lack_state(const struct load *load)
{
	const int optimizer = ddp_hyper_of("optimizer");
	double own[DDP_HYPERS];

	ddp_model_get_hypers(load->transfer.model, own);
	return load->position.has_hypers && load->position.hypers[optimizer] == own[optimizer];
}

/* A parameter's state has `wanted` tensors in the model and `found` tensors in the file. */
struct tally {
	int wanted, found;
	bool begins; /* anew */
};

static void count_states(const struct load *load, struct tally *tallies)
{
	const ddp_tensors *tensors = &load->transfer.tensors;

	for (int i = 0; i < tensors->count - tensors->extras; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		if (tensor->state < 0 && !tensor->optional)
			continue;
		tallies[tensor->param].wanted += !tensor->optional;
		tallies[tensor->param].found += ddp_safetensors_find(&load->transfer.file, tensor->name) != NULL;
	}
}

/* A parameter that has no state in the file has missed all steps until now. */
static void begin_states(struct load *load, struct tally *tallies)
{
	const ddp_tensors *tensors = &load->transfer.tensors;
	const char *first = NULL;
	int begun = 0;

	count_states(load, tallies);
	/* Parameters come first in the list, and the steps that they missed last. */
	for (int i = 0; i < tensors->count - tensors->extras; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		struct tally *tally = &tallies[tensor->param];
		if (tensor->optional && tally->begins)
			load->transfer.origins[i].otherwise = (float)load->position.step;
		if (tensor->state >= 0 || tensor->optional || tally->wanted == 0 || tally->found > 0)
			continue;
		tally->begins = true;
		first = first == NULL ? tensor->name : first;
		begun++;
	}
	if (begun > 0)
		ddp_log(DDP_LOG_WARN, "%s holds no optimizer's state of %d parameters that are trained here (%s%s), as they were "
		        "frozen, or without momentum: it begins anew", load->transfer.file.path, begun, first,
		        begun > 1 ? ", ..." : "");
}

/* ---- what the file has ------------------------------------------------------------------ */

/* Each tensor of the model is in the file, or what it is otherwise. */
static ddp_status find_tensors(struct load *load, const struct tally *tallies)
{
	const ddp_tensors *tensors = &load->transfer.tensors;

	for (int i = 0; i < tensors->count - tensors->extras; i++) {
		const ddp_tensor *tensor = &tensors->list[i];
		load->transfer.origins[i].tensor = ddp_safetensors_find(&load->transfer.file, tensor->name);
		if (load->transfer.origins[i].tensor == NULL &&
		    (tensor->optional || (tensor->state >= 0 && tallies[tensor->param].begins)))
			continue;
		ddp_status status = check_tensor(&load->transfer.file, tensor);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static bool is_among(const char *const *names, int count, const char *name)
{
	return bsearch(&name, names, (size_t)count, sizeof(*names), compare_names) != NULL;
}

/* "optimizer.m.NAME", where the model has a parameter NAME. */
static bool is_state_of(const char *const *names, int count, const char *name)
{
	const char *of = strncmp(name, "optimizer.", 10) == 0 ? strchr(name + 10, '.') : NULL;

	return of != NULL && is_among(names, count, of + 1);
}

/* All that the file has of a model, this model has. `names`, sorted, are this one's. */
static ddp_status check_rest(const struct load *load, const char *const *names, int count)
{
	const ddp_safetensors *file = &load->transfer.file;
	const bool may_leave = may_lack_state(load);
	const char *first = NULL;
	int left = 0;

	for (int i = 0; i < file->count; i++) {
		const char *name = file->tensors[i].name;
		if (!is_of_model(name) || is_among(names, count, name))
			continue;
		if (!may_leave || !is_state_of(names, count, name))
			return refuse_tensor(file->path, name);
		first = first == NULL ? name : first;
		left++;
	}
	if (left > 0)
		ddp_log(DDP_LOG_WARN, "%s: %d tensor%s of the optimizer's state %s left out (%s%s), as parameters are frozen here, "
		        "or without momentum", file->path, left, left == 1 ? "" : "s", left == 1 ? "is" : "are",
		        first, left > 1 ? ", ..." : "");
	return DDP_OK;
}

/* The file has what the model has. */
static ddp_status check_tensors(struct load *load)
{
	const ddp_tensors *tensors = &load->transfer.tensors;
	const int count = tensors->count - tensors->extras;
	ddp_status status = DDP_ERR_NOMEM;

	const char **names = calloc((size_t)tensors->count + 1, sizeof(*names));
	struct tally *tallies = calloc((size_t)tensors->count + 1, sizeof(*tallies));
	if (names == NULL || tallies == NULL) {
		ddp_fail(DDP_ERR_NOMEM, "%s: no memory for %d names", load->transfer.file.path, tensors->count);
	} else {
		for (int i = 0; i < count; i++)
			names[i] = tensors->list[i].name;
		qsort(names, (size_t)count, sizeof(*names), compare_names);
		if (may_lack_state(load))
			begin_states(load, tallies);
		status = find_tensors(load, tallies);
		if (status == DDP_OK)
			status = check_rest(load, names, count);
	}
	free(names);
	free(tallies);
	return status;
}

static ddp_status check_metadata(const ddp_safetensors *file)
{
	ddp_position position = { 0 };

	return ddp_metadata_read(file, &position);
}

static ddp_status open_file(void *argument)
{
	struct load *load = argument;
	ddp_status status = ddp_store_open(load->path, check_metadata, &load->transfer.file, &load->position.found);

	if (status != DDP_OK || !load->position.found)
		return status;
	status = ddp_metadata_read(&load->transfer.file, &load->position);
	if (status == DDP_OK)
		status = check_tensors(load);
	if (status == DDP_OK)
		look_for_extras(load);
	return status;
}

static ddp_status read_users(void *argument)
{
	struct load *load = argument;

	return ddp_users_read(&load->transfer.file, &load->users);
}

static ddp_status move_users(ddp_model *model, struct load *load)
{
	ddp_status status = ddp_leader_run(model, read_users, load, NULL, 0);

	return status == DDP_OK ? ddp_users_scatter(model->comm, &load->users) : status;
}

/* Does the work that can fail on this rank alone. */
static ddp_status prepare_load(ddp_model *model, struct load *load)
{
	ddp_status status = ddp_transfer_make(model, &load->transfer);

	return status == DDP_OK ? ddp_users_prepare(ddp_comm_size(model->comm), &load->users) : status;
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
	ddp_status status = ddp_comm_agree(comm, own, "move its loader to the checkpoint's position");
	if (status != DDP_OK && own == DDP_OK && loader != NULL)
		ddp_loader_seek(loader, &before);
	return status;
}

static void name_hyper(const struct load *load, int hyper, double saved, double own)
{
	if (hyper == DDP_HYPER_TREATMENT) /* no number that says something */
		ddp_log(DDP_LOG_WARN, "%s: the kind, group or no_decay of a parameter was another where it was "
		        "saved; training goes on with what it is here", load->transfer.file.path);
	else
		ddp_log(DDP_LOG_WARN, "%s: %s was %.10g where it was saved and is %.10g here; training "
		        "goes on with that", load->transfer.file.path, ddp_hyper_name(hyper), saved, own);
}

/* The model goes on with its own; but a learning rate that was set by hand comes back
   if the one that the model was made with is the same as then. */
static void take_hypers(struct load *load)
{
	const bool names = ddp_comm_rank(ddp_model_comm(load->transfer.model)) == 0;
	const double *saved = load->position.hypers;
	const int rate = ddp_hyper_of("learning_rate");
	double own[DDP_HYPERS];

	if (!load->position.has_hypers)
		return;
	ddp_model_get_hypers(load->transfer.model, own);
	for (int h = DDP_HYPERS_COMPARED; h < DDP_HYPERS; h++) {
		if (names && !isnan(saved[h]) && saved[h] != own[h])
			name_hyper(load, h, saved[h], own[h]);
	}
	if (saved[rate] == own[rate] && !isnan(saved[DDP_HYPER_CURRENT_RATE]))
		ddp_model_set_learning_rate(load->transfer.model, saved[DDP_HYPER_CURRENT_RATE]);
	ddp_model_resume_scale(load->transfer.model, saved);
}

static ddp_status load_all(ddp_model *model, ddp_loader *loader, struct load *load)
{
	ddp_comm *comm = model->comm;
	ddp_status status = ddp_model_drop_step(model);

	if (status == DDP_OK)
		status = ddp_save_end(model);
	if (status == DDP_OK)
		status = ddp_comm_agree(comm, prepare_load(model, load), "load a checkpoint");
	if (status == DDP_OK)
		status = ddp_leader_run(model, open_file, load, &load->position, sizeof(load->position));
	if (status != DDP_OK || !load->position.found)
		return status;
	status = move_users(model, load);
	if (status == DDP_OK)
		status = seek_together(comm, loader, &load->position);
	if (status != DDP_OK)
		return status;
	model->partly_updated = true;
	if (!load->position.has_extras)
		ddp_model_forget_extras(model, &load->transfer.tensors);
	status = ddp_transfer_run(&load->transfer);
	if (status != DDP_OK)
		return status;
	ddp_model_set_step_count(model, load->position.step);
	take_hypers(load);
	status = ddp_model_set_user_state(model, load->users.own, load->users.bytes[ddp_comm_rank(comm)]);
	/* From now on a rank may read what the others keep. */
	status = ddp_comm_agree(comm, status, "keep the program's state");
	if (status == DDP_OK)
		model->partly_updated = false;
	return status;
}

ddp_status ddp_checkpoint_load(ddp_model *model, ddp_loader *loader, const char *path, int64_t *step)
{
	struct load load = { .path = path, .transfer = { .file = { .fd = -1 } } };

	if (model == NULL || path == NULL || step == NULL)
		return ddp_fail_null("ddp_checkpoint_load", model == NULL ? "model" : path == NULL ? "path" : "step");
	if (path[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "checkpoint: a file or directory to load is needed");
	/* A newcomer gets what the other ranks have. */
	if (model->context->renewal.joins) {
		*step = 0;
		return DDP_OK;
	}
	ddp_model_set_phase(model, DDP_PHASE_CHECKPOINT);
	ddp_status status = load_all(model, loader, &load);
	ddp_model_set_phase(model, DDP_PHASE_IDLE);
	ddp_transfer_free(&load.transfer);
	ddp_users_free(&load.users);
	if (status != DDP_OK) {
		(void)ddp_fail_context(status, "checkpoint %s was not loaded", path);
		ddp_watch_error(model->context->watch, status);
		return status;
	}
	ddp_watch_go_on(model->context->watch);
	*step = load.position.found ? load.position.step : 0;
	return DDP_OK;
}
