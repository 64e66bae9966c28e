/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* A group may be freed after ddp_finalize(), and another thread may be in one of its operations meanwhile. What the
   group
   needs of the context stays until then: the progress page, the flight recorder's ring, the device. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "ddp.h"
#include "device/device.h"
#include "tests/support/options.h"
#include "tests/support/test.h"
#include "watch/page.h"
#include "watch/record.h"
#include "watch/watch.h"

static const char file_name[] = "ddp_outlives";

static int file = -1;
static int warnings;

static void count_warnings(void *user, ddp_log_level level, const char *message)
{
	print_error("%s\n", message);
	warnings++;
}

/* The file that the plugin makes for a node with one task. */
static int make_file(void **state)
{
	const struct ddp_record_place place = { .magic = DDP_RECORD_MAGIC, .version = DDP_RECORD_VERSION, .tasks = 1 };
	char text[16];

	file = memfd_create(file_name, MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, (off_t)DDP_RECORD_FILE_BYTES(1)) != 0 ||
	    pwrite(file, &place, sizeof(place), (off_t)DDP_RECORD_PLACE_OFFSET(1)) != (ssize_t)sizeof(place))
		return -1;
	snprintf(text, sizeof(text), "%d", file);
	setenv("DDP_PROGRESS_FD", text, 1);
	warnings = 0;
	ddp_set_log(count_warnings, NULL, DDP_LOG_WARN);
	return 0;
}

static int drop_file(void **state)
{
	unsetenv("DDP_PROGRESS_FD");
	ddp_set_log(NULL, NULL, DDP_LOG_ERROR);
	return close(file);
}

/* How many of the file's parts this process has mapped: the page, the heads of the rings, a ring. */
static int count_mappings(void)
{
	char line[512];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL)
		count += strstr(line, file_name) != NULL;
	fclose(maps);
	return count;
}

static ddp_comm *group_of(ddp_context *context)
{
	ddp_comm *group;

	assert_int_equal(ddp_comm_split(ddp_world(context), 0, 0, &group), DDP_OK);
	return group;
}

TEST_WITH(page_and_ring_stay_until_the_last_group_is_freed, make_file, drop_file)
{
	ddp_context *context, *next;
	float value = 3;

	assert_int_equal(ddp_init(NULL, &context), DDP_OK);
	assert_non_null(ddp_watch_recorder(context->watch));
	ddp_comm *first = group_of(context), *second = group_of(context);
	assert_int_equal(ddp_barrier(first), DDP_OK);
	assert_int_equal(ddp_finalize(context), DDP_OK);
	assert_int_equal(count_mappings(), 3);
	assert_int_equal(ddp_all_reduce(first, NULL, &value, 1, DDP_F32, DDP_SUM), DDP_OK);
	assert_int_equal(ddp_comm_free(first), DDP_OK);
	assert_int_equal(count_mappings(), 3);
	/* The next context takes the slot. What the group does does not show there. */
	assert_int_equal(ddp_init(NULL, &next), DDP_OK);
	const uint64_t before = ddp_watch_recorder(next->watch)->head->next;
	assert_int_equal(ddp_all_reduce(second, NULL, &value, 1, DDP_F32, DDP_SUM), DDP_OK);
	assert_int_equal(ddp_watch_recorder(next->watch)->head->next, before);
	assert_int_equal(ddp_finalize(next), DDP_OK);
	assert_int_equal(count_mappings(), 3);
	assert_int_equal(ddp_comm_free(second), DDP_OK);
	assert_int_equal(count_mappings(), 0);
	assert_int_equal(warnings, 0);
}

/* ---- an operation under way ------------------------------------------------------------------ */

static struct {
	atomic_bool holds; /* the thread in its call of ddp_page_wait(), which has taken the page's address */
	pthread_t thread;
	atomic_bool held, finalized;
} other;

void __real_ddp_page_wait(struct ddp_progress *page, uint64_t number, uint64_t start_ns, const char *text);
void __wrap_ddp_page_wait(struct ddp_progress *page, uint64_t number, uint64_t start_ns, const char *text);

