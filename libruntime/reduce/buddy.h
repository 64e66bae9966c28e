/* SPDX-License-Identifier: Apache-2.0 */
/* buddy: if each rank keeps the only copy of its shard of the optimizer's state (strategy_scatter.c), another rank,
   its buddy, keeps a copy of the shard, so that ranks can go on without those that have died (reduce/survival.h). The
   buddy is on another node, if there is one.

   When a step has ended, its state travels to the buddies while forward and backward of the next step run. Each rank
   waits for what it sends and receives before it tells the totals of that next step (step.c). So if any rank has the
   totals, all copies of the step before are whole. Only then ranks update. A rank keeps what the update changes of
   its own shard, and the last two copies of each shard whose buddy it is. So the ranks that are left can all go to
   the last step that a rank has ended, or, if a rank died before its buddy had all of that step, to the step before.

   If all ranks are on one node, and the model is on the host without late_gather, nothing travels: what a rank owns,
   and what an update changes of it, lie in memory that all ranks share. So a rank that is left reads a dead rank's
   shard there.

   A device's memory is scarce: it keeps what an update changes, and the host's memory has the copies. */
#pragma once

#include "reduce/level.h"

/* Whether ranks share the optimizer's state, which is then memory of ddp_mem_alloc(). */
bool ddp_buddy_shares(const ddp_model *model);
/* buddies[ranks] becomes the buddy of each rank. nodes[ranks] are the nodes of ranks, numbered from 0 without gaps;
   order[ranks] becomes the ranks by nodes. */
void ddp_buddy_choose(const int *nodes, int ranks, int *order, int *buddies);
/* A strategy has these functions as keep_undo(), undo() and set_steps(). Without a buddy copy, the functions below do
   nothing. ddp_buddy_forget(): the copies are stale, because the program has changed parameters or state. */
ddp_status ddp_buddy_open(ddp_model *model);
void ddp_buddy_undo(ddp_model *model, int64_t step, const bool *dead);
void ddp_buddy_forget(ddp_model *model, int64_t steps);
/* Local, but waits for what is under way. */
void ddp_buddy_close(ddp_model *model);
/* The bytes that a rank sends after each step, and those of its memory that it keeps for all of this. */
void ddp_buddy_bytes(const ddp_model *model, size_t *sent, size_t *kept);

/* A step has ended: begins to send its state. An error breaks the communicator. */
void ddp_buddy_send(ddp_model *model);
/* The step under way has its first bucket, and all parameters of the last one are there: a device begins to copy those
   that wards own. */
void ddp_buddy_read(ddp_model *model);
/* Waits until a device copies nothing, so that parameters and state may be written between two steps. On the host this
   function does nothing: messages of the state may still be under way. */
ddp_status ddp_buddy_rest(ddp_model *model);
/* Waits until this rank has sent and received the copies of the last step. An error breaks the communicator. */
ddp_status ddp_buddy_settle(ddp_model *model);
/* If there are no copies yet, or not since a load: makes them, and waits until all are whole. Collective. */
ddp_status ddp_buddy_renew(ddp_model *model);
/* ddp_update calls this function as its `keep`, for the step under way of the model `keeper`. */
void ddp_buddy_keep(void *keeper, int64_t begin, int64_t end, int64_t at);

/* After a failure: the last step of which this rank has all copies that it is to have. Ends what is under way. */
int64_t ddp_buddy_copied(ddp_model *model);
/* *steps, the last step that one of the ranks has ended, becomes the step that they can all take up. `left` are the
   ranks that are left, and newcomers, if there are some: all[left's size] tells. DDP_ERR_STATE, on all that are left
   alike: a shard and its copy are lost. */
ddp_status ddp_buddy_find_step(ddp_model *model, const ddp_comm *left, const ddp_survivor *all, int64_t *steps);
/* [former ranks]: the rank of `left` that then has the shard of each former rank. NULL: there are no copies. */
const int *ddp_buddy_holders(const ddp_model *model);
/* All are at that step, and `model` is fitted to the ranks of `left`: each rank gets all parameters, and what it keeps
   of the optimizer's state. A newcomer's `former` has no shards: they are cut as those of `model`. Collective over the
   model's communicator. */
ddp_status ddp_buddy_hand_over(const ddp_model *former, ddp_model *model, const int *holders);
