/* SPDX-License-Identifier: Apache-2.0 */
/* fit: the parts of a model that depend on its ranks: the strategy, how the arenas are cut into buckets and units, and
   what the strategy, the optimizer and the reducer keep for these. A model is fitted when it is made, and again when it
   goes on without some of its ranks (reduce/survival.h). */
#pragma once

#include "ddp.h"

/* The ranks that exchange gradients when the model is made: a newcomer counts those that it is to join (renewal.h). */
int ddp_model_first_ranks(const ddp_model *model);

/* Chooses the strategy for the ranks of the model's communicator. Returns among how many of them rows travel. */
int ddp_model_choose(ddp_model *model);
/* Whether the memory of gradients is to go back to the system, now or when a newcomer has joined. */
bool ddp_model_gives_back(const ddp_model *model);

/* Makes the parts, once the model has its layout and its uses. Local. Free them after an error, too. */
ddp_status ddp_model_fit(ddp_model *model);
/* Ends what ddp_model_fit() began, once the arenas are there. Collective. */
ddp_status ddp_model_join_fit(ddp_model *model);
void ddp_model_unfit(ddp_model *model);

/* Fits a model whose ranks have stopped in the middle of a step to `comm`, which has some of these ranks. Arenas stay
   where they are, and each rank gets its part of the optimizer's state from memory that it can reach, or, unless
   `holders` is NULL, from these ranks of `comm` (ddp_buddy_holders()). Collective over `comm`. After an error the model
   is as it was, and the call may be repeated with fewer ranks. */
ddp_status ddp_model_refit(ddp_model *model, ddp_comm *comm, const int *holders);