void __wrap_ddp_page_wait(struct ddp_progress *page, uint64_t number, uint64_t start_ns, const char *text)
{
	if (atomic_load(&other.holds) && pthread_equal(pthread_self(), other.thread)) {
		atomic_store(&other.held, page != NULL);
		while (!atomic_load(&other.finalized))
			usleep(1000);
	}
	__real_ddp_page_wait(page, number, start_ns, text);
}

static void *receive(void *group)
{
	static int32_t number;

	other.thread = pthread_self();
	atomic_store(&other.holds, true);
	const ddp_status status = ddp_recv(group, &number, 1, DDP_I32, 0, 0);
	return status == DDP_OK && number == 7 ? &number : NULL;
}

TEST_WITH(operation_goes_on_across_finalize, make_file, drop_file)
{
	const int32_t number = 7;
	ddp_context *context;
	pthread_t thread;
	void *received;

	assert_int_equal(ddp_init(NULL, &context), DDP_OK);
	ddp_comm *group = group_of(context);
	assert_int_equal(ddp_barrier(group), DDP_OK);
	assert_int_equal(pthread_create(&thread, NULL, receive, group), 0);
	while (!atomic_load(&other.held))
		usleep(1000);
	assert_int_equal(ddp_finalize(context), DDP_OK);
	atomic_store(&other.finalized, true);
	assert_int_equal(ddp_send(group, &number, 1, DDP_I32, 0, 0), DDP_OK);
	assert_int_equal(pthread_join(thread, &received), 0);
	assert_non_null(received);
	assert_int_equal(ddp_comm_free(group), DDP_OK);
	assert_int_equal(count_mappings(), 0);
}

/* Operations that follow each other closely, for the thread sanitizer. */
static atomic_bool ends;

static void *sum_again_and_again(void *group)
{
	float value = 1;

	while (!atomic_load(&ends)) {
		if (ddp_all_reduce(group, NULL, &value, 1, DDP_F32, DDP_SUM) != DDP_OK)
			return NULL;
	}
	return group;
}

TEST_WITH(operations_follow_each_other_across_finalize, make_file, drop_file)
{
	pthread_t thread;
	void *done;

	for (int i = 0; i < 20; i++) {
		ddp_context *context;
		assert_int_equal(ddp_init(NULL, &context), DDP_OK);
		ddp_comm *group = group_of(context);
		atomic_store(&ends, false);
		assert_int_equal(pthread_create(&thread, NULL, sum_again_and_again, group), 0);
		assert_int_equal(ddp_finalize(context), DDP_OK);
		atomic_store(&ends, true);
		assert_int_equal(pthread_join(thread, &done), 0);
		assert_non_null(done);
		assert_int_equal(ddp_comm_free(group), DDP_OK);
	}
	assert_int_equal(count_mappings(), 0);
}

/* ---- the device ------------------------------------------------------------------------------- */

static void sum_on_device(ddp_comm *group, ddp_device *device)
{
	void *memory;

	assert_int_equal(ddp_device_alloc(device, sizeof(float), &memory), DDP_OK);
	assert_int_equal(ddp_device_fill(device, NULL, memory, 0, sizeof(float)), DDP_OK);
	assert_int_equal(ddp_run(group, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = memory, .count = 1,
	                                                   .memory = DDP_MEMORY_DEVICE }), DDP_OK);
	assert_int_equal(ddp_device_free(device, memory), DDP_OK);
}

TEST_WITH(device_stays_until_the_last_group_is_freed, make_file, drop_file)
{
	const ddp_options options = { DDP_OPTIONS_FIELDS, .device = "cuda" };
	void *memory;

	for (int before = 0; before < 2; before++) {
		ddp_context *context;
		assert_int_equal(ddp_init(&options, &context), DDP_OK);
		ddp_comm *group = group_of(context);
		ddp_device *device = context->device;
		if (before)
			sum_on_device(group, device);
		assert_int_equal(ddp_finalize(context), DDP_OK);
		sum_on_device(group, device);
		assert_int_equal(ddp_mem_alloc(group, 100, &memory), DDP_OK);
		assert_int_equal(ddp_mem_free(group, memory), DDP_OK);
		assert_int_equal(ddp_comm_free(group), DDP_OK);
	}
	/* Nothing is left of it. */
	assert_int_equal(warnings, 0);
}
