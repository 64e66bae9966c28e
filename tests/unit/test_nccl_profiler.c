/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* libnccl-profiler-ddp.so, called through its tables as NCCL calls them; what it writes
   is read from the page as slurmstepd and ddp-status read it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#undef stop /* a macro of cmocka 2 */

#include "base/clock.h"
#include "nccl_plugins/profiler/abi.h"
#include "spank/wire/progress_page.h"
#include "tests/support/test.h"
#include "watch/page.h"

#define PLUGIN "libruntime/nccl_plugins/profiler/.libs/libnccl-profiler-ddp.so"

/* Layouts are NCCL's, in numbers that the compiler gave for its own headers, on x86_64 and
   alike: v4 and v5 of 2.28.9 and of 2.30.7, v6 of 2.30.7, which lies as v5. The plugin cannot be
   tried with other layouts than those of its own header: a member of it that is left out or
   swapped shows here only. */
#define AT(type, member, bytes) _Static_assert(offsetof(type, member) == (bytes), "as in NCCL: " #type "." #member)
#define EVENT(event) AT(event, type, 0); AT(event, parent, 8); AT(event, rank, 16); AT(event, details, 24)
#define PROFILER(table) \
	AT(table, name, 0); AT(table, init, 8); AT(table, start, 16); AT(table, stop, 24); \
	AT(table, record, 32); AT(table, finalize, 40)

EVENT(struct ddp_nccl_event_v4);
EVENT(struct ddp_nccl_event_v5);
_Static_assert(sizeof(((struct ddp_nccl_event_v4 *)NULL)->type) == 1, "as in NCCL");
_Static_assert(sizeof(((struct ddp_nccl_event_v5 *)NULL)->type) == 8, "as in NCCL");
AT(union ddp_nccl_details, collective.sequence, 0);
AT(union ddp_nccl_details, collective.function, 8);
AT(union ddp_nccl_details, collective.send, 16);
AT(union ddp_nccl_details, collective.recv, 24);
AT(union ddp_nccl_details, collective.count, 32);
AT(union ddp_nccl_details, collective.root, 40);
AT(union ddp_nccl_details, collective.type, 48);
AT(union ddp_nccl_details, collective.channels, 56);
AT(union ddp_nccl_details, collective.warps, 57);
AT(union ddp_nccl_details, p2p.function, 0); AT(union ddp_nccl_details, p2p.buffer, 8);
AT(union ddp_nccl_details, p2p.type, 16); AT(union ddp_nccl_details, p2p.count, 24);
AT(union ddp_nccl_details, p2p.peer, 32); AT(union ddp_nccl_details, p2p.channels, 36);
PROFILER(struct ddp_nccl_profiler_v4);
PROFILER(struct ddp_nccl_profiler_v5);
_Static_assert(sizeof(struct ddp_nccl_profiler_v4) == 48, "as in NCCL");
_Static_assert(sizeof(struct ddp_nccl_profiler_v5) == 48, "as in NCCL");

enum { WORLD = 4, LOCAL_RANK = 1, THREADS = 4 };

static const struct ddp_nccl_profiler_v4 *v4;
static const struct ddp_nccl_profiler_v5 *v5, *v6;
static int page_fd;

static int set_up(void **state)
{
	char text[16];
	void *plugin = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);

	if (plugin == NULL)
		fail_msg("%s", dlerror());
	v4 = dlsym(plugin, "ncclProfiler_v4");
	v5 = dlsym(plugin, "ncclProfiler_v5");
	v6 = dlsym(plugin, "ncclProfiler_v6");
	page_fd = memfd_create("ddp_progress", 0);
	if (v4 == NULL || v5 == NULL || v6 == NULL || page_fd < 0 ||
	    ftruncate(page_fd, 2 * DDP_PROGRESS_BYTES) != 0)
		return 1;
	snprintf(text, sizeof(text), "%d", page_fd);
	return setenv("DDP_PROGRESS_FD", text, 1) | setenv("RANK", "3", 1) | setenv("LOCAL_RANK", "1", 1) |
	       setenv("WORLD_SIZE", "4", 1);
}

static const char *doing(void)
{
	static char text[512];
	struct sink sink = sink_on(text, sizeof(text));
	struct ddp_progress page;
	struct progress_text read;
	char *since;

	assert_int_equal(pread(page_fd, &page, sizeof(page), LOCAL_RANK * DDP_PROGRESS_BYTES), sizeof(page));
	progress_text_read(&page, ddp_now_ns(), &read);
	progress_text_add(&sink, &read);
	/* " for 0.0 s" and " 0.0 s ago" depend on the clock. */
	if ((since = strstr(text, " for ")) != NULL)
		*since = '\0';
	if ((since = strstr(text, " s ago")) != NULL) {
		while (since > text && since[-1] != ' ')
			since--;
		since[-1] = '\0';
	}
	return text;
}

