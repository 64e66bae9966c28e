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

static void name_of(int rank, char *name)
{
	snprintf(name, DDP_USER_NAME_MAX, "%s%d", prefix, rank);
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
	free(users->all);
	free(users->own);
	*users = (ddp_users){ 0 };
}

static ddp_status no_memory(int ranks)
{
	return ddp_fail(DDP_ERR_NOMEM, "no memory for the program's state of %d ranks", ranks);
}

ddp_status ddp_users_own(int rank, const ddp_model *model, ddp_users *users)
{
	size_t bytes;
	const void *state = ddp_model_user_state(model, &bytes);

	*users = (ddp_users){ .ranks = rank + 1 };
	users->bytes = calloc((size_t)rank + 1, sizeof(*users->bytes));
	users->all = malloc(bytes + 1);
	if (users->bytes == NULL || users->all == NULL)
		return no_memory(1);
	users->bytes[rank] = bytes;
	if (bytes > 0)
		memcpy(users->all, state, bytes);
	return DDP_OK;
}

ddp_status ddp_users_gather(ddp_comm *comm, const ddp_model *model, ddp_users *users)
{
	uint64_t bytes = 0;
	size_t own_bytes;
	const void *given = ddp_model_user_state(model, &own_bytes), *own = given != NULL ? given : "";

	*users = (ddp_users){ .ranks = ddp_comm_size(comm) };
	users->bytes = calloc((size_t)users->ranks, sizeof(*users->bytes));
	ddp_status status = ddp_comm_agree(
		comm, users->bytes != NULL ? DDP_OK : no_memory(users->ranks), "save its state");
	_Static_assert(sizeof(size_t) == sizeof(int64_t), "counts travel as I64");
	bytes = own_bytes;
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

int ddp_users_tensors(const ddp_users *users, char (*names)[DDP_USER_NAME_MAX], int64_t *shapes,
                      ddp_safetensors_tensor *tensors)
{
	const char *at = users->all;
	int count = 0;

	for (int r = 0; r < users->ranks; r++) {
		if (users->bytes[r] == 0)
			continue;
		name_of(r, names[count]);
		shapes[count] = (int64_t)users->bytes[r];
		tensors[count] = (ddp_safetensors_tensor){
			.name = names[count], .ndim = 1, .shape = &shapes[count], .data = at, .bytes = true,
		};
		at += users->bytes[r];
		count++;
	}
	return count;
}

ddp_status ddp_users_prepare(int ranks, ddp_users *users)
{
	*users = (ddp_users){ .ranks = ranks };
	users->bytes = calloc((size_t)ranks, sizeof(*users->bytes));
	users->own = malloc(DDP_USER_STATE_MAX);
	return users->bytes != NULL && users->own != NULL ? DDP_OK : no_memory(ranks);
}

ddp_status ddp_users_read(const ddp_safetensors *file, ddp_users *users)
{
	char name[DDP_USER_NAME_MAX];
	size_t at = 0;

	for (int r = 0; r < users->ranks; r++) {
		name_of(r, name);
		const ddp_safetensor *tensor = ddp_safetensors_find(file, name);
		int64_t bytes = tensor != NULL ? tensor->end - tensor->begin : 0;
		if (bytes > DDP_USER_STATE_MAX)
			return ddp_fail(DDP_ERR_FORMAT, "%s: tensor %s is longer than %d bytes", file->path, name,
			                DDP_USER_STATE_MAX);
		users->bytes[r] = (size_t)bytes;
	}
	users->all = malloc(total(users) + 1);
	if (users->all == NULL)
		return no_memory(users->ranks);
	for (int r = 0; r < users->ranks; r++) {
		if (users->bytes[r] == 0)
			continue;
		name_of(r, name);
		ddp_status status = ddp_safetensors_read(file, ddp_safetensors_find(file, name),
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
