/* SPDX-License-Identifier: Apache-2.0 */
/* page: where a context's struct ddp_progress lies. A function's `page` is that slot. */
#pragma once

#include "ddp.h"
#include "watch/progress.h"
#include "watch/recorder.h"

/* Maps the rank's page of the plugin's memfd (DDP_PROGRESS_FD) and takes a slot of it. Where there is no such
   page, or no slot is free, the slot is private memory. It is empty. NULL: no memory. *recorder (or NULL) becomes the
   slot's ring, which the caller unmaps; a private slot has none. */
struct ddp_progress *ddp_page_map(const ddp_job *job, ddp_recorder *recorder);
/* The same for nccl_plugins/profiler/plugin: NULL also if there is no memfd, or a context of libddp has a slot. */
struct ddp_progress *ddp_page_map_for_nccl(const ddp_job *job, ddp_recorder *recorder);
/* The rank has ended its part, and not by an error that is only open; the text stays. */
void ddp_page_close(struct ddp_progress *page);
void ddp_page_unmap(struct ddp_progress *page); /* NULL is allowed */

/* These functions tell what the rank waits for. Several communicators of a process may write at
   once: what came last stays. In each, `page` may be NULL. */
/* A collective of all ranks begins, at a time of ddp_coarse_ns(). Costs some nanoseconds. */
void ddp_page_collective(struct ddp_progress *page, uint64_t number, uint64_t now_ns);
/* `text` lasts, since start_ns (0: since the collective began); `number` is
   that of a collective of all ranks, or 0. */
void ddp_page_wait(struct ddp_progress *page, uint64_t number, uint64_t start_ns, const char *text);
void ddp_page_go_on(struct ddp_progress *page);

/* Whether the ranks go on if one of them dies; and this one has done so. */
void ddp_page_survives(struct ddp_progress *page, bool survives);
void ddp_page_survived(struct ddp_progress *page);

/* Reads what srun has dealt to the node's ranks that have kept their processes. False: it has dealt nothing yet. */
bool ddp_page_deal(const ddp_job *job, struct ddp_progress_deal *deal);

/* A rank of another node asks what this one does, as it waits for it. */
void ddp_page_wanted(struct ddp_progress *page, uint64_t now_ns);

/* Keeps an error. It is about `rank` on `node` (NULL: not known); if the rank is -1, about the
   one that an earlier call with the same status has named. A final error stays one,
   whatever follows, until ddp_page_forget_error(). */
void ddp_page_error(struct ddp_progress *page, ddp_status status, enum ddp_error_state state, int rank,
                    const char *node, const char *text);
/* The rank goes on after an error that is open. Its text is forgotten, unless it may be that of a
   communicator which others wait in: one that breaks communicators, and names a rank. */
void ddp_page_pass_error(struct ddp_progress *page);
/* The rank goes on after any error up to this state. */
void ddp_page_forget_error(struct ddp_progress *page, enum ddp_error_state up_to);
