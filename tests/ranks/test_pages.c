/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* A system whose pages are larger than 4 KiB, as far as this program's sysconf()
   and mmap() can pretend it: the library's calls come here first (--wrap). */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"
#include "watch/page.h"

enum { PAGE_BYTES = 64 * 1024, RANKS = 16 };

long __real_sysconf(int name);
long __wrap_sysconf(int name);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);

long __wrap_sysconf(int name)
{
	return name == _SC_PAGESIZE ? PAGE_BYTES : __real_sysconf(name);
}

/* At addresses that such a system would give. */
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (offset % PAGE_BYTES != 0) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	if (address != NULL)
		return __real_mmap(address, bytes, protection, flags, fd, offset);
	char *room = __real_mmap(NULL, bytes + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return MAP_FAILED;
	room += (PAGE_BYTES - (uintptr_t)room % PAGE_BYTES) % PAGE_BYTES;
	return __real_mmap(room, bytes, protection, flags | MAP_FIXED, fd, offset);
}

TEST(every_rank_maps_its_progress_page)
{
	struct ddp_progress seen, *pages[RANKS];
	int fd = memfd_create("progress", MFD_CLOEXEC);
	char text[16];

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, RANKS * DDP_PROGRESS_BYTES), 0);
	snprintf(text, sizeof(text), "%d", fd);
	setenv("DDP_PROGRESS_FD", text, 1);
	for (int r = 0; r < RANKS; r++) {
		const ddp_job job = { .rank = r, .local_rank = r, .world_size = RANKS, .local_world_size = RANKS };
		pages[r] = ddp_page_map(&job, NULL);
		assert_non_null(pages[r]);
		ddp_page_collective(pages[r], 100 + (uint64_t)r, ddp_coarse_ns());
	}
	for (int r = 0; r < RANKS; r++) {
		assert_int_equal(pread(fd, &seen, sizeof(seen), (off_t)r * DDP_PROGRESS_BYTES), sizeof(seen));
		assert_int_equal(seen.magic, DDP_PROGRESS_MAGIC);
		assert_int_equal(seen.collective, 100 + r);
		ddp_page_unmap(pages[r]);
	}
	unsetenv("DDP_PROGRESS_FD");
	close(fd);
}

static int allocate(ddp_comm *comm, void *argument)
{
	static const size_t sizes[] = { 0, 1, 5000, PAGE_BYTES, PAGE_BYTES + 1 };
	float x[10], *memory;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		CHECK_OK(ddp_mem_alloc(comm, sizes[i], (void **)&memory));
		CHECK((uintptr_t)memory % PAGE_BYTES == 0);
		if (sizes[i] >= sizeof(x)) {
			for (int k = 0; k < 10; k++)
				memory[k] = (float)ddp_comm_rank(comm);
			CHECK_OK(ddp_all_reduce(comm, memory, x, 10, DDP_F32, DDP_SUM));
			CHECK(x[9] == 3);
		}
		CHECK_OK(ddp_mem_free(comm, memory));
	}
	return 0;
}

TEST_RUNS(every_rank_gets_memory_at_a_page, RUN_WORLD(.ranks = 3, .body = allocate));
