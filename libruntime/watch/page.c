#include "watch/page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/log.h"

_Static_assert(sizeof(struct ddp_progress) <= DDP_PROGRESS_BYTES, "one page holds it");

static int descriptor_of_environment(void)
{
	const char *text = getenv("DDP_PROGRESS_FD");
	char *end;

	if (text == NULL || text[0] == '\0')
		return -1;
	errno = 0;
	long value = strtol(text, &end, 10);
	if (errno != 0 || *end != '\0' || value < 0 || value > 1 << 20) {
		ddp_log(DDP_LOG_WARN, "DDP_PROGRESS_FD is \"%.32s\", not a descriptor; ignored", text);
		return -1;
	}
	return (int)value;
}

static void *map_shared(const ddp_job *job)
{
	struct stat info;
	/* Ranks that a task forked share its descriptor, but have no page of
	   their own in it. */
	int fd = job->identity_source == DDP_SOURCE_SPAWN ? -1 : descriptor_of_environment();

	if (fd < 0)
		return MAP_FAILED;
	off_t offset = (off_t)job->local_rank * DDP_PROGRESS_BYTES;
	if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
	    info.st_size < offset + DDP_PROGRESS_BYTES) {
		ddp_log(DDP_LOG_WARN,
		        "rank %d: DDP_PROGRESS_FD=%d is not the plugin's progress page; ignored",
		        job->rank, fd);
		return MAP_FAILED;
	}
	void *page = mmap(NULL, DDP_PROGRESS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
	if (page == MAP_FAILED)
		ddp_log(DDP_LOG_WARN, "rank %d: cannot map the progress page: %s", job->rank,
		        strerror(errno));
	return page;
}

struct ddp_progress *ddp_page_map(const ddp_job *job)
{
	void *memory = map_shared(job);

	if (memory == MAP_FAILED)
		memory = mmap(NULL, DDP_PROGRESS_BYTES, PROT_READ | PROT_WRITE,
		              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	struct ddp_progress *page = memory;
	*page = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .bucket = -1 };
	return page;
}

void ddp_page_unmap(struct ddp_progress *page)
{
	if (page != NULL)
		munmap(page, DDP_PROGRESS_BYTES);
}
