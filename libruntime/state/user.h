/* SPDX-License-Identifier: Apache-2.0 */
/* user: the program's own state on each rank. Checkpoints hold it as tensors of bytes,
   "ddp.user.RANK". */
#pragma once

#include "state/safetensors.h"
#include "state/safetensors_write.h"

typedef struct ddp_user_name {
	char text[24];
} ddp_user_name;

/* All ranks' states, one behind the other. */
typedef struct ddp_users {
	int ranks;
	size_t *bytes;  /* [ranks] */
	ddp_user_name *names; /* [ranks]: of their tensors */
	char *all;      /* rank 0 */
	char *own;      /* [DDP_USER_STATE_MAX] of this rank, when loading */
} ddp_users;

/* Collective: rank 0 then has what all gave. Free with ddp_users_free(), also after
   an error. */
ddp_status ddp_users_gather(ddp_comm *comm, const ddp_model *model, ddp_users *users);
/* This rank's alone. */
ddp_status ddp_users_own(int rank, const ddp_model *model, ddp_users *users);
/* The states as tensors of a file, [ranks] at most, which point to `users`. Returns how many there are. */
int ddp_users_tensors(const ddp_users *users, ddp_safetensors_tensor *tensors);

/* Does, before ddp_users_read(), the work that can fail on this rank alone. */
ddp_status ddp_users_prepare(int ranks, ddp_users *users);
/* Rank 0: from a file. */
ddp_status ddp_users_read(const ddp_safetensors *file, ddp_users *users);
/* Collective: each rank then has its own in users->own. */
ddp_status ddp_users_scatter(ddp_comm *comm, ddp_users *users);
void ddp_users_free(ddp_users *users);

/* Whether a tensor of a file is such a state. */
bool ddp_users_is_name(const char *name);