static void *open_comm(int ranks)
{
	void *context = NULL;
	int mask = -1;

	assert_int_equal(v5->init(&context, 77, &mask, "world", 2, ranks, 3, NULL), 0);
	assert_non_null(context);
	assert_int_equal(mask, DDP_NCCL_COLLECTIVE | DDP_NCCL_P2P | DDP_NCCL_KERNEL);
	return context;
}

static void *call(void *context, const char *function, const char *type, size_t count, uint8_t channels)
{
	struct ddp_nccl_event_v5 event = { .type = DDP_NCCL_COLLECTIVE, .rank = 3 };
	void *handle = NULL;

	event.details.collective.function = function;
	event.details.collective.type = type;
	event.details.collective.count = count;
	event.details.collective.channels = channels;
	assert_int_equal(v5->start(context, &handle, &event), 0);
	assert_non_null(handle);
	assert_int_equal(v5->stop(handle), 0); /* the call has returned */
	return handle;
}

static void *begin_kernel(void *context, void *parent)
{
	struct ddp_nccl_event_v5 event = { .type = DDP_NCCL_KERNEL, .parent = parent };
	void *handle = NULL;

	assert_int_equal(v5->start(context, &handle, &event), 0);
	assert_non_null(handle);
	assert_int_equal(v5->record(handle, 22, NULL), 0);
	return handle;
}

static void run_kernels(void *context, void *operation, int channels)
{
	for (int i = 0; i < channels; i++)
		assert_int_equal(v5->stop(begin_kernel(context, operation)), 0);
}

/* In a process of its own: the plugin looks for its page once. */
static bool refuses(const char *fd, bool libddp)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		const ddp_job job = { .local_rank = LOCAL_RANK, .identity_source = DDP_SOURCE_ENVIRONMENT };
		void *context = &status;
		int mask = -1;
		if (libddp)
			ddp_page_collective(ddp_page_map(&job, NULL), 5, ddp_coarse_ns());
		_exit(setenv("DDP_PROGRESS_FD", fd, 1) != 0 ||
		      v6->init(&context, 1, &mask, NULL, 1, WORLD, 3, NULL) != 0 || context != NULL || mask != 0);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* This comes first, before the page is mapped. */
TEST(without_a_page_of_its_own_nothing_is_watched)
{
	char fd[16];

	snprintf(fd, sizeof(fd), "%s", getenv("DDP_PROGRESS_FD"));
	assert_true(refuses("999", false));
	assert_true(refuses("", false));
	assert_true(refuses(fd, true));
	assert_string_equal(doing(), "between steps, last collective #5");
	assert_int_equal(ftruncate(page_fd, 0), 0);
	assert_true(refuses(fd, false));
	assert_int_equal(ftruncate(page_fd, 2 * DDP_PROGRESS_BYTES), 0);
}

TEST(the_page_says_what_the_rank_waits_for)
{
	void *world = open_comm(WORLD), *other = open_comm(2), *first, *second, *last;

	assert_string_equal(doing(), "outside NCCL");
	first = call(world, "AllReduce", "ncclFloat32", 262144, 2);
	assert_string_equal(doing(), "in NCCL, waiting in collective #1 NCCL all_reduce f32[262144]");
	second = call(world, "ReduceScatter", "ncclBfloat16", 10, 1);
	assert_string_equal(doing(), "in NCCL, waiting in collective #1 NCCL all_reduce f32[262144]");
	run_kernels(world, first, 1);
	assert_string_equal(doing(), "in NCCL, waiting in collective #1 NCCL all_reduce f32[262144]");
	run_kernels(world, first, 1);
	assert_string_equal(doing(), "in NCCL, waiting in collective #2 NCCL reduce_scatter bf16[10]");
	run_kernels(world, second, 1);
	assert_string_equal(doing(), "outside NCCL, last collective #2 NCCL reduce_scatter bf16[10]");

	last = call(other, "NewThing", "ncclFloat8e4m3", 5, 1);
	assert_string_equal(doing(), "in NCCL, waiting in NCCL NewThing ncclFloat8e4m3[5]");
	run_kernels(other, last, 1);
	assert_string_equal(doing(), "outside NCCL, last collective #2 NCCL reduce_scatter bf16[10]");
	assert_int_equal(v5->finalize(other), 0);
	assert_int_equal(v5->finalize(world), 0);
}

