/* SPDX-License-Identifier: Apache-2.0 */
/* Loading parameters alone, of a checkpoint or of another program's file: to fine-tune them, or a
   part of them. Nothing else of the model changes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "comm/agree.h"
#include "context.h"
#include "reduce/buddy.h"
#include "reduce/model_state.h"
#include "reduce/step.h"
#include "state/leader.h"
#include "state/save.h"
#include "state/store.h"
#include "state/transfer.h"
#include "state/user.h"
#include "watch/watch.h"

struct params {
	const char *path;
	ddp_load_options options;
	const char *file_prefix, *model_prefix; /* "" without one */
	ddp_transfer transfer;
	int wanted; /* parameters that begin with the model's prefix */
	int missing;
	const char *first_missing; /* of the model */
};

/* Returns the part of the name that follows the prefix, or NULL. */
static const char *behind(const char *name, const char *prefix)
{
	const size_t bytes = strlen(prefix);

	return strncmp(name, prefix, bytes) == 0 ? name + bytes : NULL;
}

/* The file's tensor for a parameter, or NULL. */
static ddp_status find(const struct params *params, const char *rest, const ddp_safetensor **found)
{
	const size_t before = strlen(params->file_prefix), bytes = strlen(rest) + 1;
	char *name = malloc(before + bytes);

	if (name == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the name of tensor %s", rest);
	memcpy(name, params->file_prefix, before);
	memcpy(name + before, rest, bytes);
	*found = ddp_safetensors_find(&params->transfer.file, name);
	free(name);
	return DDP_OK;
}

static ddp_status check(const struct params *params, const ddp_safetensor *have, const ddp_tensor *want)
{
	if (!ddp_transfer_reads(have))
		return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s has dtype %s; F32, F16, BF16 and F64 can be loaded",
		                params->transfer.file.path, have->name, have->dtype);
	ddp_status status = ddp_transfer_check_shape(&params->transfer.file, have, want);
	return status == DDP_OK ? ddp_transfer_check_values(&params->transfer.file, have) : status;
}

/* Says for each of the model's tensors whether, and from where, it is taken. */
static ddp_status choose(struct params *params)
{
	ddp_transfer *transfer = &params->transfer;

	for (int i = 0; i < transfer->tensors.count; i++) {
		const ddp_tensor *tensor = &transfer->tensors.list[i];
		const bool is_param = i < transfer->tensors.count - transfer->tensors.extras && tensor->state < 0 && !tensor->optional;
		const char *rest = is_param ? behind(tensor->name, params->model_prefix) : NULL;
		ddp_origin *origin = &transfer->origins[i];
		ddp_status status = rest != NULL ? find(params, rest, &origin->tensor) : DDP_OK;

		transfer->taken[i] = origin->tensor != NULL;
		if (status == DDP_OK && origin->tensor != NULL)
			status = check(params, origin->tensor, tensor);
		if (status != DDP_OK)
			return status;
		params->wanted += rest != NULL;
		if (rest == NULL || origin->tensor != NULL)
			continue;
		params->missing++;
		params->first_missing = params->first_missing == NULL ? tensor->name : params->first_missing;
	}
	return DDP_OK;
}

/* The optimizer's state, and what else a checkpoint of this library holds. */
static bool is_of_checkpoint(const char *name)
{
	return behind(name, DDP_EXTRA_PREFIX) != NULL || ddp_users_is_name(name) || behind(name, "optimizer.") != NULL;
}

static int compare_origins(const void *a, const void *b)
{
	const ddp_safetensor *const *x = a, *const *y = b;

	return (*x > *y) - (*x < *y);
}

