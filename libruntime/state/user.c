/* SPDX-License-Identifier: Apache-2.0 */
#include "state/user.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/agree.h"

static const char prefix[] = "ddp.user.";

bool ddp_users_is_name(const char *name)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static size_t total(const ddp_users *users)
{
	size_t sum = 0;

	for (int r = 0; r < users->ranks; r++)
		sum += users->bytes[r];
	return sum;
}

void ddp_users_free(ddp_users *users)
{
	free(users->bytes);
	free(users->names);
	free(users->all);
	free(users->own);
	*users = (ddp_users){ 0 };
}

static ddp_status no_memory(int ranks)
{
	return ddp_fail(DDP_ERR_NOMEM, "no memory for the program's state of %d ranks", ranks);
}

static ddp_status make(int ranks, ddp_users *users)
{
	*users = (ddp_users){ .ranks = ranks };
	users->bytes = calloc((size_t)ranks, sizeof(*users->bytes));
	users->names = calloc((size_t)ranks, sizeof(*users->names));
	if (users->bytes == NULL || users->names == NULL)
		return no_memory(ranks);
	for (int r = 0; r < ranks; r++)
		snprintf(users->names[r].text, sizeof(users->names[r].text), "%s%d", prefix, r);
	return DDP_OK;
}

ddp_status ddp_users_own(int rank, const ddp_model *model, ddp_users *users)
{
	size_t bytes;
	const void *state = ddp_model_user_state(model, &bytes);

	ddp_status status = make(rank + 1, users);
	if (status == DDP_OK && (users->all = malloc(bytes + 1)) == NULL)
		status = no_memory(1);
	if (status != DDP_OK)
		return status;
	users->bytes[rank] = bytes;
	if (bytes > 0)
		memcpy(users->all, state, bytes);
	return DDP_OK;
}

ddp_status ddp_users_gather(ddp_comm *comm, const ddp_model *model, ddp_users *users)
{
	size_t bytes;
	const void *given = ddp_model_user_state(model, &bytes), *own = given != NULL ? given : "";

	ddp_status status = ddp_comm_agree(comm, make(ddp_comm_size(comm), users), "save its state");
	_Static_assert(sizeof(size_t) == sizeof(int64_t), "counts travel as I64");
	if (status == DDP_OK)
		status = ddp_all_gather(comm, &bytes, users->bytes, 1, DDP_I64);
	if (status != DDP_OK || total(users) == 0)
		return status;
	if (ddp_comm_rank(comm) == 0)
		users->all = malloc(total(users));
	status = ddp_comm_agree(
		comm, users->all != NULL || ddp_comm_rank(comm) > 0 ? DDP_OK : no_memory(users->ranks),
		"gather all ranks' state");
	const ddp_operation gather = {
		.kind = DDP_GATHER, .send = own, .recv = users->all, .counts = users->bytes,
		.type = DDP_U8,
	};
	return status == DDP_OK ? ddp_run(comm, &gather) : status;
}

int ddp_users_tensors(const ddp_users *users, ddp_safetensors_tensor *tensors)
{
	const char *at = users->all;
	int count = 0;

	for (int r = 0; r < users->ranks; r++) {
		if (users->bytes[r] == 0)
			continue;
		tensors[count++] = (ddp_safetensors_tensor){
			.name = users->names[r].text, .ndim = 1, .shape = (const int64_t *)&users->bytes[r], .data = at,
			.bytes = true,
		};
		at += users->bytes[r];
	}
	return count;
}

ddp_status ddp_users_prepare(int ranks, ddp_users *users)
{
	ddp_status status = make(ranks, users);

	if (status == DDP_OK && (users->own = malloc(DDP_USER_STATE_MAX)) == NULL)
		status = no_memory(ranks);
	return status;
}

ddp_status ddp_users_read(const ddp_safetensors *file, ddp_users *users)
{
	size_t at = 0;

	for (int r = 0; r < users->ranks; r++) {
		const ddp_safetensor *tensor = ddp_safetensors_find(file, users->names[r].text);
		int64_t bytes = tensor != NULL ? tensor->end - tensor->begin : 0;
		if (bytes > DDP_USER_STATE_MAX)
			return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is longer than %d bytes", file->path,
			                users->names[r].text, DDP_USER_STATE_MAX);
		users->bytes[r] = (size_t)bytes;
	}
	users->all = malloc(total(users) + 1);
	if (users->all == NULL)
		return no_memory(users->ranks);
	for (int r = 0; r < users->ranks; r++) {
		if (users->bytes[r] == 0)
			continue;
		ddp_status status = ddp_safetensors_read(file, ddp_safetensors_find(file, users->names[r].text),
		                                         users->all + at);
		if (status != DDP_OK)
			return status;
		at += users->bytes[r];
	}
	return DDP_OK;
}

ddp_status ddp_users_scatter(ddp_comm *comm, ddp_users *users)
{
	ddp_status status = ddp_broadcast(comm, users->bytes, (size_t)users->ranks, DDP_I64, 0);
	const ddp_operation scatter = {
		.kind = DDP_SCATTER, .send = users->all, .recv = users->own, .counts = users->bytes,
		.type = DDP_U8,
	};

	return status == DDP_OK && total(users) > 0 ? ddp_run(comm, &scatter) : status;
}
