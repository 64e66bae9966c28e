/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/page.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/log.h"
#include "base/pages.h"

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
	/* Ranks that a task started, by ddp_spawn() or torchrun, share its descriptor,
	   but have no page of their own in it. */
	bool below_task = job->identity_source == DDP_SOURCE_SPAWN ||
	                  getenv("TORCHELASTIC_RUN_ID") != NULL;
	int fd = below_task ? -1 : descriptor_of_environment();

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
	/* A page of the system's may hold those of several ranks. */
	size_t before = (size_t)offset % ddp_system_page_bytes();
	char *pages = mmap(NULL, before + DDP_PROGRESS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
	                   offset - (off_t)before);
	if (pages == MAP_FAILED) {
		ddp_log(DDP_LOG_WARN, "rank %d: cannot map the progress page: %s", job->rank,
		        ddp_reason(errno));
		return MAP_FAILED;
	}
	return pages + before;
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
	*page = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .pid = (uint32_t)getpid() };
	return page;
}

struct ddp_progress *ddp_page_map_for_nccl(const ddp_job *job)
{
	void *memory = map_shared(job);

	if (memory == MAP_FAILED)
		return NULL;
	struct ddp_progress *page = memory;
	if (page->magic == DDP_PROGRESS_MAGIC && page->writer != DDP_WRITER_NCCL) {
		ddp_page_unmap(page);
		return NULL;
	}
	*page = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .writer = DDP_WRITER_NCCL };
	return page;
}

void ddp_page_unmap(struct ddp_progress *page)
{
	size_t before = (uintptr_t)page % ddp_system_page_bytes();

	if (page != NULL)
		munmap((char *)page - before, before + DDP_PROGRESS_BYTES);
}

/* For the texts. The numbers that a collective writes each time take no lock. */
static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;

#define SET(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* To some milliseconds, at a fifth of the price. */
static uint64_t coarse_ns(void)
{
	struct timespec now;

#ifdef CLOCK_MONOTONIC_COARSE
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
	clock_gettime(CLOCK_MONOTONIC, &now);
#endif
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void ddp_page_collective(struct ddp_progress *page, uint64_t number)
{
	if (page == NULL)
		return;
	SET(page->collective, number);
	SET(page->collective_ns, coarse_ns());
}

void ddp_page_wait(struct ddp_progress *page, uint64_t number, uint64_t start_ns, const char *text)
{
	if (page == NULL)
		return;
	pthread_mutex_lock(&text_lock);
	snprintf(page->collective_text, sizeof(page->collective_text), "%s", text);
	page->described = number;
	pthread_mutex_unlock(&text_lock);
	if (start_ns != 0)
		SET(page->collective_ns, start_ns);
	SET(page->waiting, number != 0 ? DDP_WAITING_COLLECTIVE : DDP_WAITING_OTHER);
}

void ddp_page_go_on(struct ddp_progress *page)
{
	if (page != NULL)
		SET(page->waiting, DDP_WAITING_NOT);
}

void ddp_page_wanted(struct ddp_progress *page, uint64_t now_ns)
{
	if (page != NULL)
		SET(page->wanted_ns, now_ns);
}

void ddp_page_error(struct ddp_progress *page, ddp_status status, enum ddp_error_state state, int rank,
                    const char *node, const char *text)
{
	if (page == NULL)
		return;
	pthread_mutex_lock(&text_lock);
	if (rank >= 0 || page->status != (uint32_t)status) {
		const bool known = node != NULL || page->culprit != (uint32_t)(rank + 1);
		page->culprit = (uint32_t)(rank + 1);
		if (known)
			snprintf(page->culprit_node, sizeof(page->culprit_node), "%s", node != NULL ? node : "");
	}
	page->status = (uint32_t)status;
	if (page->error_state < (uint32_t)state)
		SET(page->error_state, (uint32_t)state);
	snprintf(page->error, sizeof(page->error), "%s", text);
	pthread_mutex_unlock(&text_lock);
}

static void clear_error(struct ddp_progress *page)
{
	page->status = DDP_OK;
	page->culprit = 0;
	page->culprit_node[0] = '\0';
	page->error[0] = '\0';
}

/* Whether a communicator may be broken by such an error. */
static bool may_break(uint32_t status)
{
	return status == DDP_ERR_PEER || status == DDP_ERR_TIMEOUT || status == DDP_ERR_ABORTED ||
	       status == DDP_ERR_MISMATCH || status == DDP_ERR_NOMEM;
}

void ddp_page_pass_error(struct ddp_progress *page)
{
	/* Each step comes here, and takes no lock. */
	if (page == NULL || __atomic_load_n(&page->error_state, __ATOMIC_RELAXED) != DDP_ERROR_OPEN)
		return;
	pthread_mutex_lock(&text_lock);
	if (page->error_state == DDP_ERROR_OPEN) {
		SET(page->error_state, DDP_ERROR_PAST);
		if (page->culprit == 0 || !may_break(page->status))
			clear_error(page);
	}
	pthread_mutex_unlock(&text_lock);
}

void ddp_page_close(struct ddp_progress *page)
{
	if (page == NULL)
		return;
	pthread_mutex_lock(&text_lock);
	if (page->error_state == DDP_ERROR_OPEN)
		SET(page->error_state, DDP_ERROR_PAST);
	SET(page->closed, 1);
	pthread_mutex_unlock(&text_lock);
}

void ddp_page_forget_error(struct ddp_progress *page, enum ddp_error_state up_to)
{
	if (page == NULL)
		return;
	pthread_mutex_lock(&text_lock);
	if (page->error_state <= (uint32_t)up_to) {
		SET(page->error_state, DDP_ERROR_PAST);
		clear_error(page);
	}
	pthread_mutex_unlock(&text_lock);
}
