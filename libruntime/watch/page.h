/* page: where this rank's struct ddp_progress lies. */
#ifndef DDP_WATCH_PAGE_H
#define DDP_WATCH_PAGE_H

#include "ddp.h"
#include "watch/progress.h"

/*
 * Maps the rank's page of the plugin's memfd (DDP_PROGRESS_FD), or private
 * memory where there is none or it is not what it should be. Cleared, but for
 * the magic. NULL: no memory.
 */
struct ddp_progress *ddp_page_map(const ddp_job *job);
void ddp_page_unmap(struct ddp_progress *page);

#endif