/* How many of the file's tensors with its prefix are not taken, and the first of them. */
static ddp_status count_rest(const struct params *params, int *rest, const char **first)
{
	const ddp_transfer *transfer = &params->transfer;
	const bool ours = ddp_safetensors_metadata(&transfer->file, "ddp.version") != NULL;
	int taken = 0;

	const ddp_safetensor **list = calloc((size_t)transfer->tensors.count + 1, sizeof(*list));
	if (list == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: no memory for %d names", transfer->file.path, transfer->tensors.count);
	for (int i = 0; i < transfer->tensors.count; i++) {
		if (transfer->origins[i].tensor != NULL)
			list[taken++] = transfer->origins[i].tensor;
	}
	qsort(list, (size_t)taken, sizeof(*list), compare_origins);
	for (int i = 0; i < transfer->file.count; i++) {
		const ddp_safetensor *tensor = &transfer->file.tensors[i];
		if (behind(tensor->name, params->file_prefix) == NULL || (ours && is_of_checkpoint(tensor->name)) ||
		    bsearch(&tensor, list, (size_t)taken, sizeof(*list), compare_origins) != NULL)
			continue;
		*first = *rest == 0 ? tensor->name : *first;
		(*rest)++;
	}
	free(list);
	return DDP_OK;
}

static ddp_status judge(const struct params *params, int rest, const char *first_rest)
{
	const char *path = params->transfer.file.path;

	if (params->wanted == 0)
		return ddp_fail(DDP_ERR_INVALID, "option model_prefix is \"%s\", with which no name of the model's begins",
		                params->model_prefix);
	if (params->missing == params->wanted)
		return ddp_fail(DDP_ERR_FORMAT, "%s has no tensor of the model: the model's begin with %s, the file's with %s; "
		                "file_prefix and model_prefix are for names that differ in their beginning", path,
		                params->first_missing, first_rest != NULL ? first_rest : "nothing that a model has");
	if (!params->options.partial && params->missing > 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s lacks %d of the model's %d tensors, first %s; with the option partial a load "
		                "leaves what is missing as it is", path, params->missing, params->wanted,
		                params->first_missing);
	if (!params->options.partial && rest > 0)
		return ddp_fail(DDP_ERR_FORMAT, "%s has %d tensor%s that the model lacks, first %s; with the option partial a "
		                "load leaves out what the model lacks", path, rest, rest == 1 ? "" : "s", first_rest);
	if (params->missing > 0)
		ddp_log(DDP_LOG_INFO, "%s lacks %d of the model's %d tensors, first %s: what is missing stays as it is", path,
		        params->missing, params->wanted, params->first_missing);
	if (rest > 0)
		ddp_log(DDP_LOG_INFO, "%s has %d tensor%s that the model lacks, first %s: a load leaves out what the model lacks",
		        path, rest, rest == 1 ? "" : "s", first_rest);
	return DDP_OK;
}

/* On rank 0. */
static ddp_status open_params(void *argument)
{
	struct params *params = argument;
	const char *first_rest = NULL;
	bool found;
	int rest = 0;

	ddp_status status = ddp_store_open(params->path, NULL, &params->transfer.file, &found);
	if (status == DDP_OK && !found)
		status = ddp_fail_errno(DDP_ERR_IO, ENOENT, "there is no file, and no directory with a checkpoint");
	if (status == DDP_OK)
		status = choose(params);
	if (status == DDP_OK)
		status = count_rest(params, &rest, &first_rest);
	return status == DDP_OK ? judge(params, rest, first_rest) : status;
}

/* These checks can fail on this rank alone. If a load of a whole checkpoint is half done, a load of
   parameters does not mend it. */
static ddp_status prepare(ddp_model *model, ddp_transfer *transfer)
{
	ddp_status status = ddp_model_check_whole(model);

	return status == DDP_OK ? ddp_transfer_make(model, transfer) : status;
}

static ddp_status load_all(ddp_model *model, struct params *params, int *loaded)
{
	ddp_transfer *transfer = &params->transfer;
	ddp_status status = ddp_model_drop_step(model);

	if (status == DDP_OK)
		status = ddp_save_end(model);
	if (status == DDP_OK)
		status = ddp_comm_agree(model->comm, prepare(model, transfer), "load parameters");
	if (status == DDP_OK)
		status = ddp_leader_run(model, open_params, params, transfer->taken, (size_t)transfer->tensors.count);
	if (status != DDP_OK)
		return status;
	model->partly_updated = true;
	status = ddp_transfer_run(transfer);
	if (status != DDP_OK)
		return status;
	if (transfer->not_finite != NULL)
		ddp_log(DDP_LOG_WARN, "%s: tensor %s holds an infinity or a NaN, with which no step can be taken: was it saved by "
		        "a run that had diverged?", params->path, transfer->not_finite);
	/* Before ddp_model_broadcast_params(), parameters that are not loaded have no bf16 yet. */
	ddp_model_round_all(model);
	ddp_buddy_forget(model, ddp_model_step_count(model));
	model->partly_updated = false;
	*loaded = 0;
	for (int i = 0; i < transfer->tensors.count; i++)
		*loaded += transfer->taken[i];
	return DDP_OK;
}

ddp_status ddp_model_load_params(ddp_model *model, const char *path, const ddp_load_options *options, int *loaded)
{
	struct params params = { .path = path, .transfer = { .file = { .fd = -1 } }, .options = DDP_LOAD_OPTIONS };
	int count = 0;

	if (model == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_model_load_params(): the model is NULL");
	ddp_status status = ddp_options_copy("ddp_load_options", options, &params.options, sizeof(params.options));

	if (status == DDP_OK && (path == NULL || path[0] == '\0'))
		status = ddp_fail(DDP_ERR_INVALID, "ddp_model_load_params(): the path is %s; give a file or a directory",
		                  path == NULL ? "NULL" : "empty");
	if (status != DDP_OK)
		return status;
	params.file_prefix = params.options.file_prefix != NULL ? params.options.file_prefix : "";
	params.model_prefix = params.options.model_prefix != NULL ? params.options.model_prefix : "";
	ddp_model_set_phase(model, DDP_PHASE_CHECKPOINT);
	status = load_all(model, &params, &count);
	ddp_model_set_phase(model, DDP_PHASE_IDLE);
	ddp_transfer_free(&params.transfer);
	if (status != DDP_OK) {
		(void)ddp_fail_context(status, "parameters of %s were not loaded", path);
		ddp_watch_error(model->context->watch, status);
		return status;
	}
	ddp_watch_go_on(model->context->watch);
	if (loaded != NULL)
		*loaded = count;
	return DDP_OK;
}
