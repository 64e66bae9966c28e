/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/blame.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "ddp.h"
#include "spank/identity/nodelist.h"
#include "spank/wire/progress_text.h"

bool blame_ends_in_error(const struct ddp_progress *page)
{
	return page->magic == DDP_PROGRESS_MAGIC && page->writer == DDP_WRITER_LIBDDP &&
	       (page->error_state == DDP_ERROR_OPEN || page->error_state == DDP_ERROR_FINAL);
}

bool blame_is_of_peer(const struct ddp_progress *page, uint32_t own_rank)
{
	if (page->culprit > 0 && page->culprit - 1 == own_rank)
		return false;
	return page->magic == DDP_PROGRESS_MAGIC &&
	       (page->status == DDP_ERR_PEER || page->status == DDP_ERR_ABORTED ||
	        (page->status == DDP_ERR_TIMEOUT && page->culprit > 0));
}

bool blame_is_shared(const struct ddp_progress *page, uint32_t own_rank)
{
	return blame_ends_in_error(page) && !blame_is_of_peer(page, own_rank) && page->culprit > 0 &&
	       page->culprit - 1 != own_rank;
}

uint32_t blame_of(const struct ddp_progress *page, uint32_t own_rank)
{
	if (!blame_is_of_peer(page, own_rank) || page->culprit == 0)
		return BLAME_NOBODY;
	return page->culprit - 1;
}

bool blame_cause_is_late(const struct ddp_progress *page, uint32_t own_rank)
{
	return blame_is_of_peer(page, own_rank) && page->status != DDP_ERR_PEER;
}

void blame_add_culprit(const struct ddp_progress *page, uint32_t own_rank, uint32_t world_size,
                       struct sink *sink)
{
	uint32_t rank = blame_of(page, own_rank);

	/* Who aborts has an error of its own. */
	if (rank >= world_size || page->status == DDP_ERR_ABORTED)
		return;
	sink_add(sink, "rank %u of %u", rank, world_size);
	if (page->culprit_node[0] != '\0') {
		sink_add(sink, " on ");
		sink_add_untrusted(sink, page->culprit_node, sizeof(page->culprit_node));
	}
	sink_add(sink, "%s", page->status == DDP_ERR_TIMEOUT ? BLAME_LATE : BLAME_LOST);
}

const char *blame_place_of_node(const char *text, uint32_t *rank)
{
	unsigned int world_size;
	int used = 0;

	if (sscanf(text, "rank %u of %u%n", rank, &world_size, &used) != 2)
		return NULL;
	text += used;
	return strncmp(text, BLAME_LATE, strlen(BLAME_LATE)) == 0 ||
	       strncmp(text, BLAME_LOST, strlen(BLAME_LOST)) == 0 ? text : NULL;
}

bool blame_describe(const struct blamed *blamed, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	struct progress_text progress;

	sink_add(&sink, "rank %u of %u on ", blamed->rank, blamed->world_size);
	sink_add_untrusted(&sink, blamed->node, HOST_NAME_MAX_BYTES);
	sink_add(&sink, " ");
	if (blamed->runs) {
		sink_add(&sink, blamed->stopped ? "was stopped by a signal or a debugger" : "was still running");
		progress_text_read(&blamed->progress, blamed->now_ns, &progress);
		if (progress.known)
			sink_add(&sink, ", ");
		progress_text_add(&sink, &progress);
		return true;
	}
	if (!WIFEXITED(blamed->wait_status) || WEXITSTATUS(blamed->wait_status) != 0)
		return false;
	sink_add(&sink, "had ended with code 0");
	if (blamed->seconds_ago >= 0)
		sink_add(&sink, ", %.1f s before", blamed->seconds_ago);
	return true;
}
