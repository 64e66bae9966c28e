/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join: brings ranks that have kept their processes together with newcomers, in a world that they have opened
 * (renewal.h). A newcomer has a model with the same layout, of which nothing counts. A rank that has stayed sends it
 * all that a step leaves. The data of one broadcast goes to each node once.
 */
#pragma once

#include "reduce/level.h"

/* Fits the model to `comm`. Ranks are newcomers that are not whole in all[comm's size]; they get the step of rank
   `root`, and a shard, if there are shards, from the rank that kept a copy of it (reduce/buddy.h). The optimizer's
   state of the former ranks is read once more. Collective over `comm`. */
ddp_status ddp_join(ddp_model *model, ddp_comm *comm, const ddp_survivor *all, int root);
