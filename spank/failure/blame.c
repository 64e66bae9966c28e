#include "spank/failure/blame.h"

#include <sys/wait.h>

#include "ddp.h"
#include "spank/failure/doing.h"
#include "spank/identity/nodelist.h"

bool blame_ends_in_error(const struct ddp_progress *page)
{
	return page->magic == DDP_PROGRESS_MAGIC && page->writer == DDP_WRITER_LIBDDP &&
	       (page->error_state == DDP_ERROR_OPEN || page->error_state == DDP_ERROR_FINAL);
}

bool blame_is_of_peer(const struct ddp_progress *page)
{
	return page->magic == DDP_PROGRESS_MAGIC &&
	       (page->status == DDP_ERR_PEER || page->status == DDP_ERR_ABORTED ||
	        (page->status == DDP_ERR_TIMEOUT && page->culprit > 0));
}

uint32_t blame_of(const struct ddp_progress *page, uint32_t own_rank)
{
	if (!blame_is_of_peer(page) || page->culprit == 0 || page->culprit - 1 == own_rank)
		return BLAME_NOBODY;
	return page->culprit - 1;
}

bool blame_is_timeout(const struct ddp_progress *page)
{
	return page->magic == DDP_PROGRESS_MAGIC && page->status == DDP_ERR_TIMEOUT;
}

bool blame_describe(const struct blamed *blamed, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	struct doing doing;

	sink_add(&sink, "rank %u of %u on ", blamed->rank, blamed->world_size);
	sink_add_untrusted(&sink, blamed->node, HOST_NAME_MAX_BYTES);
	sink_add(&sink, " ");
	if (blamed->runs) {
		sink_add(&sink, "was still running");
		doing_read(&blamed->progress, blamed->now_ns, &doing);
		if (doing.known)
			sink_add(&sink, ", ");
		doing_add(&sink, &doing);
		return true;
	}
	if (!WIFEXITED(blamed->wait_status) || WEXITSTATUS(blamed->wait_status) != 0)
		return false;
	sink_add(&sink, "had ended with code 0");
	if (blamed->seconds_ago >= 0)
		sink_add(&sink, ", %.1f s before", blamed->seconds_ago);
	return true;
}
