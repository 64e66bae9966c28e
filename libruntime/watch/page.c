/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/page.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/text.h"

_Static_assert(sizeof(struct ddp_progress) == DDP_PROGRESS_SLOT_BYTES, "a slot is one description");

#define SET(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* ---- the page ----------------------------------------------------------------------------- */

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

/* The number that the plugin gave the task; -1: none. */
static int number_of_task(const char *name)
{
	const char *text = getenv(name);
	int64_t value;

	return text != NULL && ddp_parse_int64(text, 0, INT32_MAX, &value) ? (int)value : -1;
}

/* Ranks that a task started, by ddp_spawn() or torchrun, share its descriptor, but have no page of their own
   in it. A rank that was given its identity has the task's page, whatever its number in the context is. */
static int index_of_page(const ddp_job *job)
{
	if (job->identity_source == DDP_SOURCE_SPAWN || getenv("TORCHELASTIC_RUN_ID") != NULL)
		return -1;
	return job->identity_source == DDP_SOURCE_GIVEN ? number_of_task("LOCAL_RANK") : job->local_rank;
}

static void *map_shared(const ddp_job *job)
{
	const int index = index_of_page(job), fd = index >= 0 ? descriptor_of_environment() : -1;
	struct stat info;

	if (fd < 0)
		return MAP_FAILED;
	off_t offset = (off_t)index * DDP_PROGRESS_BYTES;
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

void ddp_page_unmap(struct ddp_progress *slot)
{
	const size_t in_page = (uintptr_t)slot % DDP_PROGRESS_BYTES;
	char *page = (char *)slot - in_page;
	const size_t before = (uintptr_t)page % ddp_system_page_bytes();

	if (slot != NULL)
		munmap(page - before, before + DDP_PROGRESS_BYTES);
}

bool ddp_page_deal(const ddp_job *job, struct ddp_progress_deal *deal)
{
	const int fd = index_of_page(job) >= 0 ? descriptor_of_environment() : -1;
	struct ddp_progress_node node;
	struct stat info;

	if (fd < 0 || fstat(fd, &info) != 0 || info.st_size < DDP_PROGRESS_BYTES ||
	    pread(fd, &node, sizeof(node), info.st_size - DDP_PROGRESS_BYTES) != (ssize_t)sizeof(node))
		return false;
	*deal = node.deal;
	return deal->generation > 0 && memchr(deal->master_addr, '\0', sizeof(deal->master_addr)) != NULL &&
	       memchr(deal->key, '\0', sizeof(deal->key)) != NULL;
}

/* ---- slots -------------------------------------------------------------------------------- */

/* A program before this one, in the same task, may have ended without ddp_finalize(). */
static bool is_abandoned(const struct ddp_progress *slot)
{
	const uint32_t pid = GET(slot->pid);

	return pid != 0 && pid != (uint32_t)getpid() && pid <= INT32_MAX && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static bool is_used(const struct ddp_progress *slot)
{
	return GET(slot->magic) == DDP_PROGRESS_MAGIC;
}

/* They are not to be shown beside this process's. */
static void drop_abandoned(struct ddp_progress *slots)
{
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		uint32_t magic = DDP_PROGRESS_MAGIC;
		if (is_abandoned(&slots[i]))
			__atomic_compare_exchange_n(&slots[i].magic, &magic, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

static bool is_open_context(const struct ddp_progress *slot)
{
	return is_used(slot) && slot->writer == DDP_WRITER_LIBDDP && GET(slot->closed) == 0;
}

static void fill(struct ddp_progress *slot, enum ddp_writer writer, uint32_t aside)
{
	const uint32_t magic = slot->magic;

	*slot = (struct ddp_progress){ .magic = magic, .bucket = -1, .writer = writer, .aside = aside,
		                       .pid = writer == DDP_WRITER_LIBDDP ? (uint32_t)getpid() : 0 };
	__atomic_store_n(&slot->magic, DDP_PROGRESS_MAGIC, __ATOMIC_RELEASE);
}

/* Two processes of a task may come at once. */
static bool take(struct ddp_progress *slot)
{
	uint32_t magic = GET(slot->magic);

	if (magic == DDP_PROGRESS_TAKEN || (is_used(slot) && GET(slot->closed) == 0))
		return false;
	return __atomic_compare_exchange_n(&slot->magic, &magic, DDP_PROGRESS_TAKEN, false, __ATOMIC_ACQUIRE,
	                                   __ATOMIC_RELAXED);
}

static struct ddp_progress *take_slot(struct ddp_progress *slots)
{
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		if (take(&slots[i]))
			return &slots[i];
	return NULL;
}

static uint32_t aside_of(const ddp_job *job, const struct ddp_progress *slots)
{
	uint32_t aside = 0;

	if (job->identity_source == DDP_SOURCE_GIVEN &&
	    (job->rank != number_of_task("RANK") || job->world_size != number_of_task("WORLD_SIZE")))
		aside = DDP_ASIDE_NUMBERS | DDP_ASIDE_RANKS;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		if (is_open_context(&slots[i]) && (slots[i].aside & DDP_ASIDE_NUMBERS) == 0)
			aside |= DDP_ASIDE_NUMBERS;
	return aside;
}

static ddp_recorder map_ring(const ddp_job *job, const struct ddp_progress *slots, const struct ddp_progress *slot)
{
	return ddp_recorder_map(descriptor_of_environment(), index_of_page(job), (int)(slot - slots));
}

static struct ddp_progress *map_slot(const ddp_job *job, ddp_recorder *recorder)
{
	void *shared = map_shared(job);

	if (shared == MAP_FAILED)
		return NULL;
	drop_abandoned(shared);
	const uint32_t aside = aside_of(job, shared);
	struct ddp_progress *slot = take_slot(shared);
	if (slot == NULL) {
		ddp_log(DDP_LOG_INFO, "rank %d: %d contexts of this process are on its progress page: the failure report, "
		        "stall= and ddp-status do not see this one", job->rank, DDP_PROGRESS_SLOTS);
		ddp_page_unmap(shared);
		return NULL;
	}
	if (recorder != NULL)
		*recorder = map_ring(job, shared, slot);
	fill(slot, DDP_WRITER_LIBDDP, aside);
	return slot;
}

struct ddp_progress *ddp_page_map(const ddp_job *job, ddp_recorder *recorder)
{
	if (recorder != NULL)
		*recorder = (ddp_recorder){ NULL, NULL };
	struct ddp_progress *slot = map_slot(job, recorder);

	if (slot != NULL)
		return slot;
	slot = mmap(NULL, DDP_PROGRESS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (slot == MAP_FAILED)
		return NULL;
	fill(slot, DDP_WRITER_LIBDDP, 0);
	return slot;
}

struct ddp_progress *ddp_page_map_for_nccl(const ddp_job *job, ddp_recorder *recorder)
{
	void *shared = map_shared(job);
	struct ddp_progress *slots = shared, *slot = NULL;

	if (recorder != NULL)
		*recorder = (ddp_recorder){ NULL, NULL };

	if (shared == MAP_FAILED)
		return NULL;
	drop_abandoned(slots);
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		if (is_used(&slots[i]) && slots[i].writer == DDP_WRITER_LIBDDP) {
			ddp_page_unmap(slots);
			return NULL;
		}
		if (slot == NULL && is_used(&slots[i]) && slots[i].writer == DDP_WRITER_NCCL)
			slot = &slots[i];
	}
	if (slot == NULL)
		slot = take_slot(slots);
	if (slot == NULL) {
		ddp_page_unmap(slots);
		return NULL;
	}
	if (recorder != NULL)
		*recorder = map_ring(job, slots, slot);
	fill(slot, DDP_WRITER_NCCL, 0);
	return slot;
}

/* ---- what is written there ---------------------------------------------------------------- */

/* Writers of texts take the lock. The numbers that a collective writes each time take no lock. */
static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;

void ddp_page_collective(struct ddp_progress *page, uint64_t number, uint64_t now_ns)
{
	if (page == NULL)
		return;
	SET(page->collective, number);
	SET(page->collective_ns, now_ns);
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

void ddp_page_survives(struct ddp_progress *page, bool survives)
{
	if (page == NULL)
		return;
	SET(page->aside, survives ? page->aside | DDP_PROGRESS_SURVIVES : page->aside & ~(uint32_t)DDP_PROGRESS_SURVIVES);
}

void ddp_page_survived(struct ddp_progress *page)
{
	if (page != NULL)
		SET(page->aside, page->aside | DDP_PROGRESS_SURVIVED);
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
		const uint32_t culprit = rank >= 0 && (page->aside & DDP_ASIDE_RANKS) != 0 ? UINT32_MAX : (uint32_t)(rank + 1);
		const bool known = node != NULL || page->culprit != culprit;
		page->culprit = culprit;
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