TEST(a_later_operation_ends_those_before_it)
{
	void *world = open_comm(WORLD), *late, *lost;

	lost = call(world, "AllGather", "ncclUint8", 1, 8);
	run_kernels(world, lost, 3); /* NCCL tells of three channels out of eight */
	run_kernels(world, call(world, "Broadcast", "ncclInt64", 2, 1), 1);
	assert_string_equal(doing(), "outside NCCL, last collective #2 NCCL broadcast i64[2]");
	late = begin_kernel(world, lost);
	assert_string_equal(doing(), "outside NCCL, last collective #2 NCCL broadcast i64[2]");
	assert_int_equal(v5->stop(late), 0);
	assert_int_equal(v5->finalize(world), 0);
}

TEST(a_graph_that_runs_again_counts_again)
{
	void *world = open_comm(WORLD), *captured = call(world, "AllReduce", "ncclFloat16", 8, 2), *kernel;

	run_kernels(world, captured, 2);
	for (int launch = 2; launch < 5; launch++) {
		char expected[80];
		kernel = begin_kernel(world, captured);
		snprintf(expected, sizeof(expected), "in NCCL, waiting in collective #%d NCCL all_reduce f16[8]", launch);
		assert_string_equal(doing(), expected);
		assert_int_equal(v5->stop(kernel), 0);
		run_kernels(world, captured, 1);
	}
	assert_string_equal(doing(), "outside NCCL, last collective #4 NCCL all_reduce f16[8]");
	assert_int_equal(v5->finalize(world), 0);
}

TEST(many_operations_under_way_are_no_more_memory)
{
	void *world = open_comm(WORLD), *operation = NULL;

	for (int i = 0; i < 10000; i++)
		operation = call(world, "AllReduce", "ncclInt32", (size_t)i, 1);
	assert_string_equal(doing(), "in NCCL, waiting in collective #5905 NCCL all_reduce i32[5904]");
	run_kernels(world, operation, 1);
	assert_string_equal(doing(), "outside NCCL, last collective #10000 NCCL all_reduce i32[9999]");
	call(world, "AllReduce", "ncclInt32", 3, 1);
	assert_int_equal(v5->finalize(world), 0);
	assert_string_equal(doing(), "outside NCCL, last collective #10001 NCCL all_reduce i32[3]");
}

TEST(messages_name_their_peer)
{
	struct ddp_nccl_event_v4 event = { .type = DDP_NCCL_P2P };
	void *context = NULL, *send = NULL, *receive = NULL, *nothing = &event;
	int mask = 0;

	assert_int_equal(v4->init(&context, &mask, NULL, 5, 2, WORLD, 3, NULL), 0);
	assert_non_null(context);
	event.details.p2p.function = "Send";
	event.details.p2p.type = "ncclFloat64";
	event.details.p2p.count = 7;
	event.details.p2p.peer = 2;
	event.details.p2p.channels = 1;
	assert_int_equal(v4->start(context, &send, &event), 0);
	assert_string_equal(doing(), "in NCCL, waiting in NCCL send f64[7] to 2");
	event.details.p2p.function = "Recv";
	assert_int_equal(v4->start(context, &receive, &event), 0);
	run_kernels(context, send, 1);
	assert_string_equal(doing(), "in NCCL, waiting in NCCL recv f64[7] from 2");
	/* NCCL tells of groups, too, whatever was asked for. */
	event.type = 1;
	assert_int_equal(v4->start(context, &nothing, &event), 0);
	assert_null(nothing);
	assert_int_equal(v4->stop(nothing), 0);
	assert_int_equal(v4->finalize(context), 0);
}

static void *call_and_run(void *context)
{
	for (int i = 0; i < 1000; i++)
		run_kernels(context, call(context, "AllReduce", "ncclFloat32", 1, 2), 2);
	return NULL;
}

TEST(threads_may_use_communicators_of_their_own)
{
	void *contexts[THREADS];
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++) {
		contexts[i] = open_comm(i == 0 ? WORLD : 2);
		assert_int_equal(pthread_create(&threads[i], NULL, call_and_run, contexts[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_string_equal(doing(), "outside NCCL, last collective #1000 NCCL all_reduce f32[1]");
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(v5->finalize(contexts[i]), 0);
}

int main(void)
{
	return test_run(set_up, NULL);
}
